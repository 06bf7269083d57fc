#include "plan/repair.h"

#include <algorithm>

#include "base/align.h"

namespace stalloc {
namespace {

// Rounds without anything better, after which repair mostly goes round in a circle.
constexpr int kFruitless = 8;

}  // namespace

Layout repaired(const Problem& problem, const Timeline& timeline, std::vector<BufferIndex> order,
                Fit fit, int rounds, const Budget& budget) {
  Layout best = *place_in_order(problem, timeline, order, fit, budget);
  Layout latest = best;
  int fruitless = 0;  // rounds in a row
  for (int round = 0;
       round < rounds && fruitless < kFruitless && best.height > budget.target && !budget.expired();
       ++round) {
    const auto too_high = [&](BufferIndex i) {
      const Buffer& b = problem.buffers[i];
      return latest.offsets[i] + align_up(b.size, problem.alignment) > budget.target;
    };
    std::stable_partition(order.begin(), order.end(), too_high);
    latest = *place_in_order(problem, timeline, order, fit, budget);
    ++fruitless;
    if (latest.height < best.height) {
      best = latest;
      fruitless = 0;
    }
  }
  return best;
}

}  // namespace stalloc
