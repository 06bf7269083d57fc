// Serves the requests of a run under one plan: follows the training loop through the plan's phases
// and finds each request its place in the pool.
//
//   request --> in a planned phase? --matcher--> its decision's place
//                  |                      |----> its dynamic group's region, or space beside it
//                  |                      |----> its place in start-up
//                  v                      v
//               idle pool space <---- no decision, or the place is taken
//               (if Departures admits it)
//
// A request that none of these serves goes to the fallback, which the caller has. Made for a plan
// when it is enabled. Not thread-safe: PlannedAllocator locks.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/types.h"
#include "plan/plan.h"
#include "runtime/delayed_frees.h"
#include "runtime/departures.h"
#include "runtime/layouts.h"
#include "runtime/matcher.h"
#include "runtime/microbatches.h"
#include "runtime/pools.h"
#include "runtime/startup_guide.h"
#include "runtime/statistics.h"

namespace stalloc::runtime {

class Serving {
 public:
  struct Scope {
    bool reuse = true;     // dynamic requests may lie in the pool
    bool startup = false;  // the run is served from its very beginning
  };

  // `plan` has passed check(). `delayed` is null on a device without streams. The others outlive
  // this, and `pools` has the plan's pools active while requests are served.
  Serving(const plan::Plan& plan, Scope scope, Pools& pools, const DelayedFrees* delayed,
          Statistics& counts);

  bool has_startup() const { return startup_.has_value(); }
  // Requests of start-up that have a place; 0 once it has ended.
  std::int64_t placeable() const { return startup_ ? startup_->placeable() : 0; }

  // The place of a request of `size` (> 0) bytes; `p` is null when the pool does not serve it.
  // `tagged`: it comes from a module tagged as dynamic.
  struct Place {
    void* p = nullptr;
    bool dynamic = false;
  };
  Place allocate(Bytes size, StreamId stream, bool tagged);

  // The same for a request of a thread that does not train.
  void* allocate_for_other_thread(Bytes size, StreamId stream) {
    return allocate_departed(size, stream, {Departures::kOtherThread}, /*wary=*/false);
  }

  // A place in idle pool space, whatever the plan. For requests that nobody else can serve.
  void* allocate_idle(Bytes size, StreamId stream) { return place_idle(size, stream, {}); }

  void enter_phase(trace::PhaseKind kind, std::int32_t microbatch, std::int32_t chunk);
  // See PlannedAllocator.
  void set_extents(std::span<const std::string> names, std::span<const std::int64_t> values);
  // True if the phase that is on has extents that the layout does not cover.
  bool outgrows() const { return outgrows_ && !refused_; }
  // Exchanges the layout for one that covers them, and the memory where it takes more. Where that
  // cannot be had, all goes on as it is. Blocks that wait for streams have been collected.
  void fit_layout();
  // See PlannedAllocator.
  void drain(bool departed) {
    draining_ = true;
    shuts_out_departed_ = departed;
  }
  // Returns several pieces of memory for one, if nothing is live. True if it did.
  bool join_pieces();
  void enter_unplanned() { ++unplanned_depth_; }
  void leave_unplanned() {
    if (unplanned_depth_ > 0) --unplanned_depth_;
  }
  // Returns true if start-up ends with this iteration; the resident region is to be retired.
  bool end_iteration();

  // Decisions served at their place in this iteration.
  std::int64_t hits_now() const { return hits_; }

 private:
  // True if a decision or a group lives into the next iteration.
  bool lives_on(const auto& row) const { return row.upper > layouts_.current().period; }
  Matcher& matcher() { return startup_ ? startup_->matcher() : matcher_; }
  bool capturing() const { return delayed_ && delayed_->capturing(); }
  void* allocate_planned(plan::DecisionIndex decision, Bytes size, StreamId stream);
  void* allocate_startup(plan::StartupIndex i, Bytes size);
  void use_extents();
  void adopt(const plan::Plan* layout);
  void* allocate_dynamic(plan::GroupIndex group, Bytes size, StreamId stream);
  void* place_dynamic(plan::GroupIndex group, Bytes size);
  PhaseIndex origin();
  bool is_wary();
  void* allocate_departed(Bytes size, StreamId stream, StaticPool::Departure departure, bool wary);
  void* place_idle(Bytes size, StreamId stream, StaticPool::Departure departure);
  void learn_from_departed();

  Pools& pools_;
  const DelayedFrees* const delayed_;
  Statistics& counts_;
  Layouts layouts_;
  Microbatches microbatches_;
  bool outgrows_ = false;
  bool refused_ = false;  // in this iteration there was no room for a larger layout
  Matcher matcher_;
  std::optional<StartupGuide> startup_;  // while the run is in it
  Departures departures_;
  const bool reuse_;
  bool draining_ = false;
  bool shuts_out_departed_ = false;
  int unplanned_depth_ = 0;
  std::int64_t hits_ = 0;
};

}  // namespace stalloc::runtime
