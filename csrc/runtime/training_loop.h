// The events of the training loop, as the planned allocator follows them; see Matcher and hooks.py.
// No-ops if no plan is enabled. Thread-safe.
#pragma once

#include <cstdint>
#include <mutex>
#include <span>
#include <string>

#include "runtime/allocator_parts.h"
#include "trace/trace.h"

namespace stalloc::runtime {

class TrainingLoop {
 public:
  explicit TrainingLoop(AllocatorParts& parts) : parts_(parts) {}

  // The calling thread becomes the training thread.
  void enter_phase(trace::PhaseKind kind, std::int32_t microbatch, std::int32_t chunk);
  // Sets the extents of a microbatch's inputs: of the current forward if it has none yet, else of
  // the next one. There is one value for each name.
  void set_extents(std::span<const std::string> names, std::span<const std::int64_t> values);
  void enter_unplanned();
  // A forward of the model begins in an unplanned stretch, see Evaluations.
  void begin_evaluation();
  // That forward has returned.
  void end_evaluation_forward();
  void leave_unplanned();
  // True if the caller's fallback should give back what it caches, see Serving. The answer holds
  // once.
  bool wants_cached();
  // Waits for devices if a block waits for streams that cannot be asked; other threads can use the
  // allocator meanwhile.
  void end_iteration();

  // The calling thread enters or leaves a dynamic module: its requests in between are dynamic.
  // Requests of autograd nodes [first, last), which the module made, are dynamic on any thread.
  void enter_dynamic();
  void leave_dynamic();
  void tag_dynamic_nodes(std::uint64_t first, std::uint64_t last);
  // Exchanges the layout for a batch whose extents its requests have told. True if it did. The
  // caller holds the lock.
  bool fit_upcoming();
  // True if a request has to name the autograd node that runs. Takes no lock.
  bool follows_nodes() const { return parts_.dynamic_scopes.follows_nodes(); }

 private:
  void fit_layout();
  void make_room();  // before an exchange: what is only cached would come on top
  void note_pool();
  void leave_pool();
  void find_lost(std::unique_lock<std::mutex>& lock);

  AllocatorParts& parts_;
};

}  // namespace stalloc::runtime
