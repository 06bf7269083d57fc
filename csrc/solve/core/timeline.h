// Time reduced to the moments that matter.
//
// Two buffers are live together exactly when they share a moment at which the set of live buffers
// is maximal: at the last of a run of allocations, before the next free. Every buffer lives through
// at least one such moment, so lifetimes can be told as spans of moments without losing or adding a
// conflict. A training trace has about a third as many moments as it has buffers.
//
//   events   A A A F F A F A A F        moments are where an A is followed by an F
//   moments      0     1     2
#pragma once

#include <cstdint>
#include <vector>

#include "base/types.h"
#include "solve/core/problem.h"

namespace stalloc::solve {

using Moment = std::int32_t;  // index of a maximal set of live buffers, in order of time

// A lifetime: [begin, end), and for a circular one that wraps round [0, wrap) as well, where
// wrap <= begin. Empty when begin == end.
struct Span {
  Moment begin = 0;
  Moment end = 0;
  Moment wrap = 0;

  bool empty() const { return begin >= end; }
  bool contains(Moment m) const { return (m >= begin && m < end) || m < wrap; }
};

class Timeline {
 public:
  // O(n) where ticks are dense, else O(n log n). `problem` has passed check(); streams are ignored.
  explicit Timeline(const Problem& problem);

  Moment moments() const { return moments_; }
  const std::vector<Span>& spans() const { return spans_; }  // of every buffer
  const Span& span(std::size_t buffer) const { return spans_[buffer]; }

  // The sum of rounded live sizes at every moment.
  std::vector<Bytes> load(const Problem& problem) const;

 private:
  Moment moments_ = 0;
  std::vector<Span> spans_;
};

}  // namespace stalloc::solve
