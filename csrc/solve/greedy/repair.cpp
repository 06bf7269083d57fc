#include "solve/greedy/repair.h"

#include <algorithm>

#include "base/align.h"

namespace stalloc::solve {
namespace {

// The most rounds without improvement. After these, repair mostly repeats itself.
constexpr int kFruitless = 8;

// Repair gains most in the first rounds. With so many buffers, a layout that is still a sixteenth
// above the target after these rounds is given up: other planners will be lower.
constexpr int kTrial = 3;
constexpr std::size_t kDear = 30'000;
constexpr Bytes kHopelessPart = 16;

}  // namespace

Layout repaired(const Problem& problem, const Timeline& timeline, std::vector<BufferIndex> order,
                Fit fit, int rounds, const Budget& budget) {
  Layout best = *place_in_order(problem, timeline, order, fit, budget);
  Layout latest = best;
  int fruitless = 0;  // consecutive rounds without improvement
  for (int round = 0;
       round < rounds && fruitless < kFruitless && best.height > budget.target && !budget.expired();
       ++round) {
    const bool is_far = best.height - budget.target > budget.target / kHopelessPart;
    if (round >= kTrial && order.size() > kDear && is_far) break;
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

}  // namespace stalloc::solve
