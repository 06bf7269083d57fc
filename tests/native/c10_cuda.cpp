// A stand-in for torch's library for CUDA, libc10_cuda.so, which a CPU build of torch lacks: the
// functions that native mode calls, and an allocator in the place of torch's that asks the device
// for each block. With it, and with tests/standin in the place of CUDA's runtime library, native
// mode's module runs beside a CPU build of torch. smoke.py loads it, and asks for blocks by the
// functions at the end.
//
// One device; the current stream of a thread is the default stream.
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace c10 {
C10_DEFINE_REGISTRY(FreeCudaMemoryCallbacksRegistry, FreeMemoryCallback)
}  // namespace c10

namespace c10::cuda {

// Must succeed, as in torch.
void c10_cuda_check_implementation(const int32_t error, const char* file, const char* function,
                                   const uint32_t line, const bool) {
  if (error == cudaSuccess) return;
  const std::string what = cudaGetErrorString(static_cast<cudaError_t>(error));
  throw Error({function, file, line}, "CUDA error: " + what);
}

DeviceIndex device_count() noexcept { return 1; }
DeviceIndex current_device() { return 0; }
bool hasPrimaryContext(DeviceIndex device) { return device == 0; }
cudaError_t GetDevice(DeviceIndex* device) {
  *device = 0;
  return cudaSuccess;
}
cudaError_t SetDevice(DeviceIndex, const bool) { return cudaSuccess; }
cudaError_t MaybeSetDevice(DeviceIndex) { return cudaSuccess; }
DeviceIndex ExchangeDevice(DeviceIndex) { return 0; }

bool CUDAStream::query() const { return true; }
void CUDAStream::synchronize() const { C10_CUDA_CHECK(cudaDeviceSynchronize()); }
cudaStream_t CUDAStream::stream() const { return nullptr; }

CUDAStream getDefaultCUDAStream(DeviceIndex) {
  return CUDAStream(Stream(Stream::DEFAULT, Device(DeviceType::CUDA, 0)));
}
CUDAStream getCurrentCUDAStream(DeviceIndex device) { return getDefaultCUDAStream(device); }
CUDAStream getStreamFromPool(const bool, DeviceIndex device) {
  return getDefaultCUDAStream(device);
}
CUDAStream getStreamFromPool(const int, DeviceIndex device) { return getDefaultCUDAStream(device); }
void setCurrentCUDAStream(CUDAStream) {}

namespace CUDACachingAllocator {
namespace {

class Plain final : public CUDAAllocator {
 public:
  DataPtr allocate(size_t n) override {
    void* p = raw_alloc(n);
    return {p, p, raw_deleter(), Device(DeviceType::CUDA, 0)};
  }
  DeleterFnPtr raw_deleter() const override { return &delete_block; }
  void copy_data(void*, const void*, std::size_t) const override {}
  void* raw_alloc(size_t n) override {
    void* p = nullptr;
    const cudaError_t error = cudaMalloc(&p, n);
    TORCH_CHECK_WITH(OutOfMemoryError, error == cudaSuccess, "CUDA out of memory.");
    const std::lock_guard lock(mutex_);
    blocks_[p] = n;
    return p;
  }
  void* raw_alloc_with_stream(size_t n, cudaStream_t) override { return raw_alloc(n); }
  void raw_delete(void* p) override {
    {
      const std::lock_guard lock(mutex_);
      TORCH_CHECK(blocks_.erase(p) == 1, "invalid device pointer: ", p);
    }
    C10_CUDA_CHECK(cudaFree(p));
  }

  CachingDeviceAllocator::DeviceStats getDeviceStats(DeviceIndex) override {
    CachingDeviceAllocator::DeviceStats stats;
    const std::lock_guard lock(mutex_);
    for (const auto& [p, n] : blocks_) {
      for (auto* counts : {&stats.allocation, &stats.active, &stats.segment}) {
        (*counts)[0].current += 1;
      }
      for (auto* bytes : {&stats.allocated_bytes, &stats.active_bytes, &stats.reserved_bytes,
                          &stats.requested_bytes}) {
        (*bytes)[0].current += static_cast<int64_t>(n);
      }
    }
    return stats;
  }
  bool initialized() override { return true; }
  std::string name() override { return "native"; }
  double getMemoryFraction(DeviceIndex) override { return 1; }
  void* getBaseAllocation(void* p, size_t*) override { return p; }
  bool isEnabled() const override { return true; }
  bool isHistoryEnabled() override { return false; }

  void init(int) override {}
  void emptyCache(MempoolId_t) override {}
  void recordStream(const DataPtr&, CUDAStream) override {}
  void resetAccumulatedStats(DeviceIndex) override {}
  void resetPeakStats(DeviceIndex) override {}
  void setMemoryFraction(double, DeviceIndex) override {}
  std::vector<StreamSegmentSize> getExpandableSegmentSizes(DeviceIndex) override { return {}; }
  void enable(bool) override {}
  void cacheInfo(DeviceIndex, size_t*) override {}
  SnapshotInfo snapshot(MempoolId_t, bool) override { return {}; }
  void beginAllocateToPool(DeviceIndex, MempoolId_t, std::function<bool(cudaStream_t)>) override {}
  void endAllocateToPool(DeviceIndex, MempoolId_t) override {}
  void releasePool(DeviceIndex, MempoolId_t) override {}
  ShareableHandle shareIpcHandle(void*) override { return {}; }
  std::shared_ptr<void> getIpcDevPtr(std::string) override { return {}; }
  void recordHistory(bool, CreateContextFn, size_t, RecordContext, bool,
                     const std::vector<std::string>&) override {}
  void attachOutOfMemoryObserver(OutOfMemoryObserver) override {}
  void attachOomRejectionObserver(OomRejectionObserver) override {}
  void attachAllocatorTraceTracker(AllocatorTraceTracker) override {}
  void enablePeerAccess(DeviceIndex, DeviceIndex) override {}
  cudaError_t memcpyAsync(void*, int, const void*, int, size_t, cudaStream_t, bool) override {
    return cudaSuccess;
  }
  std::shared_ptr<AllocatorState> getCheckpointState(DeviceIndex, MempoolId_t) override {
    return {};
  }
  CheckpointDelta setCheckpointPoolState(DeviceIndex, std::shared_ptr<AllocatorState>) override {
    return {};
  }

 private:
  static void delete_block(void* p);

  std::mutex mutex_;
  std::map<void*, size_t> blocks_;
};

Plain plain;
void Plain::delete_block(void* p) { plain.raw_delete(p); }

}  // namespace

std::atomic<CUDAAllocator*> allocator{&plain};

}  // namespace CUDACachingAllocator
}  // namespace c10::cuda

namespace {

std::map<void*, c10::DataPtr>& tensors() {
  static auto& all = *new std::map<void*, c10::DataPtr>();
  return all;
}

}  // namespace

// Asks for a block as a tensor does; null if memory has run out.
extern "C" void* smoke_allocate(std::size_t size) {
  try {
    c10::DataPtr block = c10::cuda::CUDACachingAllocator::get()->allocate(size);
    void* p = block.get();
    tensors()[p] = std::move(block);
    return p;
  } catch (const c10::OutOfMemoryError&) {
    return nullptr;
  }
}
extern "C" void smoke_free(void* p) { tensors().erase(p); }
// The bytes that torch.cuda.memory_reserved() would return.
extern "C" std::int64_t smoke_reserved() {
  return c10::cuda::CUDACachingAllocator::get()->getDeviceStats(0).reserved_bytes[0].current;
}
// The bytes of the pools that a snapshot shows.
extern "C" std::size_t smoke_shown() {
  std::size_t total = 0;
  for (const auto& segment : c10::cuda::CUDACachingAllocator::get()->snapshot().segments) {
    total += segment.total_size;
  }
  return total;
}
