#include "solve/greedy/place_in_order.h"

#include <algorithm>

#include "base/align.h"
#include "solve/core/stream_placement.h"

namespace stalloc::solve {

std::optional<Layout> place_in_order(const Problem& problem, const Timeline& timeline,
                                     const std::vector<BufferIndex>& order, Fit fit,
                                     const Budget& budget, const std::atomic<Bytes>* limit) {
  constexpr std::size_t kPollEvery = 256;   // buffers between two looks at the clock
  constexpr std::int64_t kBestFitCost = 2;  // first-fit placements
  StreamPlacement placement(problem, timeline);
  Layout layout;
  layout.offsets.assign(problem.buffers.size(), 0);
  for (std::size_t i = 0; i < problem.buffers.size(); ++i) {
    const Buffer& b = problem.buffers[i];
    const Bytes size = align_up(b.size, problem.alignment);
    if (b.fixed != kUnplaced) {
      layout.offsets[i] = b.fixed;
      layout.height = std::max(layout.height, b.fixed + size);
      if (size > 0 && !timeline.span(i).empty()) placement.place(i, b.fixed, size);
    } else {
      layout.height = std::max(layout.height, size);
    }
  }
  budget.spend(fit == Fit::kFirst ? std::ssize(order) : kBestFitCost * std::ssize(order));
  bool late = false;
  for (std::size_t k = 0; k < order.size(); ++k) {
    const BufferIndex i = order[k];
    const Buffer& b = problem.buffers[i];
    if (b.fixed != kUnplaced) continue;
    const Bytes size = align_up(b.size, problem.alignment);
    if (k % kPollEvery == 0 && !late) late = budget.is_late();
    if (late) {
      layout.offsets[i] = layout.height;
    } else {
      layout.offsets[i] = fit == Fit::kFirst ? placement.first_fit(i, size)
                                             : placement.best_fit(i, size, layout.height);
      placement.place(i, layout.offsets[i], size);
    }
    layout.height = std::max(layout.height, layout.offsets[i] + size);
    if (limit && layout.height >= limit->load(std::memory_order_relaxed)) return std::nullopt;
  }
  return layout;
}

}  // namespace stalloc::solve
