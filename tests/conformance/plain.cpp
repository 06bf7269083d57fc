// A plain pluggable allocator, as in torch's documentation: every request is one of the driver's.
#include <sys/types.h>

extern "C" {

int cudaMalloc(void** address, size_t bytes);
int cudaFree(void* address);

void* plain_malloc(ssize_t bytes, int /*device*/, void* /*stream*/) {
  void* address = nullptr;
  cudaMalloc(&address, static_cast<size_t>(bytes));
  return address;
}

void plain_free(void* address, ssize_t /*bytes*/, int /*device*/, void* /*stream*/) {
  cudaFree(address);
}

}  // extern "C"
