// What planners are measured against: the optimum of tiny problems, and problems of every shape.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <limits>
#include <random>
#include <vector>

#include "base/align.h"
#include "solve/core/problem.h"

namespace stalloc::testing {

inline bool live_together(const solve::Problem& problem, const solve::Buffer& a,
                          const solve::Buffer& b) {
  if (a.upper <= a.lower || b.upper <= b.lower) return false;
  const auto meet = [&](Tick shift) {
    return a.lower + shift < b.upper && b.lower < a.upper + shift;
  };
  return meet(0) || (problem.period > 0 && (meet(problem.period) || meet(-problem.period)));
}

// The height of the lowest layout; -1 where the fixed offsets leave none. In some order, that of
// the offsets, each buffer of an optimal layout lies on the highest it conflicts with before it:
// all orders are tried. `conflict` says whether two buffers, by index, may not overlap.
inline Bytes optimal_height(const solve::Problem& problem,
                            const std::function<bool(std::size_t, std::size_t)>& conflict) {
  const std::size_t n = problem.buffers.size();
  std::vector<Bytes> size;
  for (const solve::Buffer& b : problem.buffers)
    size.push_back(align_up(b.size, problem.alignment));
  std::vector<Offset> top(n, -1);
  Bytes best = std::numeric_limits<Bytes>::max();
  const auto search = [&](const auto& self, std::size_t placed, Bytes height) -> void {
    if (height >= best) return;
    if (placed == n) best = height;
    for (std::size_t i = 0; i < n; ++i) {
      if (top[i] >= 0) continue;
      Offset offset = 0;
      for (std::size_t j = 0; j < n; ++j) {
        if (top[j] > offset && size[i] > 0 && size[j] > 0 && conflict(i, j)) offset = top[j];
      }
      const Offset fixed = problem.buffers[i].fixed;
      if (fixed != kUnplaced && offset > fixed) continue;
      top[i] = (fixed == kUnplaced ? offset : fixed) + size[i];
      self(self, placed + 1, std::max(height, top[i]));
      top[i] = -1;
    }
  };
  search(search, 0, 0);
  return best == std::numeric_limits<Bytes>::max() ? -1 : best;
}

inline Bytes optimal_height(const solve::Problem& problem) {
  return optimal_height(problem, [&](std::size_t i, std::size_t j) {
    return live_together(problem, problem.buffers[i], problem.buffers[j]);
  });
}

// A layout there always is, unless the fixed offsets clash: the free buffers one on top of the
// other, above those that are fixed.
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

struct Shape {
  int buffers = 8;
  Tick ticks = 12;
  Bytes largest = 9;
  Bytes alignment = 1;
  bool circular = false;
  bool nested = false;  // lifetimes contain one another
};

inline solve::Problem random_problem(const Shape& shape, std::uint32_t seed) {
  std::mt19937 random(seed);
  const auto draw = [&](std::int64_t low, std::int64_t high) {
    return low + static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(high - low + 1));
  };
  solve::Problem problem;
  problem.alignment = shape.alignment;
  if (shape.circular) problem.period = shape.ticks;
  for (int i = 0; i < shape.buffers; ++i) {
    solve::Buffer b;
    b.size = draw(0, 12) == 0 ? 0 : draw(1, shape.largest) * shape.alignment;
    if (shape.nested) {
      b.lower = draw(0, shape.ticks / 2 - 1);
      b.upper = shape.ticks - b.lower;
    } else {
      b.lower = draw(0, shape.ticks - 1);
      b.upper = b.lower + draw(0, shape.circular ? shape.ticks : shape.ticks - b.lower);
    }
    if (i > 0 && draw(0, 5) == 0) b = problem.buffers[draw(0, i - 1)];
    problem.buffers.push_back(b);
  }
  return problem;
}

}  // namespace stalloc::testing
