// HIP's names for the functions that stalloc calls: its runtime is CUDA's with another prefix.
#include <cstddef>
#include <cstdint>

#include "cudart.h"

namespace {

template <typename... Arguments>
int driver(const char* name, Arguments... arguments) {
  void* function = nullptr;
  if (const int error = cudaGetDriverEntryPointByVersion(name, &function, 12000, 0, nullptr)) {
    return error;
  }
  return reinterpret_cast<int (*)(Arguments...)>(function)(arguments...);
}

}  // namespace

extern "C" {

const char* cudaGetErrorString(int error);

int hipGetDeviceCount(int* count) { return cudaGetDeviceCount(count); }
int hipGetDevice(int* device) { return cudaGetDevice(device); }
int hipSetDevice(int device) { return cudaSetDevice(device); }
int hipDeviceSynchronize() { return cudaDeviceSynchronize(); }
int hipMalloc(void** p, std::size_t size) { return cudaMalloc(p, size); }
int hipFree(void* p) { return cudaFree(p); }
int hipMemGetInfo(std::size_t* free, std::size_t* total) { return cudaMemGetInfo(free, total); }
int hipGetLastError() { return cudaGetLastError(); }
const char* hipGetErrorString(int error) { return cudaGetErrorString(error); }
int hipEventCreateWithFlags(void** event, unsigned flags) {
  return cudaEventCreateWithFlags(event, flags);
}
int hipEventDestroy(void* event) { return cudaEventDestroy(event); }
int hipEventRecord(void* event, void* stream) { return cudaEventRecord(event, stream); }
int hipEventQuery(void* event) { return cudaEventQuery(event); }
int hipStreamWaitEvent(void* stream, void* event, unsigned flags) {
  return cudaStreamWaitEvent(stream, event, flags);
}
int hipStreamIsCapturing(void* stream, int* status) {
  return cudaStreamIsCapturing(stream, status);
}
int hipThreadExchangeStreamCaptureMode(int* mode) {
  return cudaThreadExchangeStreamCaptureMode(mode);
}

int hipMemAddressReserve(std::uintptr_t* p, std::size_t size, std::size_t alignment,
                         std::uintptr_t hint, unsigned long long flags) {
  return driver("cuMemAddressReserve", p, size, alignment, hint, flags);
}
int hipMemAddressFree(std::uintptr_t p, std::size_t size) {
  return driver("cuMemAddressFree", p, size);
}
int hipMemCreate(std::uint64_t* handle, std::size_t size, const void* properties,
                 unsigned long long flags) {
  return driver("cuMemCreate", handle, size, properties, flags);
}
int hipMemRelease(std::uint64_t handle) { return driver("cuMemRelease", handle); }
int hipMemMap(std::uintptr_t p, std::size_t size, std::size_t offset, std::uint64_t handle,
              unsigned long long flags) {
  return driver("cuMemMap", p, size, offset, handle, flags);
}
int hipMemUnmap(std::uintptr_t p, std::size_t size) { return driver("cuMemUnmap", p, size); }
int hipMemSetAccess(std::uintptr_t p, std::size_t size, const void* access, std::size_t count) {
  return driver("cuMemSetAccess", p, size, access, count);
}
int hipMemGetAllocationGranularity(std::size_t* granularity, const void* properties, int option) {
  return driver("cuMemGetAllocationGranularity", granularity, properties, option);
}

}  // extern "C"
