// Iterates over a trace's allocations and frees in their order. Cost: O(n log n) once.
#pragma once

#include <algorithm>
#include <vector>

#include "trace/trace.h"

namespace stalloc::replay {

// Calls allocate(index) and free(index), with indices into Trace::requests, in order of ticks, and
// now(tick) before each call. A free at the tick of an allocation comes first: lifetimes are
// half-open. Returns when allocate() returns false.
template <typename Now, typename Allocate, typename Free>
void for_each_event(const trace::Trace& trace, Now now, Allocate allocate, Free free) {
  std::vector<std::int32_t> frees;  // by upper
  for (std::size_t i = 0; i < trace.requests.size(); ++i) {
    if (trace.requests[i].upper != kNever) frees.push_back(static_cast<std::int32_t>(i));
  }
  const auto upper = [&](std::int32_t i) {
    return trace.requests[static_cast<std::size_t>(i)].upper;
  };
  std::ranges::stable_sort(frees, {}, upper);
  auto next = frees.begin();
  const auto free_until = [&](Tick tick) {
    for (; next != frees.end() && upper(*next) <= tick; ++next) {
      now(upper(*next));
      free(*next);
    }
  };
  for (std::size_t i = 0; i < trace.requests.size(); ++i) {
    const Tick tick = trace.requests[i].lower;
    free_until(tick);
    now(tick);
    if (!allocate(static_cast<std::int32_t>(i))) return;
  }
  free_until(kNever);
}

// Tells once that a tick lies in the last complete iteration or after it.
class LastIteration {
 public:
  explicit LastIteration(const trace::Trace& trace)
      : begin_(trace.iterations.size() < 2 ? kNever : *(trace.iterations.end() - 2)) {}

  bool begins(Tick tick) {
    if (begun_ || begin_ == kNever || tick < begin_) return false;
    return begun_ = true;
  }

 private:
  const Tick begin_;
  bool begun_ = false;
};

}  // namespace stalloc::replay
