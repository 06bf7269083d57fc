#include "solve/core/active_parts.h"

namespace stalloc::solve {

ActiveParts active_parts(const Problem& problem) {
  ActiveParts parts;
  parts.problem.period = problem.period;
  parts.problem.alignment = problem.alignment;
  parts.problem.streams = problem.streams;
  auto interval = problem.idle.begin();
  for (std::size_t i = 0; i < problem.buffers.size(); ++i) {
    const auto index = static_cast<std::int32_t>(i);
    parts.first.push_back(parts.owner.size());
    Buffer part = problem.buffers[i];
    const auto add = [&](Tick lower, Tick upper) {
      // A part that begins after the end of the period begins in the next one.
      const Tick shift = problem.period > 0 && lower >= problem.period ? problem.period : 0;
      part.lower = lower - shift;
      part.upper = upper - shift;
      parts.problem.buffers.push_back(part);
      parts.owner.push_back(index);
    };
    Tick reached = part.lower;
    const Tick end = part.upper;
    for (; interval != problem.idle.end() && interval->buffer == index; ++interval) {
      if (interval->lower > reached) add(reached, interval->lower);
      reached = interval->upper;
    }
    if (reached < end || parts.owner.size() == parts.first.back()) add(reached, end);
  }
  parts.first.push_back(parts.owner.size());
  return parts;
}

}  // namespace stalloc::solve
