// The few functions of NVML (libnvidia-ml.so.1) that torch's allocator calls before it maps
// expandable segments and when memory has run out. They report a device without NVLink that nobody
// uses.
namespace {

constexpr int kSuccess = 0;
constexpr int kNotSupported = 3;

}  // namespace

extern "C" {

int nvmlInit_v2() { return kSuccess; }

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
