// Implements torch's CUDA allocator interface by passing every call on to another allocator. Native
// mode overrides the few calls that concern its own blocks.
//
// All differences between versions of torch are here. A virtual function with a default must be
// passed on, too: the default does nothing or throws. A test compares this file with the header of
// the installed torch.
#pragma once

#include <c10/cuda/CUDACachingAllocator.h>
#include <torch/headeronly/version.h>

#include <cstdint>
#include <memory>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

namespace stalloc::torch_adapters {

namespace allocator_api = c10::cuda::CUDACachingAllocator;

// The priority with which an allocator is registered: torch silently ignores one below that of the
// allocator before.
inline constexpr std::uint8_t kHighest = 255;

class Delegate : public allocator_api::CUDAAllocator {
 public:
  // `to` outlives this.
  explicit Delegate(allocator_api::CUDAAllocator& to) : to_(to) {}

  allocator_api::CUDAAllocator& to() const { return to_; }

  // c10::Allocator
  c10::DataPtr allocate(size_t n) override { return to_.allocate(n); }
  bool is_simple_data_ptr(const c10::DataPtr& p) const override {
    return to_.is_simple_data_ptr(p);
  }
  c10::DeleterFnPtr raw_deleter() const override { return to_.raw_deleter(); }
  void copy_data(void* dest, const void* src, std::size_t count) const override {
    to_.copy_data(dest, src, count);
  }

  // c10::DeviceAllocator
  bool initialized() override { return to_.initialized(); }
  void emptyCache(c10::MempoolId_t pool = {0, 0}) override { to_.emptyCache(pool); }
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex device) override {
    return to_.getDeviceStats(device);
  }
  void resetAccumulatedStats(c10::DeviceIndex device) override {
    to_.resetAccumulatedStats(device);
  }
  void resetPeakStats(c10::DeviceIndex device) override { to_.resetPeakStats(device); }
  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex device) override {
    return to_.getMemoryInfo(device);
  }

  // CUDAAllocator
  void* raw_alloc(size_t n) override { return to_.raw_alloc(n); }
  void* raw_alloc_with_stream(size_t n, cudaStream_t stream) override {
    return to_.raw_alloc_with_stream(n, stream);
  }
  void raw_delete(void* p) override { to_.raw_delete(p); }
  void init(int device_count) override { to_.init(device_count); }
  double getMemoryFraction(c10::DeviceIndex device) override {
    return to_.getMemoryFraction(device);
  }
  void setMemoryFraction(double fraction, c10::DeviceIndex device) override {
    to_.setMemoryFraction(fraction, device);
  }
  std::vector<allocator_api::StreamSegmentSize> getExpandableSegmentSizes(
      c10::DeviceIndex device) override {
    return to_.getExpandableSegmentSizes(device);
  }
  void enable(bool value) override { to_.enable(value); }
  bool isEnabled() const override { return to_.isEnabled(); }
  void cacheInfo(c10::DeviceIndex device, size_t* largest) override {
    to_.cacheInfo(device, largest);
  }
  void* getBaseAllocation(void* p, size_t* size) override { return to_.getBaseAllocation(p, size); }
  using allocator_api::CUDAAllocator::recordStream;
  void recordStream(const c10::DataPtr& p, c10::cuda::CUDAStream stream) override {
    to_.recordStream(p, stream);
  }
  allocator_api::SnapshotInfo snapshot(c10::MempoolId_t pool = {0, 0},
                                       bool include_traces = true) override {
    return to_.snapshot(pool, include_traces);
  }
  void beginAllocateToPool(c10::DeviceIndex device, c10::MempoolId_t pool,
                           std::function<bool(cudaStream_t)> filter) override {
    to_.beginAllocateToPool(device, pool, std::move(filter));
  }
  void endAllocateToPool(c10::DeviceIndex device, c10::MempoolId_t pool) override {
    to_.endAllocateToPool(device, pool);
  }
  void releasePool(c10::DeviceIndex device, c10::MempoolId_t pool) override {
    to_.releasePool(device, pool);
  }
  int getPoolUseCount(c10::DeviceIndex device, c10::MempoolId_t pool) override {
    return to_.getPoolUseCount(device, pool);
  }
  void createOrIncrefPool(
      c10::DeviceIndex device, c10::MempoolId_t pool,
      std::shared_ptr<allocator_api::CUDAAllocator> allocator = nullptr) override {
    to_.createOrIncrefPool(device, pool, std::move(allocator));
  }
  void setUseOnOOM(c10::DeviceIndex device, c10::MempoolId_t pool, bool use) override {
    to_.setUseOnOOM(device, pool, use);
  }
  void setNoSplit(c10::DeviceIndex device, c10::MempoolId_t pool) override {
    to_.setNoSplit(device, pool);
  }
  bool checkPoolLiveAllocations(c10::DeviceIndex device, c10::MempoolId_t pool,
                                const std::unordered_set<void*>& expected) override {
    return to_.checkPoolLiveAllocations(device, pool, expected);
  }
  allocator_api::ShareableHandle shareIpcHandle(void* p) override { return to_.shareIpcHandle(p); }
  std::shared_ptr<void> getIpcDevPtr(std::string handle) override {
    return to_.getIpcDevPtr(std::move(handle));
  }
  bool isHistoryEnabled() override { return to_.isHistoryEnabled(); }
  void recordHistory(bool enabled, allocator_api::CreateContextFn recorder, size_t entries,
                     allocator_api::RecordContext when, bool clear,
                     const std::vector<std::string>& skip) override {
    to_.recordHistory(enabled, recorder, entries, when, clear, skip);
  }
  void recordAnnotation(const std::vector<std::pair<std::string, std::string>>& md) override {
    to_.recordAnnotation(md);
  }
  void pushCompileContext(std::string& md) override { to_.pushCompileContext(md); }
  void popCompileContext() override { to_.popCompileContext(); }
  void setUserMetadata(const std::string& metadata) override { to_.setUserMetadata(metadata); }
  std::string getUserMetadata() override { return to_.getUserMetadata(); }
  void attachOutOfMemoryObserver(allocator_api::OutOfMemoryObserver observer) override {
    to_.attachOutOfMemoryObserver(std::move(observer));
  }
  void attachAllocatorTraceTracker(allocator_api::AllocatorTraceTracker tracker) override {
    to_.attachAllocatorTraceTracker(std::move(tracker));
  }
  void enablePeerAccess(c10::DeviceIndex device, c10::DeviceIndex to_access) override {
    to_.enablePeerAccess(device, to_access);
  }
  cudaError_t memcpyAsync(void* dst, int dst_device, const void* src, int src_device, size_t count,
                          cudaStream_t stream, bool p2p_enabled) override {
    return to_.memcpyAsync(dst, dst_device, src, src_device, count, stream, p2p_enabled);
  }
  std::shared_ptr<allocator_api::AllocatorState> getCheckpointState(c10::DeviceIndex device,
                                                                    c10::MempoolId_t id) override {
    return to_.getCheckpointState(device, id);
  }
  allocator_api::CheckpointDelta setCheckpointPoolState(
      c10::DeviceIndex device, std::shared_ptr<allocator_api::AllocatorState> state) override {
    return to_.setCheckpointPoolState(device, std::move(state));
  }
  std::string name() override { return to_.name(); }

#if TORCH_VERSION_MINOR >= 12
  void attachOomRejectionObserver(allocator_api::OomRejectionObserver observer) override {
    to_.attachOomRejectionObserver(std::move(observer));
  }
#endif
#if TORCH_VERSION_MINOR >= 13
  void markCaptureBegin(c10::DeviceIndex device) override { to_.markCaptureBegin(device); }
  void markCaptureEnd(c10::DeviceIndex device) override { to_.markCaptureEnd(device); }
  std::shared_ptr<c10::GatheredContext> getContextForPointer(const void* p) override {
    return to_.getContextForPointer(p);
  }
  c10::DataPtr allocateWithAddress(size_t size, void* address) override {
    return to_.allocateWithAddress(size, address);
  }
#endif
#if TORCH_VERSION_MINOR >= 14
  bool supportsUserMetadata() override { return to_.supportsUserMetadata(); }
  void annotateMemory(const void* p, const std::string& metadata) override {
    to_.annotateMemory(p, metadata);
  }
#endif

 private:
  allocator_api::CUDAAllocator& to_;
};

}  // namespace stalloc::torch_adapters
