// The few functions of NVML (libnvidia-ml.so.1) that torch's allocator calls before it maps
// expandable segments and when memory has run out, those that count devices without using them
// (PYTORCH_NVML_BASED_CUDA_CHECK=1), and those of torch.cuda.device_memory_used(). They report
// devices without NVLink, and no processes.
#include <dlfcn.h>

#include <cstdint>
#include <cstdlib>

namespace {

constexpr int kSuccess = 0;
constexpr int kInvalidArgument = 2;
constexpr int kNotSupported = 3;

int count_devices() {
  const char* devices = std::getenv("STANDIN_DEVICES");
  return devices != nullptr ? std::atoi(devices) : 1;
}

// A device's handle is its number from 1.
void* handle_of(int device) { return reinterpret_cast<void*>(std::intptr_t{device} + 1); }

struct Memory {
  unsigned long long total, free, used;
};

}  // namespace

extern "C" {

int nvmlInit() { return kSuccess; }
int nvmlInit_v2() { return kSuccess; }
int nvmlInitWithFlags(unsigned) { return kSuccess; }
int nvmlShutdown() { return kSuccess; }

int nvmlDeviceGetCount_v2(int* count) {
  *count = count_devices();
  return kSuccess;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void** device) {
  if (index >= static_cast<unsigned>(count_devices())) return kInvalidArgument;
  *device = handle_of(static_cast<int>(index));
  return kSuccess;
}

// The number in the middle of "0000:01:00.0", as cudaDeviceGetPCIBusId gives it.
int nvmlDeviceGetHandleByPciBusId_v2(const char* id, void** device) {
  *device = handle_of(static_cast<int>(std::strtol(id + 5, nullptr, 16)) - 1);
  return kSuccess;
}

// The stand-in for the runtime has been loaded before.
int nvmlDeviceGetMemoryInfo(void* device, Memory* memory) {
  using Bytes = std::uint64_t(int);
  const int number = static_cast<int>(reinterpret_cast<std::intptr_t>(device)) - 1;
  auto* used = reinterpret_cast<Bytes*>(dlsym(RTLD_DEFAULT, "standin_used"));
  auto* capacity = reinterpret_cast<Bytes*>(dlsym(RTLD_DEFAULT, "standin_capacity"));
  if (!used || !capacity) return kNotSupported;
  memory->total = capacity(number);
  memory->used = used(number);
  memory->free = memory->total - memory->used;
  return kSuccess;
}

int nvmlDeviceGetNvLinkRemoteDeviceType(void*, unsigned, int*) { return kNotSupported; }
int nvmlDeviceGetNvLinkRemotePciInfo_v2(void*, unsigned, void*) { return kNotSupported; }
int nvmlDeviceGetComputeRunningProcesses(void*, unsigned* count, void*) {
  *count = 0;
  return kSuccess;
}
int nvmlDeviceGetGpuFabricInfoV(void*, void*) { return kNotSupported; }
int nvmlSystemGetCudaDriverVersion_v2(int*) { return kNotSupported; }

}  // extern "C"
