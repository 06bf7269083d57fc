// The few functions of NVML (libnvidia-ml.so.1) that torch's allocator calls before it maps
// expandable segments and when memory has run out, and those that count devices without using them
// (PYTORCH_NVML_BASED_CUDA_CHECK=1). They report devices without NVLink that nobody uses.
#include <cstdlib>

namespace {

constexpr int kSuccess = 0;
constexpr int kNotSupported = 3;

}  // namespace

extern "C" {

int nvmlInit() { return kSuccess; }
int nvmlInit_v2() { return kSuccess; }

int nvmlDeviceGetCount_v2(int* count) {
  const char* devices = std::getenv("STANDIN_DEVICES");
  *count = devices != nullptr ? std::atoi(devices) : 1;
  return kSuccess;
}

int nvmlDeviceGetHandleByPciBusId_v2(const char*, void** device) {
  static int the_device;
  *device = &the_device;
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
