// Follows a run through start-up: finds the plan's start-up request that a request corresponds to,
// and its addresses. Exists from the enabling of the plan to the end of the first iteration.
//
// Permanent requests lie in the resident region, a pool of its own whose decisions are live all the
// time. Like any pool it is checked, divided among streams and retired; it goes back to the device
// with its last block, and the plan's own pool can be released without it.
//
// Note [Overstayed]
// Temporaries differ from permanent requests by position alone. If weights and temporaries of one
// size alternate, one unexpected request shifts their positions, and weights would take
// temporaries' addresses permanently. So if a temporary outlives its planned end, no further
// temporary is served until it is freed.
//
// As everywhere, the pools check each address: it is idle. Cost: O(1) a request, without the pools'
// search. Not thread-safe.
#pragma once

#include <vector>

#include "plan/plan.h"
#include "runtime/matcher.h"
#include "runtime/static_pool.h"

namespace stalloc::runtime {

// The resident region as a plan: permanent requests are its decisions, in the order of
// Plan::startup.
plan::Plan resident_region(const plan::Plan& plan);

class StartupGuide {
 public:
  // `plan` has passed check().
  explicit StartupGuide(const plan::Plan& plan);

  Matcher& matcher() { return matcher_; }

  // The address of a request, if it has one.
  struct Place {
    bool in_region = false;
    Offset offset = kUnplaced;  // in the region, or in the pool
  };

  // Makes start-up request `i` live, of `size` bytes. The pools are those of the plan and of its
  // resident_region().
  Place place(plan::StartupIndex i, Bytes size, StaticPool& pool, StaticPool& region);

  // True if start-up request `i` does not stay.
  bool is_temporary(plan::StartupIndex i) const { return !requests_[i].stays(); }

  // The addresses of start-up request `i`, of `size` rounded bytes, if they lie in the plan's pool.
  Range range_in_pool(plan::StartupIndex i, Bytes size) const {
    const plan::StartupRequest& r = requests_[i];
    const bool lies_there = r.decision == kNone && r.slots == kNone && r.offset != kUnplaced &&
                            r.offset + size <= region_begin_;
    return lies_there ? Range{r.offset, r.offset + size} : Range{};
  }

  // The addresses of start-up request `i`, of `size` bytes, in the resident region if they are idle
  // and lack memory.
  Range lacking_in_region(plan::StartupIndex i, Bytes size, const StaticPool& region) const;

  // Continues with another layout of the plan. The resident region stays.
  void relayout(const plan::Plan& plan) {
    requests_ = plan.startup;
    region_begin_ = plan.pool;
  }

  // The number of requests with an address or a slot, and of decisions absent from the first
  // iteration.
  std::int64_t placeable() const { return placeable_; }
  std::int64_t absent() const { return absent_; }

 private:
  bool overstayed(Tick now, const StaticPool& pool, const StaticPool& region);
  Place place_of(plan::StartupIndex i) const;

  Matcher matcher_;
  IndexedVector<plan::StartupIndex, plan::StartupRequest> requests_;
  Offset region_begin_ = 0;
  IndexedVector<plan::StartupIndex, plan::DecisionIndex> resident_;  // decisions of the region
  std::vector<plan::StartupIndex> by_end_;  // temporaries, by the end of their lifetimes
  std::size_t ended_ = 0;                   // the number of these whose planned end has passed
  IndexedVector<plan::StartupIndex, bool> served_;
  std::vector<plan::StartupIndex> late_;  // served, and live after their planned end
  std::int64_t placeable_ = 0;
  std::int64_t absent_ = 0;
};

}  // namespace stalloc::runtime
