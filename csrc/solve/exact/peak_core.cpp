#include "solve/exact/peak_core.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>
#include <vector>

#include "base/align.h"
#include "solve/core/order.h"
#include "solve/core/timeline.h"
#include "solve/exact/exact_model.h"
#include "solve/exact/exact_search.h"
#include "solve/greedy/greedy.h"
#include "solve/greedy/repair.h"

namespace stalloc::solve {
namespace {

constexpr std::int64_t kNodesPerCore = 20000;
constexpr int kRepairs = 4;
// With more buffers, the other orders and repairs cost more than they gain.
constexpr std::size_t kManyBuffers = 20'000;
constexpr int kRepairsOfMany = 2;

// The problem without free buffers that live at no critical moment. It has all buffers of the whole
// problem, in the same order, but those left out have an empty lifetime.
Problem core_of(const Problem& problem, const Timeline& timeline,
                const std::vector<char>& is_critical) {
  std::vector<Moment> before(is_critical.size() + 1, 0);  // by moment: critical ones before it
  for (std::size_t m = 0; m < is_critical.size(); ++m) before[m + 1] = before[m] + is_critical[m];
  Problem core = problem;
  core.capacity = 0;
  for (std::size_t i = 0; i < core.buffers.size(); ++i) {
    const Span& span = timeline.span(i);
    if (core.buffers[i].fixed != kUnplaced) continue;
    const bool is_in = before[span.end] > before[span.begin] || before[span.wrap] > 0;
    if (!is_in) core.buffers[i].upper = core.buffers[i].lower;
  }
  return core;
}

class PeakCore {
 public:
  PeakCore(const Problem& problem, const Layout& start, const Budget& budget)
      : problem_(problem),
        budget_(budget),
        is_many_(problem.buffers.size() > kManyBuffers),
        timeline_(problem),
        load_(timeline_.load(problem)),
        is_critical_(load_.size(), false),
        best_{start, 0} {
    for (const Order order : {Order::kPeakRankSize, Order::kCentreOutSize, Order::kSize,
                              Order::kPeakRankEnd, Order::kArea}) {
      if (is_many_ && !orders_.empty()) break;
      orders_.push_back(ordered(problem, timeline_, order));
    }
    for (const Bytes load : load_) best_.bound = std::max(best_.bound, load);
    for (const Buffer& b : problem.buffers) {
      const Bytes size = align_up(b.size, problem.alignment);
      best_.bound = std::max(best_.bound, b.fixed == kUnplaced ? size : b.fixed + size);
    }
    if (load_.empty()) return;
    const Bytes highest = *std::max_element(load_.begin(), load_.end());
    for (std::size_t m = 0; m < load_.size(); ++m) is_critical_[m] = load_[m] == highest;
  }

  Minimum run(std::int64_t nodes) {
    while (best_.layout.height > aim() && nodes > 0 && !budget_.expired()) {
      budget_.spend(std::ssize(problem_.buffers));
      const Problem core = core_of(problem_, timeline_, is_critical_);
      const ExactModel model(core);
      if (!model.fits()) break;
      ExactSearch search(model);
      const Units height = aim() / model.unit - model.base;
      const Verdict verdict = search.run(height, std::min(nodes, kNodesPerCore), budget_);
      nodes -= std::max<std::int64_t>(search.nodes(), 1);
      if (verdict == Verdict::kFound) {
        complete(core, model.layout(core, search.offsets()));
      } else if (verdict == Verdict::kInfeasible) {
        best_.bound = std::max(best_.bound, (height + model.base + 1) * model.unit);
      } else {  // too hard: allow a little more height
        relaxed_ = aim() + std::max((best_.layout.height - aim()) / 2, problem_.alignment);
      }
    }
    return std::move(best_);
  }

 private:
  Bytes aim() const { return std::max({best_.bound, budget_.target, relaxed_}); }

  // Places the other buffers around the core. The busiest moments of those that do not fit become
  // critical.
  void complete(const Problem& core, const Layout& core_layout) {
    Problem rest = problem_;
    for (std::size_t i = 0; i < rest.buffers.size(); ++i) {
      if (core.buffers[i].upper > core.buffers[i].lower) {
        rest.buffers[i].fixed = core_layout.offsets[i];
      }
    }
    Budget budget = budget_;
    budget.target = aim();
    const int repairs = is_many_ ? kRepairsOfMany : kRepairs;
    Layout lowest;
    for (const std::vector<BufferIndex>& order : orders_) {
      Layout layout = repaired(rest, timeline_, order, Fit::kFirst, repairs, budget);
      if (lowest.offsets.empty() || layout.height < lowest.height) lowest = std::move(layout);
      if (lowest.height <= aim()) break;
    }
    for (std::size_t i = 0; i < rest.buffers.size(); ++i) {
      const Bytes top = lowest.offsets[i] + align_up(rest.buffers[i].size, rest.alignment);
      if (top > aim() && !timeline_.span(i).empty())
        is_critical_[busiest(timeline_.span(i))] = true;
    }
    if (lowest.height < best_.layout.height) best_.layout = std::move(lowest);
  }

  Moment busiest(const Span& span) const {
    Moment best = span.begin;
    for (Moment m = span.begin; m < span.end; ++m) {
      if (load_[m] > load_[best]) best = m;
    }
    for (Moment m = 0; m < span.wrap; ++m) {
      if (load_[m] > load_[best]) best = m;
    }
    return best;
  }

  const Problem& problem_;
  const Budget& budget_;
  const bool is_many_;
  Timeline timeline_;
  std::vector<Bytes> load_;
  std::vector<char> is_critical_;
  std::vector<std::vector<BufferIndex>> orders_;
  Bytes relaxed_ = 0;  // the target if the bound is too hard
  Minimum best_;
};

}  // namespace

Minimum solve_peak_core(const Problem& problem, const Layout& start, std::int64_t nodes,
                        const Budget& budget) {
  return PeakCore(problem, start, budget).run(nodes);
}

Layout PeakCorePlanner::plan(const Problem& problem, const Budget& budget) const {
  const Timeline timeline(problem);
  const Layout start = *place_in_order(
      problem, timeline, ordered(problem, timeline, Order::kPeakRankSize), Fit::kFirst, budget);
  return solve_peak_core(problem, start, std::numeric_limits<std::int64_t>::max(), budget).layout;
}

}  // namespace stalloc::solve
