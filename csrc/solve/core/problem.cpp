#include "solve/core/problem.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/align.h"
#include "base/error.h"

namespace stalloc::solve {
namespace {

[[noreturn]] void fail(std::size_t index, const std::string& what) {
  throw PlanError("buffer " + std::to_string(index) + " " + what);
}

void check_lifetime(const Problem& problem, std::size_t index) {
  const Buffer& b = problem.buffers[index];
  if (b.lower < 0) fail(index, "begins at tick " + std::to_string(b.lower) + ", before time 0");
  if (b.upper < b.lower) {
    fail(index, "ends at tick " + std::to_string(b.upper) + ", before it begins at tick " +
                    std::to_string(b.lower));
  }
  if (problem.period == 0) return;
  if (b.lower >= problem.period) {
    fail(index, "begins at tick " + std::to_string(b.lower) + ", outside the period of " +
                    std::to_string(problem.period) + " ticks");
  }
  if (b.upper - b.lower > problem.period) {
    fail(index, "lives for " + std::to_string(b.upper - b.lower) +
                    " ticks, more than the period of " + std::to_string(problem.period));
  }
}

void check_fixed(const Problem& problem, std::size_t index) {
  const Offset fixed = problem.buffers[index].fixed;
  if (fixed == kUnplaced) return;
  if (fixed < 0) fail(index, "is fixed at the negative offset " + std::to_string(fixed));
  if (fixed % problem.alignment != 0) {
    fail(index, "is fixed at offset " + std::to_string(fixed) + ", which is no multiple of " +
                    std::to_string(problem.alignment));
  }
}

void check_idle(const Problem& problem) {
  if (!problem.idle.empty() && problem.streams == Streams::kOrdered) {
    throw PlanError("idle intervals and ordered streams do not go together");
  }
  for (std::size_t k = 0; k < problem.idle.size(); ++k) {
    const IdleInterval& interval = problem.idle[k];
    if (interval.buffer < 0 ||
        static_cast<std::size_t>(interval.buffer) >= problem.buffers.size()) {
      throw PlanError("idle interval " + std::to_string(k) + " is of buffer " +
                      std::to_string(interval.buffer) + ", and there are " +
                      std::to_string(problem.buffers.size()));
    }
    const auto index = static_cast<std::size_t>(interval.buffer);
    const std::string named = "has an idle interval from tick " + std::to_string(interval.lower) +
                              " to " + std::to_string(interval.upper) + ", ";
    const Buffer& b = problem.buffers[index];
    if (interval.upper <= interval.lower) fail(index, named + "which is empty or reversed");
    if (interval.lower < b.lower || interval.upper > b.upper) {
      fail(index, named + "outside its lifetime from " + std::to_string(b.lower) + " to " +
                      std::to_string(b.upper));
    }
    if (k == 0) continue;
    const IdleInterval& before = problem.idle[k - 1];
    if (before.buffer > interval.buffer ||
        (before.buffer == interval.buffer && before.upper > interval.lower)) {
      fail(index, named + "which overlaps the one before it, or is out of order");
    }
  }
}

void check_holds(const Problem& problem) {
  if (!problem.holds.empty() && problem.streams == Streams::kSeparate) {
    throw PlanError("holds and separate streams do not go together");
  }
  for (std::size_t k = 0; k < problem.holds.size(); ++k) {
    const auto& [buffer, stream, until] = problem.holds[k];
    if (buffer < 0 || static_cast<std::size_t>(buffer) >= problem.buffers.size()) {
      throw PlanError("hold " + std::to_string(k) + " is of buffer " + std::to_string(buffer) +
                      ", and there are " + std::to_string(problem.buffers.size()));
    }
    const auto index = static_cast<std::size_t>(buffer);
    const std::string named = "is held for stream " + std::to_string(stream) + " until tick " +
                              std::to_string(until) + ", ";
    const Buffer& b = problem.buffers[index];
    if (stream == b.stream) fail(index, named + "which is its own");
    if (until <= b.upper) {
      fail(index, named + "and ends only at tick " + std::to_string(b.upper));
    }
    if (problem.period > 0 && until - b.lower > problem.period) {
      fail(index, named + "more than the period of " + std::to_string(problem.period) +
                      " ticks after tick " + std::to_string(b.lower));
    }
    if (k == 0) continue;
    const Hold& before = problem.holds[k - 1];
    if (std::pair{before.buffer, before.stream} >= std::pair{buffer, stream}) {
      fail(index, named + "out of order, or twice");
    }
  }
}

}  // namespace

void Problem::check() const {
  if (alignment <= 0) {
    throw PlanError("the alignment must be positive, and is " + std::to_string(alignment));
  }
  if (period < 0) throw PlanError("the period must not be negative: " + std::to_string(period));
  if (capacity < 0)
    throw PlanError("the capacity must not be negative: " + std::to_string(capacity));
  // No planner ends higher than the highest fixed end plus the sizes of all other buffers. If that
  // fits in Bytes, no planner's sum can overflow.
  Bytes sum = 0;
  Offset highest_fixed = 0;
  for (std::size_t i = 0; i < buffers.size(); ++i) {
    const Buffer& b = buffers[i];
    if (b.size < 0) fail(i, "has the negative size " + std::to_string(b.size));
    check_lifetime(*this, i);
    check_fixed(*this, i);
    highest_fixed = std::max(highest_fixed, b.fixed);
    if (__builtin_add_overflow(sum, align_up(b.size, alignment), &sum)) {
      throw OverflowError("the sizes up to buffer " + std::to_string(i) +
                          " add up to more than fits in 63 bits; scale them down");
    }
  }
  check_idle(*this);
  check_holds(*this);
  if (Bytes top = 0; __builtin_add_overflow(sum, highest_fixed, &top)) {
    throw OverflowError("the fixed offset " + std::to_string(highest_fixed) +
                        " and the sum of all sizes do not fit in 63 bits; scale them down");
  }
}

}  // namespace stalloc::solve
