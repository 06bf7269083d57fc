// Memory history of blocks and pieces of memory that torch's allocator does not know: the trace and
// the stacks that torch.cuda.memory._record_memory_history() asks for, and the trackers of
// libraries that follow each piece, as NCCL's registration does.
//
// torch's allocator keeps the history of its own blocks. add_to() merges both.
//
// Note [Stacks]
// Collecting a stack may take the GIL. So no lock is held meanwhile, and pieces of memory, which
// come and go under the runtime's lock, have no stack. An entry for a new block is recorded after
// the block is taken, and one for a free before the free. So entries for one address are in order.
//
// Thread-safe. Calls the runtime only in finish_frees(), without its own lock.
#pragma once

#include <c10/cuda/CUDACachingAllocator.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "runtime/device_runtime.h"

namespace stalloc::torch_adapters {

class History {
 public:
  using Entry = c10::CachingDeviceAllocator::TraceEntry;
  using Context = std::shared_ptr<c10::GatheredContext>;
  using Level = c10::CachingDeviceAllocator::RecordContext;
  using Tracker = c10::CachingDeviceAllocator::AllocatorTraceTracker;

  // `metadata` returns the calling thread's label for entries.
  explicit History(std::function<std::string()> metadata) : metadata_(std::move(metadata)) {}

  // True if blocks must be reported.
  bool follows() const { return follows_.load(std::memory_order_relaxed); }

  // True if entries are kept that torch's allocator does not have.
  bool has_entries() const;

  // The arguments of torch's recordHistory(), which it has accepted.
  struct Settings {
    bool enabled = false;
    c10::CachingDeviceAllocator::CreateContextFn recorder = nullptr;
    std::size_t entries = 1;
    Level when = Level::NEVER;
  };
  void configure(const Settings& settings, bool clear, const std::vector<std::string>& skip);
  // Follows torch's history if that was begun or ended while this was not told. The settings are
  // unknown then: all entries are kept, with stacks of Python.
  void catch_up(bool enabled);
  void attach(Tracker tracker);

  struct Block {
    c10::DeviceIndex device = 0;
    void* begin = nullptr;
    Bytes size = 0;  // as asked for
    Bytes rounded = 0;
    void* stream = nullptr;
  };
  void took(const Block& block);
  // `waits`: the block keeps its addresses until other streams are done.
  void frees(const Block& block, bool waits);
  void annotated(const Block& block, const std::string& metadata);
  // Memory that is held, or goes. Any thread, with any lock but this object's.
  void piece(Entry::Action action, c10::DeviceIndex device, void* begin, Bytes size) noexcept;
  // Leaves out torch's entry for a request of the last moments that failed there, since `from`, and
  // was served here.
  void forgive(c10::DeviceIndex device, c10::approx_time_t from);

  // The stack at which the live block was taken; null if unknown.
  Context context_of(const void* begin) const;

  // Records that blocks are free which wait no longer.
  void finish_frees();
  // Merges the entries into torch's, which are in order.
  void add_to(std::vector<std::vector<Entry>>& traces);

  static void push_compile_context(const std::string& name);
  static void pop_compile_context();

 private:
  struct Pardon {
    c10::DeviceIndex device = 0;
    c10::approx_time_t from = 0;
    c10::approx_time_t to = 0;
  };

  Context gather(Level level) const;
  // The lock is held. Returns the entry for the trackers.
  Entry keep(Entry::Action action, const Block& block, const Context& context,
             const std::string& metadata);
  void finish_frees_at(const Block& block, std::vector<Entry>& entries);
  void tell(const std::vector<Entry>& entries) const;
  void update();

  const std::function<std::string()> metadata_;
  c10::ApproximateClockToUnixTimeConverter clock_;
  std::atomic<bool> follows_{false};
  std::atomic<c10::CachingDeviceAllocator::CreateContextFn> recorder_{nullptr};
  std::atomic<Level> when_{Level::NEVER};
  mutable std::mutex mutex_;  // guards the members below
  bool enabled_ = false;
  std::size_t most_ = 1;
  std::unordered_set<int> skipped_;  // actions
  std::array<std::deque<Entry>, runtime::DeviceRuntime::kGpus> entries_;
  std::unordered_map<const void*, Context> contexts_;  // of live blocks
  std::map<void*, Block> waiting_;                     // freed; other streams use them
  std::vector<Pardon> pardons_;
  std::shared_ptr<const std::vector<Tracker>> trackers_ =
      std::make_shared<const std::vector<Tracker>>();
};

}  // namespace stalloc::torch_adapters
