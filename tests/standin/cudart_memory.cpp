// The runtime's memory functions: plain, stream-ordered, host memory, and copies.
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string_view>
#include <utility>
#include <vector>

#include "world.h"

using standin::Address;
using standin::Call;
using standin::HandleValue;
using standin::Memory;
using standin::Stream;
using standin::World;

namespace {

int allocate(World& w, void** out, std::size_t size) {
  if (!out) return standin::kInvalidValue;
  *out = nullptr;
  if (size == 0) return standin::kSuccess;
  Address address = 0;
  if (const int error = w.memory.allocate(standin::current_device, size, &address)) return error;
  *out = reinterpret_cast<void*>(address);
  return standin::kSuccess;
}

void release(World& w, Address begin) {
  const auto allocation = w.memory.allocation_at(begin);
  if (!allocation) return;
  w.history.forget(begin, begin + allocation->size);
  w.memory.free(begin);
}

// Work of the runtime itself on a stream, like a kernel.
int work_on(World& w, void* handle, std::string_view call) {
  Stream* stream = w.stream(handle, call);
  if (!stream) return standin::kInvalidHandle;
  if (stream->capture) return w.capture_use(*stream, nullptr);
  w.streams.submit(*stream);
  return standin::kSuccess;
}

enum class CopyKind : int {
  kHostToHost,
  kHostToDevice,
  kDeviceToHost,
  kDeviceToDevice,
  kByAddress
};

bool on_device(World& w, const void* p) {
  return w.memory.piece_around(reinterpret_cast<Address>(p)).has_value();
}

bool is_device_address(const void* p) {
  return Memory::is_device_address(reinterpret_cast<Address>(p));
}

// Copies from the device give zeros, if no contents are kept.
int move(World& w, void* to, const void* from, std::size_t size) {
  if (size == 0) return standin::kSuccess;
  if (w.memory.keeps_contents() && (is_device_address(to) || is_device_address(from))) {
    return w.move_contents(to, from, size);
  }
  if (on_device(w, to)) return standin::kSuccess;
  if (on_device(w, from)) {
    std::memset(to, 0, size);
  } else {
    std::memmove(to, from, size);
  }
  return standin::kSuccess;
}

// The pinned memory of `size` bytes at `p`, if it is that.
bool is_pinned(World& w, const void* p, std::size_t size) {
  const auto address = reinterpret_cast<Address>(p);
  auto it = w.host_memory.upper_bound(address);
  if (it == w.host_memory.begin()) return false;
  --it;
  return address + size <= it->first + it->second;
}

std::size_t digest(const void* p, std::size_t size) {
  return std::hash<std::string_view>{}({static_cast<const char*>(p), size});
}

// A copy on a stream from or to pinned memory happens when the stream reaches it. If it is late, it
// spoils what has got the memory meanwhile; or it finds other values than were submitted, which is
// a misuse.
int copy_later(World& w, Stream& stream, void* to, const void* from, std::size_t size) {
  if (is_pinned(w, to, size)) {
    w.streams.submit(stream, {{}, [&w, to, from, size] {
                                if (is_pinned(w, to, size)) move(w, to, from, size);
                              }});
    return standin::kSuccess;
  }
  const std::size_t submitted = digest(from, size);
  w.streams.submit(stream, {{}, [&w, to, from, size, submitted] {
                              if (is_pinned(w, from, size) && digest(from, size) == submitted) {
                                move(w, to, from, size);
                              } else {
                                w.misuse("pinned memory has changed before it was copied", 0);
                              }
                            }});
  return standin::kSuccess;
}

// Work of the stream comes first. The host waits for a copy to pageable memory; one from there
// takes what that holds now.
int copy_contents(World& w, Stream& stream, void* to, const void* from, std::size_t size) {
  if (stream.capture) return w.capture_use(stream, nullptr);
  if (!stream.manual && !w.streams.busy()) {
    w.streams.submit(stream);
    return move(w, to, from, size);
  }
  std::function<void()> copy = [&w, to, from, size] { move(w, to, from, size); };
  if (!is_device_address(from) && !is_pinned(w, from, size)) {
    const auto* begin = static_cast<const char*>(from);
    copy = [&w, to, kept = std::vector<char>(begin, begin + size)] {
      move(w, to, kept.data(), kept.size());
    };
  }
  w.streams.submit(stream, {{}, std::move(copy)});
  if (!is_device_address(to) && !is_pinned(w, to, size)) {
    if (!stream.pending.empty()) ++w.host_waits;
    w.streams.drain(stream);
    w.streams.host_saw(stream);
  }
  return standin::kSuccess;
}

int set(void* stream, void* p, int value, std::size_t size, Call& call) {
  return call([&](World& w) {
    Stream* s = w.stream(stream, call.name());
    if (!s) return int{standin::kInvalidHandle};
    const char byte = static_cast<char>(value);
    return w.fill(*s, reinterpret_cast<Address>(p), &byte, 1, size);
  });
}

}  // namespace

extern "C" {

int cudaMalloc(void** p, std::size_t size) {
  static Call call("cudaMalloc");
  return call([&](World& w) {
    if (const int error = w.forbid_in_capture(call.name())) return error;
    return allocate(w, p, size);
  });
}

// Waits for all work of the device, as the real one does.
int cudaFree(void* p) {
  static Call call("cudaFree");
  return call([&](World& w) {
    if (!p) return int{standin::kSuccess};
    if (const int error = w.forbid_in_capture(call.name())) return error;
    const auto begin = reinterpret_cast<Address>(p);
    const auto allocation = w.memory.allocation_at(begin);
    if (!allocation) {
      return w.misuse("cudaFree of what is not allocated, or was freed", standin::kInvalidValue);
    }
    if (w.streams.busy(allocation->device)) ++w.host_waits;
    w.streams.drain_device(allocation->device);
    release(w, begin);
    return int{standin::kSuccess};
  });
}

int cudaMallocAsync(void** p, std::size_t size, void* stream) {
  static Call call("cudaMallocAsync");
  return call([&](World& w) {
    Stream* s = w.stream(stream, call.name());
    if (!s) return int{standin::kInvalidHandle};
    if (const int error = allocate(w, p, size)) return error;
    w.streams.submit(*s);
    return int{standin::kSuccess};
  });
}

// The memory is freed when the stream reaches this item.
int cudaFreeAsync(void* p, void* stream) {
  static Call call("cudaFreeAsync");
  return call([&](World& w) {
    if (!p) return int{standin::kSuccess};
    Stream* s = w.stream(stream, call.name());
    if (!s) return int{standin::kInvalidHandle};
    const auto begin = reinterpret_cast<Address>(p);
    const auto allocation = w.memory.allocation_at(begin);
    if (!allocation) {
      return w.misuse("cudaFreeAsync of what is not allocated, or was freed",
                      standin::kInvalidValue);
    }
    standin::Clock past = s->clock;
    past.merge(w.streams.host());
    if (const auto use = w.history.unordered(begin, begin + allocation->size, past)) {
      w.misuse("cudaFreeAsync on a stream that is not ordered after owner " +
                   std::to_string(use->owner) + "'s work on the memory",
               0);
    }
    w.streams.submit(*s, {{}, [&w, begin] { release(w, begin); }});
    return int{standin::kSuccess};
  });
}

int cudaMemGetInfo(std::size_t* free, std::size_t* total) {
  static Call call("cudaMemGetInfo");
  return call([&](World& w) {
    const Memory::Device& d = w.memory.devices()[static_cast<std::size_t>(standin::current_device)];
    *free = d.capacity - std::min(d.used, d.capacity);
    *total = d.capacity;
    return int{standin::kSuccess};
  });
}

int cudaHostAlloc(void** p, std::size_t size, unsigned /*flags*/) {
  static Call call("cudaHostAlloc");
  return call([&](World& w) {
    constexpr std::size_t kPage = 4096;
    *p = std::aligned_alloc(kPage, (size + kPage - 1) / kPage * kPage);
    if (!*p) return int{standin::kOutOfMemory};
    w.host_memory[reinterpret_cast<Address>(*p)] = size;
    return int{standin::kSuccess};
  });
}

int cudaMallocHost(void** p, std::size_t size) { return cudaHostAlloc(p, size, 0); }

int cudaFreeHost(void* p) {
  static Call call("cudaFreeHost");
  return call([&](World& w) {
    if (w.host_memory.erase(reinterpret_cast<Address>(p)) == 0) {
      return w.misuse("cudaFreeHost of what is not allocated", standin::kInvalidValue);
    }
    std::free(p);
    return int{standin::kSuccess};
  });
}

int cudaHostRegister(void*, std::size_t, unsigned) {
  static Call call("cudaHostRegister");
  return call([](World&) { return int{standin::kSuccess}; });
}

int cudaHostUnregister(void*) {
  static Call call("cudaHostUnregister");
  return call([](World&) { return int{standin::kSuccess}; });
}

int cudaHostGetDevicePointer(void** device, void* host, unsigned) {
  static Call call("cudaHostGetDevicePointer");
  return call([&](World&) {
    *device = host;
    return int{standin::kSuccess};
  });
}

int cudaHostGetFlags(unsigned* flags, void* p) {
  static Call call("cudaHostGetFlags");
  return call([&](World& w) {
    if (!is_pinned(w, p, 1)) return int{standin::kInvalidValue};
    *flags = 0;
    return int{standin::kSuccess};
  });
}

struct cudaPointerAttributes {
  int type;  // 0 unknown to CUDA, 1 host, 2 device
  int device;
  void* devicePointer;
  void* hostPointer;
  long reserved[8];  // of CUDA 13
};

int cudaPointerGetAttributes(cudaPointerAttributes* a, const void* p) {
  static Call call("cudaPointerGetAttributes");
  return call([&](World& w) {
    const auto address = reinterpret_cast<Address>(p);
    auto* pointer = const_cast<void*>(p);
    a->type = 0;
    a->device = -2;
    a->devicePointer = nullptr;
    a->hostPointer = pointer;
    if (const auto piece = w.memory.piece_around(address)) {
      a->type = 2;
      a->device = piece->device;
      a->devicePointer = pointer;
      a->hostPointer = nullptr;
    } else if (auto it = w.host_memory.upper_bound(address); it != w.host_memory.begin()) {
      --it;
      if (address < it->first + it->second) {
        a->type = 1;
        a->device = standin::current_device;
        a->devicePointer = pointer;
      }
    }
    return int{standin::kSuccess};
  });
}

int cudaMemcpy(void* to, const void* from, std::size_t size, int /*kind*/) {
  static Call call("cudaMemcpy");
  return call([&](World& w) {
    if (const int error = w.forbid_in_capture(call.name())) return error;
    Stream* s = w.stream(nullptr, call.name());
    if (!s) return int{standin::kInvalidHandle};
    w.streams.submit(*s);
    w.streams.drain(*s);
    w.streams.host_saw(*s);
    return move(w, to, from, size);
  });
}

int cudaMemcpyAsync(void* to, const void* from, std::size_t size, int /*kind*/, void* stream) {
  static Call call("cudaMemcpyAsync");
  return call([&](World& w) {
    Stream* s = w.stream(stream, call.name());
    const bool from_device = on_device(w, from), to_device = on_device(w, to);
    if (s && s->manual && !s->capture && size > 0 &&
        (from_device ? is_pinned(w, to, size) : to_device && is_pinned(w, from, size))) {
      return copy_later(w, *s, to, from, size);
    }
    if (s && w.memory.keeps_contents()) return copy_contents(w, *s, to, from, size);
    move(w, to, from, size);
    return work_on(w, stream, call.name());
  });
}

int cudaMemcpy2DAsync(void* to, std::size_t to_pitch, const void* from, std::size_t from_pitch,
                      std::size_t width, std::size_t height, int /*kind*/, void* stream) {
  static Call call("cudaMemcpy2DAsync");
  return call([&](World& w) {
    Stream* s = w.stream(stream, call.name());
    if (!s) return int{standin::kInvalidHandle};
    if (s->capture && w.memory.keeps_contents()) return w.capture_use(*s, nullptr);
    if (w.memory.keeps_contents()) w.streams.drain(*s);
    for (std::size_t row = 0; row < height; ++row) {
      move(w, static_cast<char*>(to) + row * to_pitch,
           static_cast<const char*>(from) + row * from_pitch, width);
    }
    return work_on(w, stream, call.name());
  });
}

int cudaMemcpyPeerAsync(void* to, int, const void* from, int, std::size_t size, void* stream) {
  static Call call("cudaMemcpyPeerAsync");
  return call([&](World& w) {
    Stream* s = w.stream(stream, call.name());
    if (s && w.memory.keeps_contents()) return copy_contents(w, *s, to, from, size);
    return work_on(w, stream, call.name());
  });
}

int cudaMemcpyToSymbol(const void*, const void*, std::size_t, std::size_t, int) {
  static Call call("cudaMemcpyToSymbol");
  return call([](World&) { return int{standin::kSuccess}; });
}

int cudaMemset(void* p, int value, std::size_t size) {
  static Call call("cudaMemset");
  return set(nullptr, p, value, size, call);
}

int cudaMemsetAsync(void* p, int value, std::size_t size, void* stream) {
  static Call call("cudaMemsetAsync");
  return set(stream, p, value, size, call);
}

// Handles work within one process only: a handle is the address.
struct cudaIpcMemHandle {
  char reserved[64];
};

int cudaIpcGetMemHandle(cudaIpcMemHandle* handle, void* p) {
  static Call call("cudaIpcGetMemHandle");
  return call([&](World& w) {
    if (!w.memory.allocation_at(reinterpret_cast<Address>(p))) return int{standin::kInvalidValue};
    std::memset(handle, 0, sizeof *handle);
    std::memcpy(handle, &p, sizeof p);
    return int{standin::kSuccess};
  });
}

int cudaIpcOpenMemHandle(void** p, cudaIpcMemHandle handle, unsigned) {
  static Call call("cudaIpcOpenMemHandle");
  return call([&](World&) {
    std::memcpy(p, &handle, sizeof *p);
    return int{standin::kSuccess};
  });
}

int cudaIpcCloseMemHandle(void*) {
  static Call call("cudaIpcCloseMemHandle");
  return call([](World&) { return int{standin::kSuccess}; });
}

// Memory pools exist and have no settings.
int cudaDeviceGetDefaultMemPool(void** pool, int device) {
  static Call call("cudaDeviceGetDefaultMemPool");
  return call([&](World&) {
    *pool = reinterpret_cast<void*>((HandleValue{11} << 60) + static_cast<HandleValue>(device));
    return int{standin::kSuccess};
  });
}

int cudaMemPoolGetAttribute(void*, int, void* value) {
  static Call call("cudaMemPoolGetAttribute");
  return call([&](World& w) {
    const std::uint64_t used =
        w.memory.devices()[static_cast<std::size_t>(standin::current_device)].used;
    std::memcpy(value, &used, sizeof used);
    return int{standin::kSuccess};
  });
}

int cudaMemPoolSetAttribute(void*, int, void*) {
  static Call call("cudaMemPoolSetAttribute");
  return call([](World&) { return int{standin::kSuccess}; });
}

int cudaMemPoolSetAccess(void*, const void*, std::size_t) {
  static Call call("cudaMemPoolSetAccess");
  return call([](World&) { return int{standin::kSuccess}; });
}

int cudaMemPoolTrimTo(void*, std::size_t) {
  static Call call("cudaMemPoolTrimTo");
  return call([](World&) { return int{standin::kSuccess}; });
}

}  // extern "C"
