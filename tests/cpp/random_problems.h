// Small random problems of every shape, the same on every machine.
#pragma once

#include <algorithm>
#include <cstdint>
#include <random>
#include <vector>

#include "solve/core/problem.h"

namespace stalloc {

class RandomProblems {
 public:
  explicit RandomProblems(std::uint32_t seed) : engine_(seed) {}

  // Uniform in [low, high]; std::uniform_int_distribution is not the same everywhere.
  std::int64_t number(std::int64_t low, std::int64_t high) {
    return low + static_cast<std::int64_t>(engine_() % static_cast<std::uint64_t>(high - low + 1));
  }

  // Up to `most` buffers: tall, wide, nested, without size, without lifetime, twice the same.
  solve::Problem next(int most, bool circular) {
    solve::Problem problem;
    problem.alignment = std::vector<Bytes>{1, 4, 512}[number(0, 2)];
    const Tick end = number(1, 20);
    if (circular) problem.period = end;
    const auto count = static_cast<std::size_t>(number(0, most));
    const std::int64_t shape = number(0, 3);
    while (problem.buffers.size() < count) {
      solve::Buffer b;
      b.size = shape == 0 ? number(0, 3) : number(0, 4000);
      b.lower = shape == 1 ? number(0, 0) : number(0, end - 1);
      if (shape == 2) {
        const Tick inset = std::min<Tick>(number(0, end / 2), (end - 1) / 2);
        b.lower = inset;
        b.upper = end - inset;
      } else {
        b.upper = number(b.lower, circular ? b.lower + end : end);
      }
      problem.buffers.push_back(b);
      if (number(0, 3) == 0 && problem.buffers.size() < count) problem.buffers.push_back(b);
    }
    return problem;
  }

 private:
  std::mt19937 engine_;
};

// Whether two buffers of one stream are ever live together: the definition, tick by tick.
inline bool conflict(const solve::Problem& problem, const solve::Buffer& a,
                     const solve::Buffer& b) {
  const auto live = [&](const solve::Buffer& x, Tick t) {
    if (t >= x.lower && t < x.upper) return true;
    return problem.period > 0 && t + problem.period >= x.lower && t + problem.period < x.upper;
  };
  Tick end = problem.period;
  if (problem.period == 0) end = std::max(a.upper, b.upper);
  for (Tick t = 0; t < end; ++t) {
    if (live(a, t) && live(b, t)) return true;
  }
  return false;
}

}  // namespace stalloc
