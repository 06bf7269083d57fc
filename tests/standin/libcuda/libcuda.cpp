// A driver library whose kernels do nothing. torch opens it for kernels that it compiles at run
// time. Triton opens it to load and launch the kernels of torch.compile. torch_memory_saver is
// linked with it for virtual memory, which the stand-in for the runtime has.
#include <dlfcn.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace {

constexpr int kSuccess = 0;
constexpr int kNotSupported = 801;
int anything;  // what handles point at

int make(void** handle) {
  *handle = &anything;
  return kSuccess;
}

// Finds a function of the stand-in for the runtime, which has been loaded before.
template <typename Function>
Function* runtime(const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_DEFAULT, name));
}

int launch(void* stream) {
  const auto submit = runtime<int(void*)>("standin_submit");
  return submit ? submit(stream) : kNotSupported;
}

// Calls a function of the driver that the stand-in for the runtime has.
template <typename... Arguments>
int forward(const char* name, Arguments... arguments) {
  using Find = int(const char*, void**, unsigned, unsigned long long, int*);
  const auto find = runtime<Find>("cudaGetDriverEntryPointByVersion");
  void* function = nullptr;
  int status = 0;
  if (!find || find(name, &function, 0, 0, &status) != kSuccess || !function) return kNotSupported;
  return reinterpret_cast<int (*)(Arguments...)>(function)(arguments...);
}

}  // namespace

extern "C" {

int cuMemAddressReserve(std::uint64_t* p, std::size_t size, std::size_t alignment, std::uint64_t at,
                        unsigned long long flags) {
  return forward("cuMemAddressReserve", p, size, alignment, at, flags);
}
int cuMemAddressFree(std::uint64_t p, std::size_t size) {
  return forward("cuMemAddressFree", p, size);
}
int cuMemCreate(std::uint64_t* handle, std::size_t size, const void* properties,
                unsigned long long flags) {
  return forward("cuMemCreate", handle, size, properties, flags);
}
int cuMemRelease(std::uint64_t handle) { return forward("cuMemRelease", handle); }
int cuMemMap(std::uint64_t p, std::size_t size, std::size_t offset, std::uint64_t handle,
             unsigned long long flags) {
  return forward("cuMemMap", p, size, offset, handle, flags);
}
int cuMemUnmap(std::uint64_t p, std::size_t size) { return forward("cuMemUnmap", p, size); }
int cuMemSetAccess(std::uint64_t p, std::size_t size, const void* access, std::size_t count) {
  return forward("cuMemSetAccess", p, size, access, count);
}
int cuMemGetAllocationGranularity(std::size_t* size, const void* properties, int option) {
  return forward("cuMemGetAllocationGranularity", size, properties, option);
}

int cuInit(unsigned) { return kSuccess; }
int cuDriverGetVersion(int* version) {
  *version = 13000;
  return kSuccess;
}
int cuDeviceGet(int* device, int ordinal) {
  *device = ordinal;
  return kSuccess;
}
int cuDevicePrimaryCtxGetState(int device, unsigned* flags, int* active) {
  const auto has = runtime<int(int)>("standin_has_context");
  *flags = 0;
  *active = has ? has(device) : 0;
  return kSuccess;
}
int cuGetErrorString(int, const char** text) {
  *text = "the stand-in for CUDA's driver runs no kernels";
  return kSuccess;
}
int cuGetErrorName(int, const char** text) {
  *text = "CUDA_ERROR_NOT_SUPPORTED";
  return kSuccess;
}
int cuCtxGetCurrent(void** context) {
  *context = reinterpret_cast<void*>(std::size_t{7} << 60);
  return kSuccess;
}
int cuCtxGetDevice(int* device) {
  const auto get = runtime<int(int*)>("cudaGetDevice");
  return get ? get(device) : kNotSupported;
}
int cuDeviceGetAttribute(int* value, int attribute, int device) {
  const auto get = runtime<int(int*, int, int)>("cudaDeviceGetAttribute");
  return get ? get(value, attribute, device) : kNotSupported;
}
int cuDevicePrimaryCtxRetain(void** context, int) { return cuCtxGetCurrent(context); }
int cuModuleLoad(void** module, const char*) { return make(module); }
int cuModuleLoadData(void** module, const void*) { return make(module); }
int cuModuleLoadDataEx(void** module, const void*) { return make(module); }
int cuModuleGetFunction(void** function, void*, const char*) { return make(function); }
int cuPointerGetAttribute(void* value, int attribute, std::uintptr_t p) {
  constexpr int kDevicePointer = 3;
  if (attribute != kDevicePointer) return kNotSupported;
  std::memcpy(value, &p, sizeof p);
  return kSuccess;
}
int cuLaunchKernel(void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                   void* stream, void**, void**) {
  return launch(stream);
}
struct LaunchConfig {
  unsigned grid[3];
  unsigned block[3];
  unsigned shared;
  void* stream;
};
int cuLaunchKernelEx(const LaunchConfig* config, void*, void**, void**) {
  return launch(config->stream);
}
int cuFuncGetAttribute(int* value, int attribute, void*) {
  constexpr int kThreadsOfABlock = 0;
  *value = attribute == kThreadsOfABlock ? 1024 : 0;
  return kSuccess;
}

// These functions take any arguments and ignore them.
int cuCtxSetCurrent() { return kSuccess; }
int cuCtxGetLimit() { return kNotSupported; }
int cuCtxSetLimit() { return kNotSupported; }
int cuFuncSetAttribute() { return kSuccess; }
int cuFuncSetCacheConfig() { return kSuccess; }
int cuLinkAddData_v2() { return kNotSupported; }
int cuLinkComplete() { return kNotSupported; }
int cuLinkCreate_v2() { return kNotSupported; }

int cuModuleUnload() { return kSuccess; }
int cuOccupancyMaxActiveBlocksPerMultiprocessor() { return kNotSupported; }
int cuTensorMapEncodeTiled() { return kNotSupported; }

}  // extern "C"
