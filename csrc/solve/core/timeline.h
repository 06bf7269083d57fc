// Reduces time to the moments at which conflicts are decided.
//
// A moment is a tick at which the set of live buffers is maximal: the last of a run of allocations,
// before the next free. Every buffer lives through at least one moment, and two buffers are live
// together exactly if they share a moment. So spans of moments can replace lifetimes without losing
// or adding a conflict. A training trace has about a third as many moments as buffers.
//
//   events   A A A F F A F A A F        a moment is an A that is followed by an F
//   moments      0     1     2
//
// Holds (Problem::holds) count as allocations and frees here, so that their conflicts are decided
// at moments, too.
#pragma once

#include <cstdint>
#include <vector>

#include "base/types.h"
#include "solve/core/problem.h"

namespace stalloc::solve {

using Moment = std::int32_t;  // index of a maximal set of live buffers, in order of time

// A lifetime: [begin, end), and also [0, wrap) if it wraps round, where wrap <= begin. Empty if
// begin == end.
struct Span {
  Moment begin = 0;
  Moment end = 0;
  Moment wrap = 0;

  bool empty() const { return begin >= end; }
  bool contains(Moment m) const { return (m >= begin && m < end) || m < wrap; }
};

// A hold, as two spans that end with it.
struct HeldSpans {
  Span whole;  // from the beginning of the buffer
  Span rest;   // from the end of the buffer
};

class Timeline {
 public:
  // O(n) if ticks are dense, else O(n log n), for n buffers and holds. `problem` has passed
  // check(); streams are ignored.
  explicit Timeline(const Problem& problem);

  Moment moments() const { return moments_; }
  const std::vector<Span>& spans() const { return spans_; }  // of every buffer
  const Span& span(std::size_t buffer) const { return spans_[buffer]; }
  const std::vector<HeldSpans>& held() const { return held_; }  // of every hold

  // The sum of rounded live sizes at every moment.
  std::vector<Bytes> load(const Problem& problem) const;

 private:
  Moment moments_ = 0;
  std::vector<Span> spans_;
  std::vector<HeldSpans> held_;
};

}  // namespace stalloc::solve
