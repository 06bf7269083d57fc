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
//   before  A guest that is still there when its iteration ends was none: its kind (who asked, and
//           the size) is never one again. All that is small is of one kind.
//
// Cost: O(log kinds) a request, next to nothing while no guest has stayed. Remembers so many kinds
// at most; then nothing is a guest any more. Not thread-safe.
#pragma once

#include <cstddef>
#include <set>
#include <utility>
#include <vector>

#include "base/types.h"
#include "plan/plan.h"
#include "trace/lifetimes.h"

namespace stalloc {

class Guests {
 public:
  // Who asks: a phase of the plan, or what is in none, as an evaluation.
  static constexpr PhaseIndex kUnplanned = -2;

  explicit Guests(const Plan& plan) {
    for (const ProfiledPhase& p : plan.phases) {
      passing_.push_back(p.key.kind != PhaseKind::kOther);
    }
  }

  // Whether a request of `size` bytes may be a guest.
  bool admits(PhaseIndex origin, Bytes size) const {
    return (origin == kUnplanned || passing_[static_cast<std::size_t>(origin)]) &&
           !has_stayed(origin, size);
  }

  // Whether one of its kind was a guest and stayed.
  bool has_stayed(PhaseIndex origin, Bytes size) const {
    return !stayed_.empty() &&
           (stayed_.size() == kMaxKinds || stayed_.contains(kind_of(origin, size)));
  }

  // A guest has outlived its iteration.
  void note_stayed(PhaseIndex origin, Bytes size) {
    if (stayed_.size() < kMaxKinds) stayed_.insert(kind_of(origin, size));
  }

 private:
  using Kind = std::pair<PhaseIndex, Bytes>;

  static constexpr std::size_t kMaxKinds = 1024;

  static Kind kind_of(PhaseIndex origin, Bytes size) {
    return {origin, size < kSmallRequest ? 0 : size};
  }

  std::vector<bool> passing_;  // by phase
  std::set<Kind> stayed_;
};

}  // namespace stalloc
