// Learns which small decisions are freed late, at a moment that no profile tells.
//
// A thread that communicates may hold the result of a collective for a moment longer than the
// training thread. It may even wait for the interpreter's lock until most of the iteration is over.
// Each decision that has the addresses of such a block in the meantime departs from the plan, and
// takes addresses of others in turn. Outside the pool, a small block is in nobody's way:
//
//   pool         | a few bytes ......~ ~ ~ ~ ~ ~ ~ ~ ~ ~ ~ ~        departs, and displaces c
//                                   | b |  | c |  | d |  | e |
//
// A decision that has been in the way of kMostHarm others lies outside the pool from then on,
// beside which its few bytes cost nothing. At most one in kShare decisions does: each one is a
// miss.
//
// O(1) a call. Not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/types.h"
#include "plan/plan.h"
#include "profile/iteration_profile.h"

namespace stalloc::runtime {

class LateBlocks {
 public:
  static constexpr std::size_t kShare = 200;
  static constexpr std::uint8_t kMostHarm = 3;

  // `plan` has passed check(). The object serves all layouts of the plan.
  explicit LateBlocks(const plan::Plan& plan)
      : harm_(plan.decisions.size(), 0), left_(plan.decisions.size() / kShare) {}

  // True if decision `d` is to be served outside the pool.
  bool contains(plan::DecisionIndex d) const { return harm_[d] == kMostHarm; }

  // True if a conflict is worth a look: more decisions may be taken out, and this iteration has
  // looked at few.
  bool looks() { return left_ > 0 && looks_++ < kMostLooks; }

  // The block of decision `d` was in the way of decision `next`.
  void note(const plan::Plan& plan, plan::DecisionIndex d, plan::DecisionIndex next) {
    const plan::Decision& block = plan[d];
    const bool is_late = block.upper <= plan[next].lower && block.over == 0;
    if (!is_late || block.slots != kNone || block.size >= profile::kSmallRequest) return;
    if (left_ > 0 && harm_[d] < kMostHarm && ++harm_[d] == kMostHarm) --left_;
  }

  void end_iteration() { looks_ = 0; }

 private:
  static constexpr int kMostLooks = 64;  // an iteration; each one searches the blocks in the way

  // By decision: the number of others that it was in the way of.
  IndexedVector<plan::DecisionIndex, std::uint8_t> harm_;
  std::size_t left_ = 0;  // decisions that may be taken out
  int looks_ = 0;
};

}  // namespace stalloc::runtime
