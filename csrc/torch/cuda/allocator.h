// Native mode: stands in front of torch's own CUDA allocator, and serves from plans' pools what
// they have a place for. All else is that allocator's, which so is the fallback, with its
// statistics, graphs and out-of-memory handling intact.
//
// Note [Deleters]
// A block of ours has a deleter of ours; a block of torch's allocator keeps its own, and
// raw_deleter() says that one. torch's graph trees compare with it, and take over by it what they
// have had from before this was in place. (The price: c10::Allocator::raw_deallocate() is an error
// for a block of ours. Nothing in torch calls it for CUDA; raw_delete() is what there is.) Only
// while a profile is recorded do blocks of torch's allocator get our deleter, so that their end is
// noticed; those of private pools never do. Torch's allocator ignores record_stream for a deleter
// that is not its own unless it is told otherwise, which is done here. As long as a block with our
// deleter is left this cannot be taken out again: it stays and passes all on.
//
// Note [Captures]
// While the requests of a stream belong to a private pool (a graph is captured, or a MemPool is in
// use), they are torch's: a graph keeps using its addresses when it is replayed, which no plan
// knows of.
//
// Never destroyed: storages keep a pointer to their allocator. Thread-safe. Holds no lock while it
// calls torch's allocator, whose own lock is held when it calls back to free memory.
#pragma once

#include <atomic>
#include <functional>
#include <mutex>
#include <unordered_map>
#include <utility>
#include <vector>

#include "runtime/device_runtime.h"
#include "torch/cuda/delegate.h"

namespace stalloc::torch_adapters {

class CudaAllocator final : public Delegate {
 public:
  explicit CudaAllocator(allocator_api::CUDAAllocator& native)
      : Delegate(native), native_deleter_(native.raw_deleter()) {
    instance_ = this;
  }
  // The only one. It must have been made.
  static CudaAllocator& instance() { return *instance_; }

  // Requests that are recorded bypass torch's cache: each has a piece of its own from the device.
  void record_exactly(bool exact) { exact_.store(exact, std::memory_order_relaxed); }
  // Finds out whether torch.profiler follows memory on this thread. To be called when phases begin.
  static void look_for_profiler();
  // Tells a device's runtime what torch's allocator holds.
  void note(c10::DeviceIndex device);
  // Whether a block is left that only this can free.
  bool has_blocks() const;

  c10::DataPtr allocate(size_t n) override;
  void* raw_alloc(size_t n) override;
  void* raw_alloc_with_stream(size_t n, cudaStream_t stream) override;
  void raw_delete(void* p) override;
  void* getBaseAllocation(void* p, size_t* size) override;
  using Delegate::recordStream;
  void recordStream(const c10::DataPtr& p, c10::cuda::CUDAStream stream) override;
  allocator_api::ShareableHandle shareIpcHandle(void* p) override;

  // The pools' share of what is allowed is taken off that of torch's allocator, as it is when
  // share_out() is called.
  void setMemoryFraction(double fraction, c10::DeviceIndex device) override;
  double getMemoryFraction(c10::DeviceIndex device) override;
  void share_out(c10::DeviceIndex device);
  // As it was before.
  void take_back_shares();

  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex device) override;
  void resetAccumulatedStats(c10::DeviceIndex device) override;
  void resetPeakStats(c10::DeviceIndex device) override;
  allocator_api::SnapshotInfo snapshot(c10::MempoolId_t pool = {0, 0},
                                       bool include_traces = true) override;

  void beginAllocateToPool(c10::DeviceIndex device, c10::MempoolId_t pool,
                           std::function<bool(cudaStream_t)> filter) override;
  void endAllocateToPool(c10::DeviceIndex device, c10::MempoolId_t pool) override;

 private:
  struct Request {
    Bytes size = 0;
    c10::DeviceIndex device = 0;
    cudaStream_t stream = nullptr;
  };
  struct Direct {  // a block straight from the device
    Bytes size = 0;
    runtime::DeviceRuntime* runtime = nullptr;
  };
  enum class Record : std::uint8_t { kLeft, kNoticed };
  struct PrivatePool {
    c10::DeviceIndex device = 0;
    c10::MempoolId_t id;
    std::function<bool(cudaStream_t)> takes;
  };

  static void delete_block(void* p);
  void free_block(void* p, c10::DeleterFnPtr native_free);
  // Gives a block of torch's allocator our deleter.
  void adopt(c10::DataPtr& block);
  bool goes_to_private_pool(const Request& request);
  // A block from a plan's pool, or null.
  void* serve(runtime::DeviceRuntime& runtime, const Request& request);
  // A block of `request` by whatever way; `native` asks torch's allocator, and is told whether the
  // block is recorded.
  template <typename Native>
  void* provide(const Request& request, Native native);
  runtime::JointGauges::Values held_directly(c10::DeviceIndex device) const;
  void* allocate_directly(runtime::DeviceRuntime& runtime, Bytes size);
  bool free_directly(void* p);
  [[noreturn]] void throw_out_of_memory(runtime::DeviceRuntime& runtime, const Request& request,
                                        const std::string& why);

  static inline CudaAllocator* instance_ = nullptr;
  const c10::DeleterFnPtr native_deleter_;
  std::atomic<bool> exact_{false};
  std::atomic<std::int64_t> adopted_{0};  // live blocks of torch's allocator with our deleter
  std::atomic<int> private_pools_{0};
  mutable std::mutex mutex_;  // of all below
  std::vector<PrivatePool> open_pools_;
  std::unordered_map<void*, Direct> direct_;
  std::atomic<std::size_t> directs_{0};
  std::unordered_map<int, runtime::JointGauges::Values> reset_totals_;  // by device
  std::unordered_map<int, double> fractions_;                           // asked for, by device
};

}  // namespace stalloc::torch_adapters
