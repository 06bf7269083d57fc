// Matrix products that do nothing: the functions of cuBLAS that torch's training calls. The library
// is preloaded, so these are found before those of the real one, which needs a device.
//
// No work is submitted to a stream: the memory tests would not see it.
#include <cstddef>

namespace {

constexpr int kSuccess = 0;
int anything;  // what handles point at

int make(void** handle) {
  *handle = &anything;
  return kSuccess;
}

}  // namespace

extern "C" {

int cublasCreate_v2(void** handle) { return make(handle); }
int cublasDestroy_v2(void*) { return kSuccess; }
int cublasSetStream_v2(void*, void*) { return kSuccess; }
int cublasSetWorkspace_v2(void*, void*, std::size_t) { return kSuccess; }
int cublasSetMathMode(void*, int) { return kSuccess; }
int cublasGetMathMode(void*, int* mode) {
  *mode = 0;
  return kSuccess;
}
int cublasSetPointerMode_v2(void*, int) { return kSuccess; }
int cublasGetPointerMode_v2(void*, int* mode) {
  *mode = 0;
  return kSuccess;
}

int cublasLtMatmulDescCreate(void** handle, int, int) { return make(handle); }
int cublasLtMatmulDescDestroy(void*) { return kSuccess; }
int cublasLtMatmulDescSetAttribute(void*, int, const void*, std::size_t) { return kSuccess; }
int cublasLtMatrixLayoutCreate(void** handle, int, unsigned long, unsigned long, long) {
  return make(handle);
}
int cublasLtMatrixLayoutDestroy(void*) { return kSuccess; }
int cublasLtMatrixLayoutSetAttribute(void*, int, const void*, std::size_t) { return kSuccess; }
int cublasLtMatmulPreferenceCreate(void** handle) { return make(handle); }
int cublasLtMatmulPreferenceDestroy(void*) { return kSuccess; }
int cublasLtMatmulPreferenceSetAttribute(void*, int, const void*, std::size_t) { return kSuccess; }
int cublasLtMatmulAlgoGetHeuristic(void*, void*, void*, void*, void*, void*, void*, int, void*,
                                   int* found) {
  *found = 1;
  return kSuccess;
}

// The products themselves. They take any arguments and ignore them.
int cublasLtMatmul() { return kSuccess; }
int cublasSgemm_v2() { return kSuccess; }
int cublasDgemm_v2() { return kSuccess; }
int cublasSgemmEx() { return kSuccess; }
int cublasGemmEx() { return kSuccess; }
int cublasGemmStridedBatchedEx() { return kSuccess; }
int cublasSgemmStridedBatched() { return kSuccess; }
int cublasDgemmStridedBatched() { return kSuccess; }
int cublasSgemv_v2() { return kSuccess; }
int cublasSdot_v2() { return kSuccess; }
int cublasDotEx() { return kSuccess; }

}  // extern "C"
