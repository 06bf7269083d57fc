// Serves the requests of a run under one plan: follows the training loop through the plan's phases
// and finds the address of each request in the pool.
//
//   request --> in a planned phase? --matcher--> its decision's addresses
//                  |                      |----> its group's region, or the group's reusable space
//                  |                      |----> its start-up request's addresses
//                  v                      v
//               idle pool space <---- no decision, or its addresses are taken
//               (if Departures admits it)
//
// The caller's fallback serves all other requests. One object serves one enabled plan. Not
// thread-safe: PlannedAllocator locks.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/types.h"
#include "plan/plan.h"
#include "runtime/accounting.h"
#include "runtime/delayed_frees.h"
#include "runtime/departures.h"
#include "runtime/evaluations.h"
#include "runtime/hand_back.h"
#include "runtime/late_blocks.h"
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
    bool startup = false;  // the run is served from its beginning
    // Blocks that other streams still use are given on at once, if their addresses are needed.
    bool hand_back = true;
    bool other_threads = true;  // their requests may lie in idle pool space
    // Static addresses of the pool have memory at once; else they get it with their first requests.
    bool filled = true;
    // The first iteration serves nothing but requests that live on into the next one. Their like
    // of the iteration before, which lies beside the pool, goes meanwhile.
    bool ahead = false;
  };

  // Both are null on a device without streams.
  struct Streams {
    const DelayedFrees* delayed = nullptr;
    HandBack* hand_back = nullptr;
  };

  // `plan` has passed check(). The others outlive this object. The plan's pools are active in
  // `pools` while requests are served.
  Serving(const plan::Plan& plan, Scope scope, Pools& pools, Streams streams,
          Accounting& accounting);

  bool has_startup() const { return startup_.has_value(); }
  // True if blocks may be handed back.
  bool hands_back() const { return hand_back_ != nullptr; }
  // The number of start-up requests with an address; 0 after start-up.
  std::int64_t placeable() const { return startup_ ? startup_->placeable() : 0; }

  // Serves a request of `size` (> 0) bytes; `p` is null if the pool does not serve it. `tagged`:
  // the request comes from a module tagged as dynamic.
  struct Place {
    void* p = nullptr;
    bool dynamic = false;
    bool awaits_layout = false;  // for the upcoming microbatch: fit_upcoming() may help
  };
  Place allocate(Bytes size, StreamId stream, bool tagged);

  // The same for a request of any thread but the training thread.
  void* allocate_for_other_thread(Bytes size, StreamId stream) {
    if (!other_threads_) return nullptr;
    return allocate_departed(size, stream, {Departures::kOtherThread}, /*wary=*/false);
  }

  // Takes idle pool space regardless of the plan, for requests that no other allocator can serve.
  // Memory moves for them, too.
  void* allocate_idle(Bytes size, StreamId stream);
  // Gives all idle memory of the pool to the device, for a request of `size` bytes that nothing
  // else can serve, unless the device had too little even then. Planned requests then get other
  // memory. Returns the bytes.
  Bytes give_idle(Bytes size);

  void enter_phase(trace::PhaseKind kind, std::int32_t microbatch, std::int32_t chunk);
  // See TrainingLoop.
  void set_extents(std::span<const std::string> names, std::span<const std::int64_t> values);
  // True if the layout does not cover the extents of the current phase.
  bool outgrows() const { return outgrows_ && !refused_; }
  // True if the microbatch needs another layout: it outgrows this one, requests take turns,
  // leftovers are in the way, or this one needs more memory than the pool has.
  bool awaits_layout() const { return (outgrows_ || is_rearranged_ || is_cramped_) && !refused_; }
  // Exchanges the layout for one that covers them, and the memory if that layout needs more. If
  // that fails, nothing changes. The caller has collected the blocks that wait for streams.
  void fit_layout();
  // The same for the extents that requests have told of the upcoming microbatch, before they are
  // reported: those of another model with the same batch, such as a reference or a teacher. False
  // if it fails; then no other request of this iteration awaits a layout.
  bool fit_upcoming();
  // Serves the request that awaited the layout: with it, and without.
  void* allocate_upcoming(Bytes size, StreamId stream);
  void* allocate_outgrown(Bytes size, StreamId stream);
  // See PlannedAllocator.
  void drain(bool departed) {
    draining_ = true;
    shuts_out_departed_ = departed;
  }
  void keep_clear() { keeps_clear_ = true; }
  void keep_pauses_clear(bool on) { keeps_pauses_clear_ = on; }
  void make_states(bool on) { makes_states_ = on; }
  // Exchanges several pieces of memory for one if no block is live. True if it did.
  bool join_pieces();
  void enter_unplanned();
  void leave_unplanned();
  // A forward of the model begins in an unplanned stretch, and lasts until the next one or to the
  // end of the stretch.
  void begin_evaluation();
  // That forward has returned. The program may copy its weights now, or make a new model.
  void end_evaluation_forward() { evaluations_.end_forward(); }
  // stalloc's own fallback serves the last request, at `p`.
  void served_beside(const void* p) {
    if (evaluations_.active()) evaluations_.serve(p);
  }
  // The block at `p` was freed.
  void released(const void* p) {
    if (evaluations_.active()) evaluations_.release(p);
  }
  // Another thread than the training thread has freed the block of decision `d`, of `size` bytes,
  // after its planned end.
  void freed_late_elsewhere(plan::DecisionIndex d, Bytes size) { late_blocks_.note(d, size); }
  // See Matcher.
  void trust_all(bool makes_states) { matcher_.trust_all(makes_states); }
  // The pool's memory goes, and stays where blocks lie. From now on small requests of their kinds
  // lie beside the pool: there they keep no chunk of it, and displace no decision.
  void learn_from_kept();
  // Returns true if start-up ends with this iteration: then the caller retires the resident region.
  bool end_iteration();
  // True if the pool is better left: it has served few of its own requests in the last iterations,
  // and memory no longer moves for those that the plan lacks.
  bool loses() const;

  // True if the pool's memory has changed since the last call.
  bool is_resized() {
    unnoted_ = 0;
    return std::exchange(is_resized_, false);
  }

  // True if `size` more bytes would be more than the run is to hold, and memory may move.
  bool would_give_way(Bytes size);
  // The fallback is to take `size` more bytes of the device for a request of `request` bytes. If
  // the run has never held so much, what it caches goes first, and what lies free between its
  // blocks, if it is stalloc's own; then idle memory of the pool.
  void give_way(Bytes size, Bytes request, StreamId stream);

  // True if the pool may have memory that its layout does not need.
  bool has_extra() const { return extra() > 0; }
  // Gives it to the device for a request of `size` bytes beside the pool, unless the request is
  // small or an evaluation is under way. True if the pool's memory may have changed.
  bool return_extra(Bytes size);

  // True if the caller's fallback is to give back what it caches: once after the pool has taken
  // memory of the device, and once after both hold more than before and than the run's load.
  bool wants_cached();
  // True if it is to do so before a request of `size` bytes: the pool lacks memory that the request
  // may need, and the run would come to a new peak.
  bool wants_cached_for(Bytes size);
  // True if the pool began without memory.
  bool fills() const { return fills_; }
  // True if memory for a request of `size` bytes in the pool would be a new peak of the run.
  bool exceeds_most(Bytes size) const;

  // The hits of this iteration.
  std::int64_t hits_now() const { return hits_; }

 private:
  // A request is large from one part in so many of the pool.
  static constexpr Bytes kLargeParts = 16;
  // A search for a layout that fails may take half a second. After so many in a row for the same
  // reason, that is no reason for another one.
  static constexpr int kMostFailures = 3;
  // For less lacking memory no program should wait.
  static constexpr Bytes kLeastLacking = Bytes{8} << 20;

  // True if a decision or a group lives into the next iteration.
  bool lives_on(const plan::DynamicGroup& g) const { return g.upper > layouts_.current().period; }
  bool lives_on(const plan::Decision& d) const {
    return d.upper + d.over > layouts_.current().period;
  }
  Matcher& matcher() { return startup_ ? startup_->matcher() : matcher_; }
  bool capturing() const { return delayed_ && delayed_->capturing(); }
  // True if this iteration leaves it to the fallback: the last one under the plan those that live
  // on, the first one all others.
  bool leaves_out(const auto& d) const { return lives_on(d) ? draining_ : ahead_; }
  bool shuts_out_departed() const { return shuts_out_departed_ || ahead_; }
  // The bytes that departures have added, or that lie behind the layout's addresses.
  Bytes extra() const {
    return std::max(extra_, pools_.active()->space.memory() - layouts_.current().pool);
  }
  void* allocate_planned(plan::DecisionIndex decision, Bytes size, StreamId stream);
  void* allocate_startup(plan::StartupIndex i, Bytes size, StreamId stream);
  void use_extents();
  bool fit(std::span<const profile::Extent> extents, std::int32_t microbatch, bool outgrows);
  std::int32_t microbatch_now();
  bool is_obstructed() const;
  bool is_cramped() const;
  const plan::Plan* find_in_memory(std::span<const profile::Extent> extents,
                                   std::int32_t microbatch, const StaticPool::LiveRows& live);
  const plan::Plan* find_tight(std::span<const profile::Extent> extents, std::int32_t microbatch,
                               const StaticPool::LiveRows& live, Bytes room);
  void fit_memory();
  bool add_memory(const plan::Plan& layout, Layouts::More more);
  void adopt(const plan::Plan* layout);
  void note_rearranged(const StaticPool::LiveRows& live, bool found);
  void* allocate_dynamic(plan::GroupIndex group, Bytes size, StreamId stream);
  void* place_dynamic(plan::GroupIndex group, Bytes size, StreamId stream);
  void* place_in_memory(Range lacking, Bytes size, StreamId stream,
                        StaticPool::Departure departure);
  bool is_brief(Bytes size);
  bool is_kept_gradient(Bytes size);
  bool is_setup();
  bool makes_tables();
  Bytes small() const;
  PhaseIndex origin();
  bool is_wary();
  void* allocate_departed(Bytes size, StreamId stream, StaticPool::Departure departure, bool wary);
  void* place_idle(Bytes size, StreamId stream, StaticPool::Departure departure);
  void* allocate_evaluation(Bytes size, StreamId stream);
  bool make_room(MovingMemory::Room room, MovingMemory::Means means);
  bool refuses_room(Bytes size, MovingMemory::Means means) const;
  bool make_room_for(Bytes size, StreamId stream, StaticPool::Departure& departure);
  void open_zone(bool more);
  bool provide_memory(Range r, Range wish, MovingMemory::Means means);
  bool provide_resident(plan::StartupIndex i, Bytes size);
  MovingMemory::Means means(Bytes size = 0) const;
  void review_structure();
  void note_structure();
  void release_cached();
  void give_back_beside(Bytes size, Bytes request, StreamId stream);
  static Bytes unused(Bytes load);
  std::int64_t most_moves() const;
  void widen_cushion();  // after a wait
  void begin_moves();    // with an iteration
  // Where memory has moved often, a request without memory at its addresses gets idle ones with
  // memory that nothing else needs. Where few moves are left, it may displace others.
  bool moves_often() const;
  bool saves_moves() const;
  // True if the fallback has room for all of the run's requests.
  bool can_leave_pool() const;
  void note_released(Bytes released);
  void note_memory();
  bool is_pause();
  void* place_evaluation(Offset offset, Bytes size, StreamId stream);
  void begin_part(Evaluations::Part part);
  void end_evaluation();
  void learn_from_departed();
  void count_hits(std::int64_t planned);

  Pools& pools_;
  const DelayedFrees* const delayed_;
  HandBack* const hand_back_;  // null if blocks are not handed back
  const Accounting& accounting_;
  Statistics& counts_;
  Layouts layouts_;
  const Bytes profiled_load_;       // what the run is expected to reach
  const bool overlaps_;             // microbatches are in flight together
  Bytes most_addresses_;            // of the layouts so far
  bool is_beyond_profile_ = false;  // the profile had no batch as large as the layout's
  Microbatches microbatches_;
  bool outgrows_ = false;
  bool is_rearranged_ = false;  // requests take turns, or leftovers are in the way
  bool is_enlarged_ = false;    // in this iteration the pool got a larger layout
  bool is_cramped_ = false;     // the layout needs memory that the pool does not have
  // Searches in a row without a layout in which requests take turns, and beside leftovers.
  int failed_turns_ = 0;
  int failed_leftovers_ = 0;
  // The same without a layout that needs no more memory than there is.
  int failed_memory_ = 0;
  bool began_ = false;    // this iteration has begun a forward
  bool refused_ = false;  // in this iteration the memory for a larger layout was refused
  bool lacked_ = false;   // in this iteration memory of the layout was refused
  // The smallest sizes that this phase was refused in the pool's memory, and in more.
  struct Refused {
    Bytes size = Evaluations::kAny;
    Bytes live = 0;  // of all blocks then
  };
  std::array<Refused, 2> refused_room_{};
  Bytes outside_ = 0;                     // of requests in this phase that keep out of the layout
  Bytes extra_ = 0;                       // of memory, which departures have added to the pool
  bool upcoming_refused_ = false;         // the same for the upcoming microbatch
  plan::DecisionIndex awaiting_ = kNone;  // of the request that awaits its layout
  Matcher matcher_;
  std::optional<StartupGuide> startup_;  // during start-up
  Departures departures_;
  LateBlocks late_blocks_;
  Evaluations evaluations_;
  bool in_evaluation_ = false;  // until the next phase that trains: the loss comes after a forward
  bool is_resized_ = false;
  Bytes unnoted_ = 0;  // of the pool's memory that `accounting_` does not know yet
  // Since the fallback last gave back what it caches: if the pool has taken memory, and the most
  // that both had held of the device then.
  bool took_memory_ = true;
  Bytes most_reserved_ = 0;
  // The cache that could not go, and if it is to be read anew, after a request has asked for it.
  Bytes stuck_cached_ = 0;
  bool asked_cached_ = false;
  // This iteration has left out much of what the plan has live, as seen when the pool had so much
  // memory.
  bool leaves_out_ = false;
  Bytes reviewed_at_ = 0;
  bool left_out_before_ = false;     // the last forward of a batch beyond the profile did
  bool has_given_way_ = false;       // idle memory of the pool has gone to what lies beside it
  Bytes accepted_ = 0;               // the run could not do with less of the device; see give_way()
  const std::int64_t moves_before_;  // those of other plans
  std::int64_t training_moves_ = 0;  // without those of evaluations
  std::int64_t moves_at_begin_ = 0;  // the same when this iteration began
  std::int64_t reserve_ = 0;         // of the moves, where the pool can be left
  bool runs_out_of_moves_ = false;
  std::int64_t moves_beside_ = 0;  // of the fallback's memory
  Bytes cushion_ = kLeastLacking;  // a wait makes room for so much more
  std::int64_t paused_in_ = -1;    // the last iteration that asked for room in a pause
  bool pauses_often_ = false;
  const bool reuse_;
  const bool fills_;  // the pool began without memory
  const bool other_threads_;
  bool ahead_;  // see Scope
  // By size: gradients that the first backward pass makes and the run keeps; see trust_all().
  std::map<Bytes, int> first_kept_;
  bool draining_ = false;
  bool shuts_out_departed_ = false;
  bool keeps_clear_ = false;
  bool keeps_pauses_clear_ = false;
  bool makes_states_ = false;
  int unplanned_depth_ = 0;
  std::int64_t hits_ = 0;
  double share_ = 1;  // of the plan's requests that were served; see loses()
};

}  // namespace stalloc::runtime
