// The driver's virtual memory calls, and the runtime function that finds them by name.
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <string_view>
#include <vector>

#include "world.h"

using standin::Address;
using standin::Call;
using standin::Memory;
using standin::World;

namespace {

struct Location {
  int type;  // 1: a device
  int id;
};

struct AllocationProperties {  // the first members of CUmemAllocationProp
  int type;
  int handle_types;
  Location location;
  void* win32;
  unsigned char flags[8];
};

constexpr int kPinned = 1;
constexpr int kOnDevice = 1;
// Of handles for others:
constexpr int kFile = 1;
constexpr int kFabric = 8;  // for another machine of an NVLink fabric

int with_complaint(World& w, int error, const std::string& complaint) {
  return error && !complaint.empty() ? w.misuse(complaint, error) : error;
}

int mem_address_reserve(Address* p, std::size_t size, std::size_t alignment, Address hint,
                        unsigned long long) {
  static Call call("cuMemAddressReserve");
  return call([&](World& w) { return w.memory.reserve(size, alignment, hint, p); });
}

int mem_address_free(Address p, std::size_t size) {
  static Call call("cuMemAddressFree");
  return call([&](World& w) {
    std::string complaint;
    const int error = w.memory.unreserve(p, size, &complaint);
    return with_complaint(w, error, complaint);
  });
}

int mem_create(std::uint64_t* handle, std::size_t size, const AllocationProperties* properties,
               unsigned long long) {
  static Call call("cuMemCreate");
  return call([&](World& w) {
    if (properties->handle_types & kFabric) return int{standin::kNotSupported};
    if (properties->type != kPinned || properties->location.type != kOnDevice) {
      return int{standin::kInvalidValue};
    }
    const int device = properties->location.id;
    if (device < 0 || device >= w.devices()) return int{standin::kInvalidDevice};
    if ((w.contexts & standin::bit(device)) == 0) {
      return w.misuse("cuMemCreate on a device without a context", standin::kNoContext);
    }
    return w.memory.create(device, size, handle, (properties->handle_types & kFile) != 0);
  });
}

int mem_release(std::uint64_t handle) {
  static Call call("cuMemRelease");
  return call([&](World& w) {
    std::string complaint;
    const int error = w.memory.release(handle, &complaint);
    return with_complaint(w, error, complaint);
  });
}

int mem_map(Address p, std::size_t size, std::size_t offset, std::uint64_t handle,
            unsigned long long) {
  static Call call("cuMemMap");
  return call([&](World& w) {
    return offset != 0 ? int{standin::kInvalidValue} : w.memory.map(p, size, handle);
  });
}

// Does not wait for work, so no work may be pending.
int mem_unmap(Address p, std::size_t size) {
  static Call call("cuMemUnmap");
  return call([&](World& w) {
    w.check_idle(p, p + size, call.name());
    std::string complaint;
    const int error = w.memory.unmap(p, size, &complaint);
    if (error == standin::kSuccess) w.history.forget(p, p + size);
    return with_complaint(w, error, complaint);
  });
}

constexpr int kReadAndWrite = 3;

struct Access {
  int location_type;
  int device;
  int flags;
};

int mem_set_access(Address p, std::size_t size, const Access* access, std::size_t count) {
  static Call call("cuMemSetAccess");
  return call([&](World& w) {
    std::uint64_t devices = 0;
    for (std::size_t i = 0; i < count; ++i) {
      if (access[i].location_type != kOnDevice || access[i].flags != kReadAndWrite) {
        return int{standin::kInvalidValue};
      }
      if (access[i].device >= w.devices()) return int{standin::kInvalidDevice};
      devices |= standin::bit(access[i].device);
    }
    return w.memory.set_access(p, size, devices);
  });
}

int mem_get_allocation_granularity(std::size_t* granularity, const AllocationProperties*, int) {
  static Call call("cuMemGetAllocationGranularity");
  return call([&](World&) {
    *granularity = Memory::kGranularity;
    return int{standin::kSuccess};
  });
}

int mem_get_address_range(Address* begin, std::size_t* size, Address p) {
  static Call call("cuMemGetAddressRange");
  return call([&](World& w) {
    const auto piece = w.memory.piece_around(p);
    if (!piece) return int{standin::kInvalidValue};
    if (begin) *begin = piece->begin;
    if (size) *size = piece->size;
    return int{standin::kSuccess};
  });
}

int mem_retain_allocation_handle(std::uint64_t* handle, void* p) {
  static Call call("cuMemRetainAllocationHandle");
  return call([&](World& w) { return w.memory.retain_at(reinterpret_cast<Address>(p), handle); });
}

int mem_get_allocation_properties(AllocationProperties* p, std::uint64_t handle) {
  static Call call("cuMemGetAllocationPropertiesFromHandle");
  return call([&](World& w) {
    const int device = w.memory.device_of(handle);
    if (device < 0) return int{standin::kInvalidValue};
    std::memset(p, 0, sizeof *p);
    p->type = 1;
    p->location = {1, device};
    return int{standin::kSuccess};
  });
}

// A handle for other processes is an unlinked file. In this process it is the handle again; another
// one has no books of this memory, and takes a new piece of its own device.

struct SharedMemory {
  int process = 0;
  int device = 0;
  std::uint64_t handle = 0;
  std::uint64_t size = 0;
};

int mem_export(void* shared, std::uint64_t handle, int type, unsigned long long) {
  static Call call("cuMemExportToShareableHandle");
  return call([&](World& w) {
    if (type != kFile) return int{standin::kNotSupported};
    if (!w.memory.is_shareable(handle)) {
      return w.misuse("cuMemExportToShareableHandle of memory that was not made for it",
                      standin::kInvalidValue);
    }
    const SharedMemory facts{getpid(), w.memory.device_of(handle), handle,
                             w.memory.size_of(handle)};
    const int file = memfd_create("standin", 0);
    if (file < 0 || pwrite(file, &facts, sizeof facts, 0) != sizeof facts) {
      if (file >= 0) close(file);
      return int{standin::kNotSupported};
    }
    std::memcpy(shared, &file, sizeof file);
    return int{standin::kSuccess};
  });
}

int mem_import(std::uint64_t* handle, void* shared, int type) {
  static Call call("cuMemImportFromShareableHandle");
  return call([&](World& w) {
    SharedMemory facts;
    const auto file = static_cast<int>(reinterpret_cast<std::intptr_t>(shared));
    if (type != kFile || pread(file, &facts, sizeof facts, 0) != sizeof facts) {
      return int{standin::kInvalidValue};
    }
    if (facts.process != getpid()) return w.memory.create(facts.device, facts.size, handle, true);
    *handle = facts.handle;
    return w.memory.retain(facts.handle);
  });
}

int memset_d32_async(Address p, unsigned value, std::size_t count, void* stream) {
  static Call call("cuMemsetD32Async");
  return call([&](World& w) {
    standin::Stream* s = w.stream(stream, call.name());
    if (!s) return int{standin::kInvalidHandle};
    return w.fill(*s, p, &value, sizeof value, count * sizeof value);
  });
}

int stream_write_value(void* stream, Address p, unsigned value, unsigned) {
  return memset_d32_async(p, value, 1, stream);
}

int device_get(int* device, int ordinal) {
  *device = ordinal;
  return standin::kSuccess;
}

int device_get_attribute(int* value, int attribute, int) {
  constexpr int kVirtualMemory = 102;
  *value = attribute == kVirtualMemory ? 1 : 0;
  return standin::kSuccess;
}

// A context is its device's number, above all addresses. The devices that were current before those
// that the thread has pushed:
constexpr std::uintptr_t kContextBase = std::uintptr_t{7} << 60;
thread_local std::vector<int> pushed;

void* context_of(int device) {
  return reinterpret_cast<void*>(kContextBase + static_cast<std::uintptr_t>(device));
}

int context_get_current(void** context) {
  static Call call("cuCtxGetCurrent");
  return call([&](World& w) {
    const int device = standin::current_device;
    *context = w.contexts & standin::bit(device) ? context_of(device) : nullptr;
    return int{standin::kSuccess};
  });
}

int primary_context_retain(void** context, int device) {
  static Call call("cuDevicePrimaryCtxRetain");
  return call([&](World& w) {
    if (device < 0 || device >= w.devices()) return int{standin::kInvalidDevice};
    w.contexts |= standin::bit(device);
    *context = context_of(device);
    return int{standin::kSuccess};
  });
}

int primary_context_state(int device, unsigned* flags, int* active) {
  static Call call("cuDevicePrimaryCtxGetState");
  return call([&](World& w) {
    *flags = 0;
    *active = w.contexts & standin::bit(device) ? 1 : 0;
    return int{standin::kSuccess};
  });
}

int context_push(void* context) {
  static Call call("cuCtxPushCurrent");
  return call([&](World& w) {
    const auto device = reinterpret_cast<std::uintptr_t>(context) - kContextBase;
    if (device >= static_cast<std::uintptr_t>(w.devices())) return int{standin::kNoContext};
    pushed.push_back(standin::current_device);
    standin::current_device = static_cast<int>(device);
    return int{standin::kSuccess};
  });
}

int context_pop(void** context) {
  static Call call("cuCtxPopCurrent");
  return call([&](World&) {
    if (pushed.empty()) return int{standin::kNoContext};
    *context = context_of(standin::current_device);
    standin::current_device = pushed.back();
    pushed.pop_back();
    return int{standin::kSuccess};
  });
}

int get_error_string(int error, const char** text) {
  *text = standin::error_text(error);
  return standin::kSuccess;
}

int get_error_name(int error, const char** text) {
  *text = standin::error_name(error);
  return standin::kSuccess;
}

// All other functions. They take any arguments and ignore them.
int not_supported() { return standin::kNotSupported; }

struct Entry {
  std::string_view name;
  void* function;
};

template <typename Function>
void* address(Function* f) {
  return reinterpret_cast<void*>(f);
}

void* find(std::string_view name) {
  static const Entry entries[] = {
      {"cuMemAddressReserve", address(mem_address_reserve)},
      {"cuMemAddressFree", address(mem_address_free)},
      {"cuMemCreate", address(mem_create)},
      {"cuMemRelease", address(mem_release)},
      {"cuMemMap", address(mem_map)},
      {"cuMemUnmap", address(mem_unmap)},
      {"cuMemSetAccess", address(mem_set_access)},
      {"cuMemGetAllocationGranularity", address(mem_get_allocation_granularity)},
      {"cuMemExportToShareableHandle", address(mem_export)},
      {"cuMemImportFromShareableHandle", address(mem_import)},
      {"cuMemGetAddressRange", address(mem_get_address_range)},
      {"cuMemRetainAllocationHandle", address(mem_retain_allocation_handle)},
      {"cuMemGetAllocationPropertiesFromHandle", address(mem_get_allocation_properties)},
      {"cuMemsetD32Async", address(memset_d32_async)},
      {"cuStreamWriteValue32", address(stream_write_value)},
      {"cuDeviceGet", address(device_get)},
      {"cuDeviceGetAttribute", address(device_get_attribute)},
      {"cuCtxGetCurrent", address(context_get_current)},
      {"cuDevicePrimaryCtxRetain", address(primary_context_retain)},
      {"cuDevicePrimaryCtxGetState", address(primary_context_state)},
      {"cuCtxPushCurrent", address(context_push)},
      {"cuCtxPopCurrent", address(context_pop)},
      {"cuGetErrorString", address(get_error_string)},
      {"cuGetErrorName", address(get_error_name)},
  };
  for (const Entry& entry : entries) {
    if (entry.name == name) return entry.function;
  }
  return name.starts_with("cu") ? address(not_supported) : nullptr;
}

}  // namespace

extern "C" {

int cudaGetDriverEntryPointByVersion(const char* name, void** function, unsigned,
                                     unsigned long long, int* status) {
  static Call call("cudaGetDriverEntryPoint");
  return call([&](World&) {
    *function = find(name);
    if (status) *status = *function ? 0 : 1;  // an unknown name is no error of the call
    return int{standin::kSuccess};
  });
}

int cudaGetDriverEntryPoint(const char* name, void** function, unsigned long long flags,
                            int* status) {
  return cudaGetDriverEntryPointByVersion(name, function, 0, flags, status);
}

}  // extern "C"
