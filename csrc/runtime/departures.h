// Decides which requests that are not in the plan may be put into idle pool space.
//
// The pool's memory is reserved anyway, so a request that departs from the plan belongs there. It
// costs nothing if its block is freed before the plan needs the addresses. Otherwise the decisions
// that need its addresses move. Only a permanent block does lasting harm: it displaces decisions in
// every later iteration, and outside the pool it would take no more memory. The lifetime of a block
// is not known in advance, but two properties predict it:
//
//   kind    A request of an origin (the phase that makes it, an evaluation, another thread) whose
//           block outlived a whole iteration is permanent, and so is every later one of this origin
//           and size. All small sizes are one kind: small for this plan, so that they cost
//           little outside the pool, whereas one of them may displace the largest decision.
//   size    Weights, gradients, optimizer states and their copies have one of a few sizes. A
//           request of such a size is not admitted while new states are expected, and one of a
//           weight's size while copies of weights are.
//
// Cost: O(log kinds) a request. Remembers up to kMaxKinds kinds of each origin; an origin with more
// is not admitted any more. Not thread-safe.
#pragma once

#include <algorithm>
#include <cstddef>
#include <map>
#include <set>
#include <vector>

#include "base/types.h"
#include "plan/plan.h"
#include "profile/lifetimes.h"

namespace stalloc::runtime {

class Departures {
 public:
  // The origin of a request: a phase of the plan, or one of these.
  static constexpr PhaseIndex kUnplanned{-2};    // a phase that is not in the plan, an evaluation
  static constexpr PhaseIndex kOtherThread{-3};  // not the training thread

  // `plan` has passed check().
  explicit Departures(const plan::Plan& plan)
      : small_(std::max(profile::kSmallRequest, plan::largest_small(plan))) {
    for (const plan::Decision& d : plan.decisions) {
      const bool backward = plan[d.phase].key.kind == trace::PhaseKind::kBackward;
      if (backward && is_gradient(plan, d)) weights_.push_back(d.size);
    }
    for (const plan::StartupRequest& r : plan.startup) {
      if (!r.stays()) continue;
      const trace::PhaseKind kind = plan[r.phase].key.kind;
      // Gradients that the loop keeps, or the optimizer's states. Others may be inputs.
      const bool is_weight =
          kind == trace::PhaseKind::kBackward || kind == trace::PhaseKind::kOptimizer;
      (is_weight ? weights_ : states_).push_back(r.size);
    }
    states_.insert(states_.end(), weights_.begin(), weights_.end());
    std::erase_if(states_, [](Bytes size) { return size < profile::kSmallRequest; });
    for (std::vector<Bytes>* sizes : {&weights_, &states_}) {
      std::ranges::sort(*sizes);
      sizes->erase(std::unique(sizes->begin(), sizes->end()), sizes->end());
    }
  }

  // True if a request of `size` bytes may lie in the pool. `wary`: new states are expected from its
  // origin, or it may be the copy of a weight.
  bool admits(PhaseIndex origin, Bytes size, bool wary) const {
    return !(wary && is_state_size(size)) && !has_stayed(origin, size);
  }

  // True if a block of this origin has outlived an iteration that was at least half as large.
  bool keeps(PhaseIndex origin, Bytes size) const {
    const auto kinds = stayed_.find(origin);
    return kinds != stayed_.end() && kinds->second.lower_bound(size / 2) != kinds->second.end();
  }

  // True if a copy of a weight, as wide as its original, may have this size.
  bool may_be_weight(Bytes size) const { return std::ranges::binary_search(weights_, size); }

  // Records that a block of this kind has outlived an iteration.
  void record_stayed(PhaseIndex origin, Bytes size) {
    std::set<Bytes>& kinds = stayed_[origin];
    if (kinds.size() < kMaxKinds) kinds.insert(kind_of(size));
  }

 private:
  static constexpr std::size_t kMaxKinds = 1024;

  Bytes kind_of(Bytes size) const { return size < small_ ? 0 : size; }

  // Gradients live until the optimizer has run.
  static bool is_gradient(const plan::Plan& plan, const plan::Decision& d) {
    if (d.phase_end == kNone || d.upper > plan.period) return true;
    for (PhaseIndex p = d.phase + 1; p <= d.phase_end; ++p) {
      if (plan[p].key.kind == trace::PhaseKind::kOptimizer) {
        return true;
      }
    }
    return false;
  }

  bool has_stayed(PhaseIndex origin, Bytes size) const {
    if (stayed_.empty()) return false;
    const auto kinds = stayed_.find(origin);
    return kinds != stayed_.end() &&
           (kinds->second.size() == kMaxKinds || kinds->second.contains(kind_of(size)));
  }

  // A copy may have half or twice the width of its original. Any small size may be a state's.
  bool is_state_size(Bytes size) const {
    if (size < profile::kSmallRequest) return true;
    const auto known = [this](Bytes s) { return std::ranges::binary_search(states_, s); };
    return known(size) || known(2 * size) || (size % 2 == 0 && known(size / 2));
  }

  const Bytes small_;           // sizes below are one kind
  std::vector<Bytes> weights_;  // sizes that weights have, ascending
  std::vector<Bytes> states_;   // the same of weights and states that are not small
  std::map<PhaseIndex, std::set<Bytes>> stayed_;  // kinds, by origin
};

}  // namespace stalloc::runtime
