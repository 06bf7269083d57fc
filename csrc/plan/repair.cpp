#include "plan/repair.h"

#include <algorithm>

#include "base/align.h"

namespace stalloc {

Layout repaired(const Problem& problem, const Timeline& timeline, std::vector<BufferIndex> order,
                Fit fit, int rounds, const Budget& budget) {
  Layout best = *place_in_order(problem, timeline, order, fit, budget);
  Layout latest = best;
  for (int round = 0; round < rounds && best.height > budget.target && !budget.expired(); ++round) {
    const auto too_high = [&](BufferIndex i) {
      const Buffer& b = problem.buffers[i];
      return latest.offsets[i] + align_up(b.size, problem.alignment) > budget.target;
    };
    std::stable_partition(order.begin(), order.end(), too_high);
    latest = *place_in_order(problem, timeline, order, fit, budget);
    if (latest.height < best.height) best = latest;
  }
  return best;
}

}  // namespace stalloc
