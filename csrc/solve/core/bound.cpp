#include "solve/core/bound.h"

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "base/align.h"
#include "solve/core/active_parts.h"

namespace stalloc::solve {
namespace {

struct Change {
  Tick tick;
  Bytes delta;  // frees sort before allocations of the same tick
  auto operator<=>(const Change&) const = default;
};

Bytes highest_sum(std::vector<Change>& changes) {
  std::sort(changes.begin(), changes.end());
  Bytes live = 0;
  Bytes highest = 0;
  for (const Change& change : changes) highest = std::max(highest, live += change.delta);
  return highest;
}

}  // namespace

Bytes load_bound(const Problem& problem) {
  if (!problem.idle.empty()) return load_bound(active_parts(problem).problem);
  std::map<StreamId, std::vector<Change>> streams;
  Bytes alone = 0;
  for (const Buffer& b : problem.buffers) {
    const Bytes size = align_up(b.size, problem.alignment);
    if (b.fixed != kUnplaced) alone = std::max(alone, b.fixed + size);
    alone = std::max(alone, size);
    if (size == 0 || b.upper <= b.lower) continue;
    std::vector<Change>& changes = streams[problem.streams == Streams::kSeparate ? b.stream : 0];
    changes.push_back({b.lower, size});
    if (problem.period > 0 && b.upper > problem.period) {
      changes.push_back({problem.period, -size});
      changes.push_back({0, size});
      changes.push_back({b.upper - problem.period, -size});
    } else {
      changes.push_back({b.upper, -size});
    }
  }
  Bytes sum = 0;
  for (auto& [stream, changes] : streams) sum += highest_sum(changes);
  return std::max(sum, alone);
}

}  // namespace stalloc::solve
