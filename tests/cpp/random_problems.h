// The generator of random problems for all tests: every shape, the same on every machine.
#pragma once

#include <cstdint>
#include <random>
#include <vector>

#include "solve/core/problem.h"

namespace stalloc {

struct Shape {
  enum class Lifetimes : std::uint8_t { kAny, kFromZero, kNested };

  int buffers = 8;
  Tick ticks = 12;
  Bytes largest = 9;  // sizes, in units
  Bytes unit = 1;
  Bytes alignment = 1;
  bool circular = false;
  Lifetimes lifetimes = Lifetimes::kAny;
};

class RandomProblems {
 public:
  explicit RandomProblems(std::uint32_t seed) : engine_(seed) {}

  // Uniform in [low, high]; std::uniform_int_distribution is not the same everywhere.
  std::int64_t number(std::int64_t low, std::int64_t high) {
    return low + static_cast<std::int64_t>(engine_() % static_cast<std::uint64_t>(high - low + 1));
  }

  // A problem of that shape. Some buffers have no size or no lifetime, some come twice.
  solve::Problem next(const Shape& shape) {
    solve::Problem problem;
    problem.alignment = shape.alignment;
    if (shape.circular) problem.period = shape.ticks;
    for (int i = 0; i < shape.buffers; ++i) {
      solve::Buffer b;
      b.size = number(0, 12) == 0 ? 0 : number(1, shape.largest) * shape.unit;
      if (shape.lifetimes == Shape::Lifetimes::kNested) {
        b.lower = number(0, (shape.ticks - 1) / 2);
        b.upper = shape.ticks - b.lower;
      } else {
        if (shape.lifetimes == Shape::Lifetimes::kAny) b.lower = number(0, shape.ticks - 1);
        b.upper = b.lower + number(0, shape.circular ? shape.ticks : shape.ticks - b.lower);
      }
      if (i > 0 && number(0, 5) == 0) b = problem.buffers[number(0, i - 1)];
      problem.buffers.push_back(b);
    }
    return problem;
  }

  // A problem of any shape with up to `most` buffers.
  solve::Problem next(int most, bool circular) {
    return next({.buffers = static_cast<int>(number(0, most)),
                 .ticks = number(1, 20),
                 .largest = number(0, 3) == 0 ? 3 : 4000,
                 .alignment = std::vector<Bytes>{1, 4, 512}[number(0, 2)],
                 .circular = circular,
                 .lifetimes = static_cast<Shape::Lifetimes>(number(0, 3) % 3)});
  }

 private:
  std::mt19937 engine_;
};

inline solve::Problem random_problem(const Shape& shape, std::uint32_t seed) {
  return RandomProblems(seed).next(shape);
}

}  // namespace stalloc
