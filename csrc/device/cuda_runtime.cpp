#include "device/cuda_runtime.h"

#include <dlfcn.h>

#include <atomic>
#include <memory>
#include <mutex>

#include "base/error.h"

namespace stalloc::device {
namespace {

// Libraries to search; their symbols need not be global.
constexpr const char* kCudaLibraries[] = {"libcudart.so.13", "libcudart.so.12"};
constexpr const char* kHipLibraries[] = {"libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so"};

// Returns a permanent handle of the loaded library that has `symbol`; null if none has.
template <std::size_t n>
void* find_library(const char* symbol, const char* const (&names)[n]) {
  void* global = dlopen(nullptr, RTLD_LAZY);
  if (dlsym(global, symbol)) return global;
  for (const char* name : names) {
    void* library = dlopen(name, RTLD_LAZY | RTLD_NOLOAD);
    if (library && dlsym(library, symbol)) return library;
  }
  return nullptr;
}

class Loader {
 public:
  Loader(void* library, std::string prefix) : library_(library), prefix_(std::move(prefix)) {}

  // Looks up a function by its name without the prefix. complete() is true if all were found.
  template <typename Function>
  void find(Function*& function, const char* name) {
    find_optional(function, name);
    complete_ = complete_ && function;
  }

  template <typename Function>
  void find_optional(Function*& function, const char* name) {
    function = reinterpret_cast<Function*>(dlsym(library_, (prefix_ + name).c_str()));
  }

  bool complete() const { return complete_; }

 private:
  void* library_;
  std::string prefix_;
  bool complete_ = true;
};

// CUDA's virtual memory calls belong to the driver; the runtime finds them.
class DriverLoader {
 public:
  // `runtime` has its own functions already.
  DriverLoader(void* library, const CudaRuntime& runtime) : runtime_(runtime) {
    Loader(library, "cuda").find_optional(by_version_, "GetDriverEntryPointByVersion");
    Loader(library, "cuda").find_optional(plain_, "GetDriverEntryPoint");
  }

  template <typename Function>
  void find(Function*& function, const char* name) {
    void* found = nullptr;
    int status = 0;
    const std::string symbol = std::string("cu") + name;
    CudaRuntime::Error error = CudaRuntime::kSuccess;
    if (by_version_) {
      constexpr unsigned kVersion = 12000;  // the version of the driver's interface
      error = by_version_(symbol.c_str(), &found, kVersion, 0, &status);
    } else if (plain_) {
      error = plain_(symbol.c_str(), &found, 0, &status);
    }
    if (error != CudaRuntime::kSuccess) {
      found = nullptr;
      runtime_.get_last_error();
    }
    function = reinterpret_cast<Function*>(found);
  }

 private:
  const CudaRuntime& runtime_;
  int (*by_version_)(const char*, void**, unsigned, unsigned long long, int*) = nullptr;
  int (*plain_)(const char*, void**, unsigned long long, int*) = nullptr;
};

template <typename Finder>
void load_virtual_memory(Finder&& finder, CudaRuntime& r) {
  finder.find(r.address_reserve, "MemAddressReserve");
  finder.find(r.address_free, "MemAddressFree");
  finder.find(r.memory_create, "MemCreate");
  finder.find(r.memory_release, "MemRelease");
  finder.find(r.memory_map, "MemMap");
  finder.find(r.memory_unmap, "MemUnmap");
  finder.find(r.memory_set_access, "MemSetAccess");
  finder.find(r.memory_granularity, "MemGetAllocationGranularity");
  const bool complete = r.address_reserve && r.address_free && r.memory_create &&
                        r.memory_release && r.memory_map && r.memory_unmap && r.memory_set_access;
  if (!complete) r.memory_granularity = nullptr;
}

void load_contexts(DriverLoader& driver, CudaRuntime& r) {
  driver.find(r.primary_context_retain, "DevicePrimaryCtxRetain");
  driver.find(r.primary_context_state, "DevicePrimaryCtxGetState");
  driver.find(r.context_push, "CtxPushCurrent");
  driver.find(r.context_pop, "CtxPopCurrent");
  if (!r.context_push || !r.context_pop) r.primary_context_retain = nullptr;
}

std::unique_ptr<CudaRuntime> load() {
  auto r = std::make_unique<CudaRuntime>();
  void* library = find_library("cudaMalloc", kCudaLibraries);
  const bool is_cuda = library != nullptr;
  if (!library) library = find_library("hipMalloc", kHipLibraries);
  if (!library) return nullptr;
  r->name = is_cuda ? "CUDA" : "HIP";
  Loader loader(library, is_cuda ? "cuda" : "hip");
  loader.find(r->get_device_count, "GetDeviceCount");
  loader.find(r->get_device, "GetDevice");
  loader.find(r->set_device, "SetDevice");
  loader.find(r->device_synchronize, "DeviceSynchronize");
  loader.find(r->malloc, "Malloc");
  loader.find(r->free, "Free");
  loader.find(r->mem_get_info, "MemGetInfo");
  loader.find(r->get_last_error, "GetLastError");
  loader.find(r->get_error_string, "GetErrorString");
  loader.find(r->event_create, "EventCreateWithFlags");
  loader.find(r->event_destroy, "EventDestroy");
  loader.find(r->event_record, "EventRecord");
  loader.find(r->event_query, "EventQuery");
  loader.find(r->stream_wait_event, "StreamWaitEvent");
  loader.find(r->stream_is_capturing, "StreamIsCapturing");
  loader.find(r->exchange_capture_mode, "ThreadExchangeStreamCaptureMode");
  if (!loader.complete()) return nullptr;
  loader.find_optional(r->can_access_peer, "DeviceCanAccessPeer");
  loader.find_optional(r->stream_get_device, "StreamGetDevice");
  loader.find_optional(r->host_alloc, "HostAlloc");
  loader.find_optional(r->free_host, is_cuda ? "FreeHost" : "HostFree");
  if (is_cuda) {
    DriverLoader driver(library, *r);
    load_virtual_memory(driver, *r);
    driver.find(r->memory_export, "MemExportToShareableHandle");
    load_contexts(driver, *r);
  } else {
    load_virtual_memory(Loader(library, "hip"), *r);
  }
  return r;
}

}  // namespace

const CudaRuntime* CudaRuntime::find() noexcept {
  static std::atomic<const CudaRuntime*> found{nullptr};
  if (const CudaRuntime* runtime = found.load(std::memory_order_acquire)) return runtime;
  try {
    // Repeated at each call: torch may be imported later.
    static std::mutex mutex;
    const std::lock_guard lock(mutex);
    if (!found.load(std::memory_order_relaxed)) {
      found.store(load().release(), std::memory_order_release);
    }
  } catch (...) {
    return nullptr;
  }
  return found.load(std::memory_order_acquire);
}

const CudaRuntime& CudaRuntime::get() {
  if (const CudaRuntime* runtime = find()) return *runtime;
  throw stalloc::Error(
      "no GPU runtime (libcudart of CUDA 12 or 13, or libamdhip64) is loaded in this process; "
      "import a torch that is built for CUDA or ROCm first");
}

std::string CudaRuntime::explain(Error error) const {
  get_last_error();
  const char* text = get_error_string(error);
  return std::string(text ? text : "unknown error") + " (error " + std::to_string(error) + ")";
}

void CudaRuntime::fail(const std::string& what, int device, Error error) const {
  throw stalloc::Error(what + " on cuda:" + std::to_string(device) + " failed: " + explain(error) +
                       ". The device reports this for any call after a kernel has crashed; if one "
                       "has, the process must be started anew.");
}

void* CudaRuntime::context_of(int device) const noexcept {
  if (!primary_context_retain || device < 0 || device >= kDevices) return nullptr;
  auto& known = contexts_[static_cast<std::size_t>(device)];
  void* context = known.load(std::memory_order_acquire);
  if (context) return context;
  // Never released: the runtime keeps it to the end of the process, too. Concurrent callers get the
  // same context.
  if (primary_context_retain(&context, device) != kSuccess) return nullptr;
  known.store(context, std::memory_order_release);
  return context;
}

bool CudaRuntime::is_in_use(int device) const noexcept {
  unsigned flags = 0;
  int active = 0;
  if (!primary_context_state) return true;
  return primary_context_state(device, &flags, &active) != kSuccess || active != 0;
}

DeviceGuard::DeviceGuard(const CudaRuntime& runtime, int device) noexcept : runtime_(runtime) {
  error_ = runtime_.get_device(&before_);
  if (error_ == CudaRuntime::kSuccess && before_ != device) {
    if (void* context = runtime_.context_of(device)) {
      error_ = runtime_.context_push(context);
      pushed_ = error_ == CudaRuntime::kSuccess;
    } else {
      error_ = runtime_.set_device(device);
      changed_ = error_ == CudaRuntime::kSuccess;
    }
  }
  if (error_ != CudaRuntime::kSuccess) runtime_.get_last_error();
}

DeviceGuard::~DeviceGuard() {
  void* popped = nullptr;
  if (pushed_) runtime_.context_pop(&popped);
  if (changed_ && runtime_.set_device(before_) != CudaRuntime::kSuccess) runtime_.get_last_error();
}

RelaxedCapture::RelaxedCapture(const CudaRuntime& runtime) noexcept : runtime_(runtime) {
  exchanged_ = runtime_.exchange_capture_mode(&mode_) == CudaRuntime::kSuccess;
  if (!exchanged_) runtime_.get_last_error();
}

RelaxedCapture::~RelaxedCapture() {
  if (!exchanged_) return;
  if (runtime_.exchange_capture_mode(&mode_) != CudaRuntime::kSuccess) runtime_.get_last_error();
}

}  // namespace stalloc::device
