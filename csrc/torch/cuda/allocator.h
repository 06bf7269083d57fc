// Native mode: stands in front of torch's own CUDA allocator, and serves requests from the plans'
// pools where they have a place. torch's allocator is the fallback and serves all others, with its
// statistics, graphs and out-of-memory handling intact.
//
// Note [Deleters]
// A block of ours has a deleter of ours, which frees torch's blocks, too. A block of torch's
// allocator keeps torch's deleter, with two exceptions: while a profile is recorded, blocks get
// ours, so that their frees are seen, and blocks of private pools get the one that raw_deleter()
// returns, with which torch's graph trees compare theirs. That is ours, so that
// c10::Allocator::raw_deallocate() frees any block. But if there are private pools already when
// this comes in front of torch's allocator, it is torch's, which their blocks have; then
// raw_deallocate() is an error for a block of ours. (Nothing in torch calls it for CUDA; torch uses
// raw_delete().)
//
// torch's allocator ignores record_stream for a foreign deleter, so recordStream() passes it the
// block with torch's deleter. While a block with our deleter lives, this cannot be removed: it
// stays and passes every call on.
//
// Note [Captures]
// While a stream's requests belong to a private pool (a graph is captured, or a MemPool is in use),
// torch serves them: a graph uses its addresses at each replay, and no plan knows of replays. Only
// a capture keeps events from being recorded; torch tells its begin and end since version 2.13.
//
// Note [Shortages]
// torch reports that memory has run out before this can serve the request from the pool's idle
// space. So the observers that are attached here learn of it only if the pool cannot help.
//
// Never destroyed: storages keep a pointer to their allocator. Thread-safe. Holds no lock while it
// calls torch's allocator, whose own lock is held when it calls back to free memory.
#pragma once

#include <array>
#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "device/cuda_memory.h"
#include "runtime/device_runtime.h"
#include "torch/cuda/cached_blocks.h"
#include "torch/cuda/delegate.h"
#include "torch/cuda/graph_loans.h"
#include "torch/cuda/history.h"
#include "torch/cuda/shortage.h"
#include "torch/cuda/thrift.h"

namespace stalloc::torch_adapters {

class CudaAllocator final : public Delegate {
 public:
  explicit CudaAllocator(allocator_api::CUDAAllocator& native);
  // The only one. It must have been made.
  static CudaAllocator& instance() { return *instance_; }

  // With `exact`, recorded requests bypass torch's cache: each gets its own piece of the device.
  void record_exactly(bool exact) { exact_.store(exact, std::memory_order_relaxed); }
  // stalloc has turned expandable segments of torch's allocator on, or off.
  void note_expandable(bool on) {
    expands_.store(on);
    thrift_.set(on);
  }
  // Learns from a block in one of torch's expandable segments how such memory is shared.
  void note_virtual_block(void* p);
  // Calls `show` before memory is shared for which that is not known. The first one stays.
  void when_sharing_is_unknown(std::function<void()> show);
  // Follows what happened to torch's allocator while this was not in front of it: its history, and
  // a private pool that the calling thread has opened on `device`. With `hidden`, snapshots leave
  // out the memory held here: for trackers that were attached to torch's allocator before this was
  // first in front of it, and do not learn when the memory goes.
  void catch_up(c10::DeviceIndex device, bool hidden);
  // Lets the device's memory report its pieces.
  void watch(device::CudaMemory& memory);
  // Asks if torch.profiler follows memory on this thread. Called when a phase begins.
  static void look_for_profiler();
  // Lets torch's allocator give back what it caches, and tells the runtime.
  void give_back_cached(runtime::DeviceRuntime& runtime);
  // A profiler of Python starts or stops, which any phase and any thread may be in.
  static void note_profiler(bool starts);
  // Reports to a device's runtime the memory that torch's allocator holds.
  void note(c10::DeviceIndex device);
  // Eager blocks in the memory of captured graphs.
  GraphLoans& loans() { return loans_; }
  // Returns true if a block is left that only this can free, or memory history that only this has.
  bool is_needed() const;

  c10::DataPtr allocate(size_t n) override;
  void emptyCache(c10::MempoolId_t pool = {0, 0}) override;
  c10::DeleterFnPtr raw_deleter() const override;
  void* raw_alloc(size_t n) override;
  void* raw_alloc_with_stream(size_t n, cudaStream_t stream) override;
  void raw_delete(void* p) override;
  void* getBaseAllocation(void* p, size_t* size) override;
  using Delegate::recordStream;
  void recordStream(const c10::DataPtr& p, c10::cuda::CUDAStream stream) override;
  allocator_api::ShareableHandle shareIpcHandle(void* p) override;
  void enable(bool value) override;

  // The memory fraction that is set includes the pools. share_out() subtracts their current share
  // from the fraction of torch's allocator.
  void setMemoryFraction(double fraction, c10::DeviceIndex device) override;
  double getMemoryFraction(c10::DeviceIndex device) override;
  void share_out(c10::DeviceIndex device);
  // Calls share_out() if the pools' share has changed.
  void follow_share(c10::DeviceIndex device);
  // Restores the fractions of torch's allocator.
  void take_back_shares();

  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex device) override;
  void resetAccumulatedStats(c10::DeviceIndex device) override;
  void resetPeakStats(c10::DeviceIndex device) override;
  allocator_api::SnapshotInfo snapshot(c10::MempoolId_t pool = {0, 0},
                                       bool include_traces = true) override;

  void recordHistory(bool enabled, allocator_api::CreateContextFn recorder, size_t entries,
                     allocator_api::RecordContext when, bool clear,
                     const std::vector<std::string>& skip) override;
  void pushCompileContext(std::string& name) override;
  void popCompileContext() override;
  void attachAllocatorTraceTracker(allocator_api::AllocatorTraceTracker tracker) override;
  void attachOutOfMemoryObserver(allocator_api::OutOfMemoryObserver observer) override;

  void beginAllocateToPool(c10::DeviceIndex device, c10::MempoolId_t pool,
                           std::function<bool(cudaStream_t)> filter) override;
  void endAllocateToPool(c10::DeviceIndex device, c10::MempoolId_t pool) override;
  allocator_api::CheckpointDelta setCheckpointPoolState(
      c10::DeviceIndex device, std::shared_ptr<allocator_api::AllocatorState> state) override;
#if TORCH_VERSION_MINOR >= 13
  void markCaptureBegin(c10::DeviceIndex device) override;
  void markCaptureEnd(c10::DeviceIndex device) override;
  std::shared_ptr<c10::GatheredContext> getContextForPointer(const void* p) override;
  c10::DataPtr allocateWithAddress(size_t size, void* address) override;
#endif
#if TORCH_VERSION_MINOR >= 14
  void annotateMemory(const void* p, const std::string& metadata) override;
#endif

 private:
  struct Request {
    Bytes size = 0;
    c10::DeviceIndex device = 0;
    cudaStream_t stream = nullptr;
  };
  struct Direct {  // a block straight from the device
    Bytes size = 0;
    c10::DeviceIndex device = 0;
    cudaStream_t stream = nullptr;
    runtime::DeviceRuntime* runtime = nullptr;
  };
  struct Totals {  // what a device had when its accumulated statistics were reset
    runtime::JointGauges::Values allocated{};
    runtime::JointGauges::Values live{};
  };
  enum class Detour : std::uint8_t { kNone, kPrivatePool, kUncached };
  enum class Record : std::uint8_t { kLeft, kNoticed };
  struct PrivatePool {
    c10::DeviceIndex device = 0;
    c10::MempoolId_t id;
    std::function<bool(cudaStream_t)> takes;
  };

  static void delete_block(void* p);
  // `native_free` frees a block of torch's allocator.
  void free_block(void* p, c10::DeleterFnPtr native_free);
  // Replaces the deleter of a block of torch's allocator by ours.
  void adopt(c10::DataPtr& block);
  // Forgets that the deleter of a block is ours: it is free.
  void forget(void* p);
  // A block of a private pool gets the deleter that graph trees expect.
  Record of_private_pool() const { return is_standard_.load() ? Record::kNoticed : Record::kLeft; }
  // Says why torch must serve the request, if it must.
  Detour detour_of(const Request& request);
  void begin_capture(c10::DeviceIndex device);
  void end_capture(c10::DeviceIndex device);
  static StreamId stream_of(runtime::DeviceRuntime& runtime, const Request& request);
  // Returns a block from a plan's pool, or null.
  void* serve(runtime::DeviceRuntime& runtime, const Request& request);
  // Serves `request` with memory of captured graphs, or not.
  c10::DataPtr lend(const Request& request);
  // Asks torch's allocator, and again if what is kept of graphs that are gone can go.
  template <typename Native>
  void* ask_torch(Native native);
  // Serves `request` in any way. `native` asks torch's allocator; its argument says if the block is
  // recorded.
  template <typename Native>
  void* provide(const Request& request, Native native);
  runtime::JointGauges::Values held_directly(c10::DeviceIndex device) const;
  // Serves `request` with torch's allocator, else from the pool's idle space.
  template <typename Native>
  void* fall_back(runtime::DeviceRuntime& runtime, const Request& request, Native native);
  template <typename Attempt>
  void* attempt_again(c10::DeviceIndex device, Attempt attempt);
  // Serves `request` with a piece of the device of its own, else with torch's allocator.
  template <typename Native>
  void* allocate_exactly(runtime::DeviceRuntime& runtime, const Request& request, Native native);
  // Returns null if the device has no memory left.
  void* allocate_directly(runtime::DeviceRuntime& runtime, const Request& request);
  bool free_directly(void* p);
  // Reports a block that is a piece of its own to torch.profiler; `change` in bytes.
  void report_direct(c10::DeviceIndex device, void* p, Bytes change);
  // Shares a block of torch's allocator.
  allocator_api::ShareableHandle share_torchs(void* p);
  // Shares a block of a pool of virtual memory. None if that cannot be, or no handle of torch's has
  // told its format.
  std::optional<allocator_api::ShareableHandle> share_virtual(void* p, c10::DeviceIndex device);
  std::string virtual_begin() const;  // empty if no handle has told it
  // Remembers the format of torch's handles, if it is one of virtual memory.
  void note_format(const std::string& handle);
  // A block of torch's own, for as long as this lives. Throws as torch's allocator.
  using Probe = std::unique_ptr<void, std::function<void(void*)>>;
  Probe make_probe() {
    return {to().raw_alloc(1), [this](void* p) { to().raw_delete(p); }};
  }
  // Returns the piece of memory held here that contains `p`; its beginning is null if none does.
  runtime::Inspection::Piece piece_of(void* p, c10::DeviceIndex* device) const;
  // Returns the live block that begins at `p`; its beginning is null if none does.
  History::Block block_at(const void* p, bool* waits = nullptr) const;
  void add_pools(allocator_api::SnapshotInfo& info) const;
  void add_directs(allocator_api::SnapshotInfo& info) const;
  // Sets the bytes that the device's pools may hold, if there is a memory fraction.
  void limit_pools(runtime::DeviceRuntime& runtime, c10::DeviceIndex device, Bytes theirs);
  static void watch_piece(device::CudaMemory::Step step, int device, void* begin,
                          Bytes size) noexcept;
  std::vector<Shortage::Observer> observers() const;
  [[noreturn]] void throw_out_of_memory(runtime::DeviceRuntime& runtime, const Request& request,
                                        const std::string& why);

  static inline CudaAllocator* instance_ = nullptr;
  const c10::DeleterFnPtr native_deleter_;
  std::atomic<bool> exact_{false};
  std::atomic<bool> is_standard_{true};  // our deleter is raw_deleter()
  std::atomic<int> detours_{0};          // open private pools, and one while torch's cache is off
  std::atomic<bool> caches_{true};
  std::atomic<bool> hidden_{false};
  std::atomic<bool> expands_{false};
  std::atomic<bool> has_fractions_{false};
  // By device: our share of the fraction has changed, and torch's must follow.
  std::array<std::atomic<bool>, runtime::DeviceRuntime::kGpus> shares_changed_{};
  std::array<std::atomic<std::int64_t>, runtime::DeviceRuntime::kGpus> rescued_{};
  History history_;
  Thrift thrift_{to()};
  CachedBlocks cached_{to()};
  GraphLoans loans_{to()};
  mutable std::mutex mutex_;  // guards the members below
  std::vector<PrivatePool> open_pools_;
  std::map<void*, Direct> direct_;
  std::string virtual_begin_;  // of torch's handles of virtual memory; empty: not known
  std::function<void()> show_sharing_;
  std::atomic<std::size_t> directs_{0};
  std::unordered_set<void*> adopted_;  // live blocks of torch's allocator with our deleter
  std::atomic<std::size_t> adopted_count_{0};
  std::unordered_map<int, runtime::JointGauges::Values> direct_totals_;  // by device
  std::unordered_map<int, Totals> reset_totals_;                         // by device
  std::unordered_map<int, double> fractions_;                            // asked for, by device
  std::vector<Shortage::Observer> observers_;
};

}  // namespace stalloc::torch_adapters
