// Finds the peaks of a pipeline's steady state: what each backward pass frees first, and the buffer
// that it needs at once.
//
//   load ^      . needed       . needed        The needed buffer is as large as the freed ones and
//        |  /\_/ \         /\_/ \              all idle bytes together. So the freed buffers and
//        | /  freed        /  freed            the hole have to be adjacent.
//        +----- peak 0 ------ peak 1 --> tick
#pragma once

#include <vector>

#include "solve/core/order.h"
#include "solve/core/problem.h"
#include "solve/core/timeline.h"

namespace stalloc::solve {

struct Peak {
  std::vector<BufferIndex> freed = {};  // by end; not empty
  BufferIndex needed = kNone;           // as soon as they are
};

struct Peaks {
  std::vector<Peak> peaks = {};  // in order of time; empty if there is no such pattern
  Bytes freed = 0;               // bytes that each peak frees
  Bytes besides = 0;             // bytes that each needs beyond these: no more than `freed`
};

// Buffers below this part of the highest load are ignored.
inline constexpr Bytes kSmallPart = 30'000;

// Takes the largest size that is needed several times when hardly anything is idle, if the same
// bytes are freed before it each time. Ignores buffers that wrap round. O(n log n).
Peaks find_peaks(const Problem& problem, const Timeline& timeline, const std::vector<Bytes>& load);

}  // namespace stalloc::solve
