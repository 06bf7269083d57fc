// Learns which small decisions are better served outside the pool: those that another thread frees
// late, at a moment that no profile tells, and those that live while the pool's memory goes.
//
// A thread that communicates may hold the result of a collective for longer than the training
// thread does. It may wait for the interpreter's lock until most of the iteration is over. Each
// decision that has the addresses of such a block in the meantime departs from the plan, and takes
// addresses of others in turn. Outside the pool, a small block is in nobody's way:
//
//   pool         | a few bytes ......~ ~ ~ ~ ~ ~ ~ ~ ~ ~ ~ ~        departs, and displaces c
//                                   | b |  | c |  | d |  | e |
//
// A small decision with such a block lies outside the pool from then on. At most one in kShare
// decisions does: each one is a miss.
//
// O(1) a call. Not thread-safe.
#pragma once

#include <cstddef>

#include "base/index.h"
#include "base/types.h"
#include "plan/plan.h"
#include "profile/iteration_profile.h"

namespace stalloc::runtime {

class LateBlocks {
 public:
  static constexpr std::size_t kShare = 200;

  // `plan` has passed check(). The object serves all layouts of the plan.
  explicit LateBlocks(const plan::Plan& plan)
      : out_(plan.decisions.size(), false), left_(plan.decisions.size() / kShare) {}

  // True if decision `d` is to be served outside the pool.
  bool contains(plan::DecisionIndex d) const { return any_ && out_[d]; }

  // The block of decision `d`, of `size` bytes, is one of these.
  void note(plan::DecisionIndex d, Bytes size) {
    if (left_ == 0 || out_[d] || size >= profile::kSmallRequest) return;
    out_[d] = any_ = true;
    --left_;
  }

 private:
  IndexedVector<plan::DecisionIndex, bool> out_;
  bool any_ = false;
  std::size_t left_ = 0;  // decisions that may be taken out
};

}  // namespace stalloc::runtime
