// The tight moments of a pipeline's steady state: what each backward pass frees first, and what it
// needs at once.
//
//   load ^      . needed       . needed        What is needed is as large as what was freed just
//        |  /\_/ \         /\_/ \              before and all that was idle then, so the two have
//        | /  freed        /  freed            to lie side by side.
//        +----- turn 0 ------ turn 1 --> tick
#pragma once

#include <vector>

#include "solve/core/order.h"
#include "solve/core/problem.h"
#include "solve/core/timeline.h"

namespace stalloc::solve {

struct Turn {
  std::vector<BufferIndex> freed = {};  // by end; not empty
  BufferIndex needed = kNone;           // as soon as they are
};

struct Turns {
  std::vector<Turn> turns = {};  // in order of time; none where there is no such pattern
  Bytes freed = 0;               // by each
  Bytes besides = 0;             // what each needs more than it frees: no more than it frees
};

// A buffer that is smaller than this part of the peak is passed over.
inline constexpr Bytes kSmallPart = 30'000;

// Of the largest size that is needed several times where hardly anything is idle, if each time the
// same is freed before it. Buffers that wrap round are passed over. O(n log n).
Turns find_turns(const Problem& problem, const Timeline& timeline, const std::vector<Bytes>& load);

}  // namespace stalloc::solve
