// Writes down every allocation and free of a profiled run (section 4 of the paper).
//
// A request costs one 64-byte record in a chunked array, plus an entry in a hash table while it
// lives. The clock is the count of events, so recording is as deterministic as the run.
//
// Layers of backward requests are not known from module hooks, which only see forward. Instead each
// stay in a module is tagged with the autograd sequence numbers its nodes got, and a request made
// while a node runs belongs to the module that holds the node's number. The modules that a thread
// is inside of come first; they are nobody else's: an accelerator's backward pass runs on a thread
// of its own, perhaps while the thread that called it is still inside a module.
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
#include "runtime/threads.h"
#include "trace/trace.h"

namespace stalloc::runtime {

class Recorder {
 public:
  // Forgets whatever was recorded and begins, in an unnamed phase of iteration 0. The calling
  // thread becomes the training thread.
  void start();
  bool active() const { return active_.load(std::memory_order_acquire); }

  // Ends recording and hands over what there is; empty when nothing was started. Frees that come
  // later are not seen: such requests have no end.
  trace::Trace finish();

  // Ends recording and drops what there is, which stays in memory until the next start(). For the
  // child of a fork: it shares those pages with its parent, and must not copy them.
  void abandon();

  // `block` tells live blocks apart; an address will do. `size` > 0 bytes. `for_training`: see
  // PlannedAllocator::allocate. What is for a stream without a number (kNone) is no plan's.
  void on_allocate(const void* block, Bytes size, StreamId stream, bool for_training,
                   NodeSequence node);
  // To be called before the memory can be handed out again. Unknown blocks are none of its
  // business.
  void on_free(const void* block, NodeSequence node);

  void enter_phase(trace::PhaseKind kind, std::int32_t microbatch, std::int32_t chunk);
  // The extents of a microbatch: those of the forward that is on if it has none yet, else of the
  // next phase if that is a forward. `values` are as many as `names`; a trace has at most
  // kMaxExtents names, and those beyond are left out.
  void set_extents(std::span<const std::string> names, std::span<const std::int64_t> values);
  static constexpr std::size_t kMaxExtents = 64;

  void enter_unplanned();
  void leave_unplanned();
  void end_iteration();
  // The ends of iterations so far were a guess: these iterations are parts of the one that goes on.
  void join_iterations();

  // A number for a layer; its name is kept only while recording.
  LayerIndex define_layer(const std::string& name, bool dynamic);
  // The calling thread enters a layer that was defined while recording; leaves the one it entered
  // last.
  void enter_layer(LayerIndex layer, bool recompute);
  void leave_layer();
  // Nodes of one thread.
  void tag_sequence(LayerIndex layer, std::uint64_t first, std::uint64_t last);

  std::size_t requests() const;
  std::int32_t iterations() const;  // complete ones
  // Bytes that the records take now. At most 100 bytes a request are promised.
  std::size_t memory_bytes() const;

  void lock_for_fork() { mutex_.lock(); }
  void unlock_after_fork() { mutex_.unlock(); }

 private:
  void open_span(const trace::PhaseKey& key);
  void add_extents(std::vector<std::int64_t> values);
  PhaseIndex current_span();
  LayerIndex current_layer(NodeSequence node) const;

  mutable std::mutex mutex_;
  std::atomic<bool> active_{false};
  TrainingThread training_thread_;
  trace::Trace trace_;  // all but the requests
  std::deque<trace::Request> records_;
  std::unordered_map<const void*, std::uint32_t> live_;
  std::vector<bool> dynamic_layers_;
  LayerIndex defined_layers_ = 0;
  // By thread; indices into trace_.layer_spans, innermost last.
  std::unordered_map<ThreadOrdinal, std::vector<trace::LayerSpanIndex>> open_layers_;
  struct TaggedNodes {  // of one thread, in sequence
    std::uint64_t first = 0;
    std::vector<LayerIndex> layers;
  };
  std::unordered_map<std::uint64_t, TaggedNodes> tagged_;  // by thread_of_node()
  std::map<trace::PhaseKey, std::int32_t> seen_;           // occurrences in this iteration
  std::vector<trace::PhaseKey>
      interrupted_;  // phases that unplanned stretches suspend, outermost first
  std::unordered_map<std::string, std::size_t> extent_index_;  // into trace_.extent_names
  std::optional<std::vector<std::int64_t>> upcoming_extents_;  // of the next forward
  bool wants_extents_ = false;  // the phase that is on is a forward without extents
  bool span_open_ = false;
  std::int32_t iteration_ = 0;
  Tick clock_ = 0;
};

}  // namespace stalloc::runtime
