#include "solve/core/origin.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "base/align.h"

namespace stalloc::solve {

Tick lightest_tick(const Problem& problem) {
  // Frees come before allocations: a tick's crossing bytes were live before it and still are.
  std::vector<std::pair<Tick, Bytes>> changes;
  Bytes crossing = 0;
  for (const Buffer& b : problem.buffers) {
    if (b.upper <= b.lower || b.upper - b.lower == problem.period) continue;
    const Bytes size = align_up(b.size, problem.alignment);
    changes.emplace_back(b.lower, size);
    if (b.upper >= problem.period) {
      changes.emplace_back(b.upper - problem.period, -size);
      if (b.upper > problem.period) crossing += size;
    } else {
      changes.emplace_back(b.upper, -size);
    }
  }
  std::sort(changes.begin(), changes.end());
  // A free at tick 0 ends a life that lasted to the end of the period: it crosses nothing.
  Tick best = 0;
  Bytes least = crossing;
  std::size_t k = 0;
  for (; k < changes.size() && changes[k].first == 0; ++k) {
    if (changes[k].second > 0) crossing += changes[k].second;
  }
  while (k < changes.size()) {
    const Tick tick = changes[k].first;
    for (; k < changes.size() && changes[k].first == tick && changes[k].second < 0; ++k) {
      crossing += changes[k].second;
    }
    if (crossing < least) {
      least = crossing;
      best = tick;
    }
    for (; k < changes.size() && changes[k].first == tick; ++k) crossing += changes[k].second;
  }
  return best;
}

Problem with_origin(const Problem& problem, Tick origin) {
  Problem result = problem;
  bool is_line = true;
  for (Buffer& b : result.buffers) {
    const Tick lifetime = b.upper - b.lower;
    b.lower = b.lower >= origin ? b.lower - origin : b.lower - origin + problem.period;
    if (lifetime == problem.period) b.lower = 0;
    b.upper = b.lower + lifetime;
    if (b.size > 0 && b.upper > problem.period) is_line = false;
  }
  if (is_line) result.period = 0;
  return result;
}

}  // namespace stalloc::solve
