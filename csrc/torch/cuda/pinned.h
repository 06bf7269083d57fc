// Pinned memory: stands in front of torch's host allocator for CUDA, and serves requests for
// page-locked memory from a plan's pool.
//
// Note [Copies]
// A copy that does not block the host still reads or writes its block when the tensor is gone.
// torch reports the stream of each such copy with record_event(). The free of the block records an
// event on each of these streams, and the block is reused once all have passed (DelayedFrees). The
// host never waits. A block that a captured copy uses is never reused: each replay uses it again.
//
// Note [Recording]
// While a profile is recorded, torch serves, and blocks get a deleter of ours. A block that copies
// use is held until they are done, and only then counts as freed: its planned lifetime ends when
// another request may have its addresses.
//
// While a graph's private pool is open, torch serves all requests. Once installed, this stays in
// front of torch's allocator, because the copies of its blocks are reported to the allocator in
// front. Never destroyed. Thread-safe; holds no lock while it calls torch's allocator.
#pragma once

#include <ATen/core/CachingHostAllocator.h>
#include <torch/headeronly/version.h>

#include <atomic>
#include <functional>
#include <map>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "device/pinned_memory.h"
#include "runtime/delayed_frees.h"
#include "runtime/device_runtime.h"

namespace stalloc::torch_adapters {

class PinnedAllocator final : public at::HostAllocator {
 public:
  PinnedAllocator(at::HostAllocator& native, runtime::DeviceRuntime& runtime,
                  device::PinnedStreams& streams);

  at::HostAllocator& to() const { return to_; }

  // Waits for the devices, so that the recording has the end of all blocks that copies used.
  void settle();

  c10::DataPtr allocate(size_t n) override;
  bool record_event(void* ptr, void* ctx, c10::Stream stream) override;
  at::HostStats get_stats() override;
  void begin_allocate_to_pool(c10::MempoolId_t pool,
                              std::function<bool(c10::Stream)> filter) override;
  void end_allocate_to_pool(c10::MempoolId_t pool) override;

  // Passed on.
  bool is_simple_data_ptr(const c10::DataPtr& p) const override {
    return to_.is_simple_data_ptr(p);
  }
  c10::DeleterFnPtr raw_deleter() const override { return to_.raw_deleter(); }
  void copy_data(void* to, const void* from, std::size_t count) const override {
    default_copy_data(to, from, count);
  }
  void empty_cache() override { to_.empty_cache(); }
  void reset_accumulated_stats() override { to_.reset_accumulated_stats(); }
  void reset_peak_stats() override { to_.reset_peak_stats(); }
  void release_pool(c10::MempoolId_t pool) override { to_.release_pool(pool); }
#if TORCH_VERSION_MINOR >= 14
  void record_history(bool enabled, c10::CachingDeviceAllocator::CreateContextFn recorder,
                      size_t entries, c10::CachingDeviceAllocator::RecordContext when,
                      bool clear) override {
    to_.record_history(enabled, recorder, entries, when, clear);
  }
  bool is_history_enabled() const override { return to_.is_history_enabled(); }
  std::vector<c10::CachingDeviceAllocator::HostSegmentInfo> get_segments() override {
    return to_.get_segments();
  }
  std::vector<c10::CachingDeviceAllocator::TraceEntry> get_traces() override {
    return to_.get_traces();
  }
  void record_external_register(void* p, size_t size) override {
    to_.record_external_register(p, size);
  }
  void record_external_unregister(void* p) override { to_.record_external_unregister(p); }
#endif

  // For fork handlers.
  void lock_for_fork() { mutex_.lock(); }
  void unlock_after_fork() { mutex_.unlock(); }

 private:
  struct Live {
    Bytes size = 0;
    bool captured = false;  // a graph copies it at each replay
  };
  using Blocks = std::map<std::uintptr_t, Live>;  // by address

  static void delete_planned(void* p);
  static void delete_recorded(void* context);
  void* serve(Bytes size);
  // The live block of ours that holds `p`, or that is `context`. The mutex is held.
  Blocks::iterator find(const void* p, const void* context);
  // The number of a stream; kNone if it cannot have one.
  StreamId number_of(device::StreamHandle handle);
  // Frees the recorded blocks whose copies are done.
  void collect();
  // Frees recorded blocks. The mutex is not held.
  void free_recorded(const std::vector<void*>& contexts);

  at::HostAllocator& to_;
  runtime::DeviceRuntime& runtime_;
  device::PinnedStreams& streams_;
  std::atomic<int> open_pools_{0};
  std::atomic<bool> waits_{false};  // recorded blocks may wait for copies
  std::mutex mutex_;                // guards the members below
  Blocks planned_;
  // Contexts of torch's blocks that have our deleter, with torch's.
  std::unordered_map<void*, c10::DeleterFnPtr> recorded_;
  runtime::DelayedFrees held_;  // of these
};

// Puts the allocator in front of torch's, for good. `device`: see DeviceRuntime::pinned. Throws
// Error if another library has replaced torch's allocator since.
void install_pinned(int device);
// See PinnedAllocator::settle().
void settle_pinned();
// Lets torch's allocator return the memory that it has cached.
void give_back_pinned();

}  // namespace stalloc::torch_adapters
