// A driver library that is there, and can do nothing. torch opens it when CUDA is initialised, for
// the kernels that it compiles at run time, of which there are none here.
#include <cstddef>

namespace {

constexpr int kSuccess = 0;
constexpr int kNotSupported = 801;

}  // namespace

extern "C" {

int cuInit(unsigned) { return kSuccess; }
int cuDriverGetVersion(int* version) {
  *version = 13000;
  return kSuccess;
}
int cuDeviceGet(int* device, int ordinal) {
  *device = ordinal;
  return kSuccess;
}
int cuDevicePrimaryCtxGetState(int, unsigned* flags, int* active) {
  *flags = 0;
  *active = 1;
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

// Of any arguments, which they leave alone.
int cuCtxSetCurrent() { return kSuccess; }
int cuDeviceGetAttribute() { return kNotSupported; }
int cuDevicePrimaryCtxRetain() { return kNotSupported; }
int cuFuncGetAttribute() { return kNotSupported; }
int cuFuncSetAttribute() { return kNotSupported; }
int cuFuncSetCacheConfig() { return kNotSupported; }
int cuLaunchCooperativeKernel() { return kNotSupported; }
int cuLaunchKernel() { return kNotSupported; }
int cuLinkAddData_v2() { return kNotSupported; }
int cuLinkComplete() { return kNotSupported; }
int cuLinkCreate_v2() { return kNotSupported; }
int cuModuleGetFunction() { return kNotSupported; }
int cuModuleLoad() { return kNotSupported; }
int cuModuleLoadData() { return kNotSupported; }
int cuModuleLoadDataEx() { return kNotSupported; }
int cuModuleUnload() { return kNotSupported; }
int cuOccupancyMaxActiveBlocksPerMultiprocessor() { return kNotSupported; }
int cuPointerGetAttribute() { return kNotSupported; }
int cuTensorMapEncodeTiled() { return kNotSupported; }

}  // extern "C"
