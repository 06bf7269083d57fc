// Records every allocation and free of a profiled run (section 4 of the paper).
//
// A request costs one 64-byte record in a chunked array, plus an entry in a hash table while it
// lives. The clock is the count of events, so recording is as deterministic as the run.
//
// Module hooks see only the forward, so they do not tell the layers of backward requests. Instead
// each call of a module is tagged with the autograd sequence numbers of its nodes: a request made
// while a node runs belongs to the module with the node's number. Modules that the calling thread
// is in take precedence. They belong to that thread only: an accelerator's backward pass runs on a
// thread of its own, perhaps while the thread that called it is still inside a module.
//
// Thread-safe.
#pragma once

#include <atomic>
#include <cstddef>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/types.h"
#include "runtime/program_order.h"
#include "runtime/stream_table.h"
#include "runtime/threads.h"
#include "trace/trace.h"

namespace stalloc::runtime {

class Recorder {
 public:
  enum class Layers : std::uint8_t { kForgotten, kKept };
  // Drops any earlier recording and starts a new one, in an unnamed phase of iteration 0. The
  // calling thread becomes the training thread. Layers that were defined before are kept if hooks
  // go on to report them.
  void start(Layers layers = Layers::kForgotten);
  bool active() const { return active_.load(std::memory_order_acquire); }

  // Ends the recording and returns it; empty if none was started. A request that is freed later has
  // no end.
  // With the table of the device's streams, the trace has the order between them.
  trace::Trace finish(const StreamTable* table = nullptr);

  // Ends the recording and drops it; its memory stays until the next start(). For the child of a
  // fork: it shares these pages with its parent and must not copy them.
  void abandon();

  // `block` identifies the live block, for example by its address. `size` > 0 bytes.
  // `for_training`: see PlannedAllocator::allocate. Requests on a stream without a number (kNone)
  // are not planned.
  void on_allocate(const void* block, Bytes size, StreamId stream, bool for_training,
                   NodeSequence node);
  // Call it before the memory can serve another request. Ignores unknown blocks.
  void on_free(const void* block, NodeSequence node);
  // Another process gets a handle of the block. The trace's info says so (the key "shared") if a
  // plan may place such a request in its pool: state from the first iteration that is never freed
  // lies elsewhere. Ignores unknown blocks.
  void on_share(const void* block);

  void enter_phase(trace::PhaseKind kind, std::int32_t microbatch, std::int32_t chunk);
  // Sets the extents of a microbatch: of the current forward if it has none yet, else of the next
  // phase if that is a forward. There is one value for each name. A trace has at most kMaxExtents
  // names; further ones are left out.
  void set_extents(std::span<const std::string> names, std::span<const std::int64_t> values);
  static constexpr std::size_t kMaxExtents = 64;

  void enter_unplanned();
  // A forward of the model begins in an unplanned stretch, as a stretch of its own.
  void begin_evaluation();
  void leave_unplanned();
  void end_iteration();
  // Merges all iterations so far into the current one: their ends were wrong guesses.
  void join_iterations();

  // Returns a number for a layer.
  LayerIndex define_layer(const std::string& name, bool dynamic);
  // The calling thread enters a layer that was defined since start() forgot the others, or leaves
  // the one that it entered last.
  void enter_layer(LayerIndex layer, bool recompute);
  void leave_layer();
  // Autograd nodes [first, last) of one thread belong to the layer.
  void tag_sequence(LayerIndex layer, std::uint64_t first, std::uint64_t last);

  // The program has recorded, waited for, or destroyed an event of the device's library.
  enum class Event : std::uint8_t { kRecorded, kAwaited, kGone };
  void on_event(Event what, ProgramOrder::Handle event, ProgramOrder::Handle stream);
  // The host has waited for an event, a stream, or all of the device's work.
  enum class Awaited : std::uint8_t { kEvent, kStream, kDevice };
  void on_synchronize(Awaited what, ProgramOrder::Handle handle);

  std::size_t requests() const;
  std::int32_t iterations() const;  // complete ones
  // The bytes of the records now: at most 100 a request.
  std::size_t memory_bytes() const;

  void lock_for_fork() { mutex_.lock(); }
  void unlock_after_fork() { mutex_.unlock(); }

 private:
  void open_span(const trace::PhaseKey& key);
  bool shares_pool() const;
  void add_extents(std::vector<std::int64_t> values);
  PhaseIndex current_span();
  LayerIndex current_layer(NodeSequence node) const;

  mutable std::mutex mutex_;
  std::atomic<bool> active_{false};
  TrainingThread training_thread_;
  trace::Trace trace_;  // all but the requests
  std::deque<trace::Request> records_;
  std::unordered_map<const void*, std::uint32_t> live_;
  std::vector<std::uint32_t> shared_;  // records whose block another process has a handle of
  std::vector<std::string> layers_;
  IndexedVector<LayerIndex, std::uint8_t> dynamic_layers_;
  // By thread; indices into trace_.layer_spans, innermost last.
  std::unordered_map<ThreadOrdinal, std::vector<trace::LayerSpanIndex>> open_layers_;
  struct TaggedNodes {  // of one thread, in sequence
    std::uint64_t first = 0;
    std::vector<LayerIndex> layers;
  };
  std::unordered_map<std::uint64_t, TaggedNodes> tagged_;  // by thread_of_node()
  std::map<trace::PhaseKey, std::int32_t> seen_;           // occurrences in this iteration
  // Phases that unplanned stretches suspend, outermost first.
  std::vector<trace::PhaseKey> interrupted_;
  std::unordered_map<std::string, std::size_t> extent_index_;  // into trace_.extent_names
  std::optional<std::vector<std::int64_t>> upcoming_extents_;  // of the next forward
  ProgramOrder order_;
  bool wants_extents_ = false;  // the current phase is a forward without extents
  bool span_open_ = false;
  std::int32_t iteration_ = 0;
  Tick clock_ = 0;
};

}  // namespace stalloc::runtime
