// Which requests that the plan does not know may be put into idle pool space.
//
// What is idle now is not idle for long. A guest that is gone again before the plan comes for its
// addresses costs nothing. One that stays is in the way of every decision that has them, in every
// iteration: a copy of the weights, made once between two iterations, would lose half of the hits
// for the rest of the run. How long a block will live cannot be known, but two things tell:
//
//   where   What a forward, a backward, a step or an evaluation makes is gone with it, as a rule,
//           unless it may be an optimizer's new state (Matcher::wary()). What is made between them
//           may be a copy or a checkpoint, and is no guest.
//   before  A guest that is still there when its phase ends was none, nor one of an evaluation
//           that is when its iteration does: its kind (who asked, and the size) is never one
//           again. A weight's gradient is made by backward, and stays until the optimizer has run.
//           All that is small is of one kind.
//
// Cost: O(log kinds) a request, next to nothing while no guest has stayed. Remembers so many kinds
// of whoever asks; then there is none that may be a guest any more. Not thread-safe.
#pragma once

#include <cstddef>
#include <map>
#include <set>
#include <vector>

#include "base/types.h"
#include "plan/plan.h"
#include "profile/lifetimes.h"

namespace stalloc::runtime {

class Guests {
 public:
  // Who asks: a phase of the plan, or what is in none, as an evaluation.
  static constexpr PhaseIndex kUnplanned = -2;

  explicit Guests(const plan::Plan& plan) {
    for (const profile::ProfiledPhase& p : plan.phases) {
      passing_.push_back(p.key.kind != trace::PhaseKind::kOther);
    }
  }

  // Whether a request of `size` bytes may be a guest.
  bool admits(PhaseIndex origin, Bytes size) const {
    return (origin == kUnplanned || passing_[static_cast<std::size_t>(origin)]) &&
           !has_stayed(origin, size);
  }

  // Whether one of its kind was a guest and stayed.
  bool has_stayed(PhaseIndex origin, Bytes size) const {
    const auto kinds = stayed_.find(origin);
    return kinds != stayed_.end() &&
           (kinds->second.size() == kMaxKinds || kinds->second.contains(kind_of(size)));
  }

  // A guest has outlived its phase, or its iteration where it came in none.
  void note_stayed(PhaseIndex origin, Bytes size) {
    std::set<Bytes>& kinds = stayed_[origin];
    if (kinds.size() < kMaxKinds) kinds.insert(kind_of(size));
  }

 private:
  static constexpr std::size_t kMaxKinds = 256;

  static Bytes kind_of(Bytes size) { return size < profile::kSmallRequest ? 0 : size; }

  std::vector<bool> passing_;                     // by phase
  std::map<PhaseIndex, std::set<Bytes>> stayed_;  // by who asked
};

}  // namespace stalloc::runtime
