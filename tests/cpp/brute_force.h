// The definitions that planners are tested against: conflicts, the optimum of tiny problems, and a
// layout that always exists.
#pragma once

#include <algorithm>
#include <functional>
#include <limits>
#include <vector>

#include "base/align.h"
#include "solve/core/problem.h"

namespace stalloc::testing {

// True if two buffers are ever live together. Streams are ignored.
inline bool live_together(const solve::Problem& problem, const solve::Buffer& a,
                          const solve::Buffer& b) {
  if (a.upper <= a.lower || b.upper <= b.lower) return false;
  const auto meet = [&](Tick shift) {
    return a.lower + shift < b.upper && b.lower < a.upper + shift;
  };
  return meet(0) || (problem.period > 0 && (meet(problem.period) || meet(-problem.period)));
}

// The height of the lowest layout; -1 if the fixed offsets leave none. Let every buffer of an
// optimal layout sink until it lies on another one or on the ground. In the order of their offsets,
// each then lies on the highest earlier one that it conflicts with. So this tries all orders whose
// offsets ascend. `conflict` is true for two buffers, by index, that may not overlap.
inline Bytes optimal_height(const solve::Problem& problem,
                            const std::function<bool(std::size_t, std::size_t)>& conflict) {
  const std::size_t n = problem.buffers.size();
  std::vector<Bytes> size;
  for (const solve::Buffer& b : problem.buffers)
    size.push_back(align_up(b.size, problem.alignment));
  std::vector<std::vector<std::size_t>> conflicts(n);
  for (std::size_t i = 0; i < n; ++i) {
    for (std::size_t j = 0; j < n; ++j) {
      if (i != j && size[i] > 0 && size[j] > 0 && conflict(i, j)) conflicts[i].push_back(j);
    }
  }
  std::vector<Offset> top(n, -1);
  Bytes best = std::numeric_limits<Bytes>::max();
  const auto search = [&](const auto& self, std::size_t placed, Offset last, Bytes height) -> void {
    if (height >= best) return;
    if (placed == n) best = height;
    for (std::size_t i = 0; i < n; ++i) {
      if (top[i] >= 0) continue;
      Offset offset = 0;
      for (const std::size_t j : conflicts[i]) offset = std::max(offset, top[j]);
      const Offset fixed = problem.buffers[i].fixed;
      if (fixed != kUnplaced && offset > fixed) continue;
      if (fixed != kUnplaced) offset = fixed;
      if (offset < last) continue;
      top[i] = offset + size[i];
      self(self, placed + 1, offset, std::max(height, top[i]));
      top[i] = -1;
    }
  };
  search(search, 0, 0, 0);
  return best == std::numeric_limits<Bytes>::max() ? -1 : best;
}

inline Bytes optimal_height(const solve::Problem& problem) {
  return optimal_height(problem, [&](std::size_t i, std::size_t j) {
    return live_together(problem, problem.buffers[i], problem.buffers[j]);
  });
}

// A layout that always exists, unless the fixed offsets clash: all free buffers stacked above the
// fixed ones.
inline solve::Layout stacked(const solve::Problem& problem) {
  solve::Layout layout;
  for (const solve::Buffer& b : problem.buffers) {
    if (b.fixed == kUnplaced) continue;
    layout.height = std::max(layout.height, b.fixed + align_up(b.size, problem.alignment));
  }
  for (const solve::Buffer& b : problem.buffers) {
    layout.offsets.push_back(b.fixed == kUnplaced ? layout.height : b.fixed);
    if (b.fixed == kUnplaced) layout.height += align_up(b.size, problem.alignment);
  }
  return layout;
}

}  // namespace stalloc::testing
