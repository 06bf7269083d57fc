#include "solve/search/multilevel.h"

#include <algorithm>
#include <array>
#include <limits>
#include <numeric>
#include <random>
#include <utility>
#include <vector>

#include "solve/core/bound.h"
#include "solve/core/order.h"
#include "solve/core/placement.h"
#include "solve/core/timeline.h"
#include "solve/greedy/greedy.h"
#include "solve/greedy/repair.h"
#include "solve/search/coarse_problem.h"

namespace stalloc::solve {
namespace {

// Squeaky wheel.
constexpr double kLoadStep = 0.02;     // average gain in priority, as a part of the target
constexpr double kTimeStep = 0.5;      // the same, as a part of the mean lifetime
constexpr int kRoundsToRestart = 120;  // most searches that succeed take less
constexpr int kRoundsOfTrial = 2 * kRoundsToRestart;
constexpr int kRoundsToImprove = 40;  // a search that succeeds has improved on its starts by then
constexpr std::int64_t kPlacementsAlone = 250'000;
constexpr Bytes kRepairablePart = 1000;  // the part of the target by which a layout may exceed it
constexpr int kRepairs = 3;              // of the details
constexpr Bytes kHighest = std::numeric_limits<Bytes>::max() / 64;  // stacks of blocks fit in Bytes

// Places units in the order of their priorities, again and again.
//
// Each start has other priorities. In order of time, a layout grows from one end of time to the
// other, so few holes are left, and a gain in priority changes the layout nearby only. By load, the
// fullest moments are packed first.
class SqueakyWheel {
 public:
  SqueakyWheel(const CoarseProblem& coarse, Bytes target)
      : coarse_(coarse), target_(target), order_(coarse.units().size()) {
    priority_.resize(order_.size());
    double lifetimes = 0;
    double blocks = 0;
    for (const Unit& unit : coarse.units()) {
      if (unit.is_rectangle) continue;
      lifetimes += unit.end - unit.first;
      blocks += 1;
    }
    time_step_ = kTimeStep * lifetimes / std::max(blocks, 1.0);
  }

  // Ends with a height of at most the target, or when `placements` or the budget are used up. Gives
  // up early if no height is below `useful`, and earlier if the rounds do not improve on the
  // starts.
  void run(std::int64_t placements, Bytes useful, const Budget& budget) {
    const std::int64_t cost = std::max<std::int64_t>(std::ssize(coarse_.blocks()), 1);
    for (const Start kind : kStarts) {
      if (placements <= 0 || budget.expired()) return;
      start(kind, /*jitter=*/0);
      budget.spend(cost);
      if (place_all() <= target_) return;
      placements -= cost;
    }
    const Bytes first = best_height_;
    for (int round = 0; placements > 0 && !budget.expired(); ++round, placements -= cost) {
      const int trial = best_height_ < first ? kRoundsOfTrial : kRoundsToImprove;
      if (round >= trial && best_height_ >= useful) return;
      const auto number = static_cast<std::size_t>(round / kRoundsToRestart);
      if (round % kRoundsToRestart == 0) {
        start(kStarts[number % kStarts.size()], number < kStarts.size() ? 0 : 1);
      } else {
        raise_failed();
      }
      budget.spend(cost);
      if (place_all() <= target_) return;
    }
  }

  Bytes best_height() const { return best_height_; }
  const std::vector<Offset>& best_offsets() const { return best_offsets_; }

 private:
  enum class Start : std::uint8_t { kBirth, kDeath, kLoad };
  static constexpr std::array kStarts = {Start::kBirth, Start::kDeath, Start::kLoad};

  double random_share() { return static_cast<double>(random_() >> 11) * 0x1p-53; }  // below 1

  // Returns the height.
  Bytes place_all() {
    std::ranges::stable_sort(order_, std::ranges::greater{},
                             [&](std::size_t unit) { return priority_[unit]; });
    const std::vector<Block>& blocks = coarse_.blocks();
    Placement placement(coarse_.pieces());
    Bytes height = 0;
    offsets_.assign(blocks.size(), 0);
    const auto place = [&](std::size_t k, Offset offset) {
      placement.place(blocks[k].span, offset, blocks[k].size);
      offsets_[k] = offset;
      height = std::max(height, offset + blocks[k].size);
      return offset + blocks[k].size <= target_;
    };
    for (std::size_t k = 0; k < blocks.size(); ++k) {
      if (blocks[k].fixed != kUnplaced) place(k, blocks[k].fixed);
    }
    failed_.clear();
    for (const std::size_t unit : order_) {
      bool fits = true;
      for (const std::size_t k : coarse_.units()[unit].blocks) {
        if (!place(k, placement.first_fit(blocks[k].span, blocks[k].size))) fits = false;
      }
      if (!fits) failed_.push_back(unit);
    }
    if (height < best_height_) {
      best_height_ = height;
      best_offsets_ = offsets_;
    }
    return height;
  }

  // By load, a unit of many blocks displaces many others, so it gains less.
  void raise_failed() {
    for (const std::size_t unit : failed_) {
      const std::size_t blocks = start_ == Start::kLoad ? coarse_.units()[unit].blocks.size() : 1;
      priority_[unit] += step() * (0.5 + random_share()) / static_cast<double>(blocks);
    }
  }

  // `jitter` is in steps.
  void start(Start kind, double jitter) {
    start_ = kind;
    std::iota(order_.begin(), order_.end(), 0);
    for (std::size_t unit = 0; unit < priority_.size(); ++unit) {
      priority_[unit] = first_priority(coarse_.units()[unit]);
      if (jitter > 0) priority_[unit] += jitter * step() * (random_share() - 0.5);
    }
  }

  // In order of time, a rectangle comes after all blocks of its piece.
  double first_priority(const Unit& unit) const {
    if (start_ == Start::kLoad) return static_cast<double>(unit.load);
    const bool is_end = (start_ == Start::kDeath) != unit.is_rectangle;
    const Piece piece = is_end ? unit.end : unit.first;
    return start_ == Start::kDeath ? piece : -piece;
  }

  double step() const {
    return start_ == Start::kLoad ? kLoadStep * static_cast<double>(target_) : time_step_;
  }

  const CoarseProblem& coarse_;
  const Bytes target_;
  double time_step_ = 0;
  Start start_ = Start::kBirth;
  std::vector<double> priority_;
  std::vector<std::size_t> order_;
  std::vector<std::size_t> failed_;
  std::vector<Offset> offsets_;
  Bytes best_height_ = std::numeric_limits<Bytes>::max();
  std::vector<Offset> best_offsets_;
  std::mt19937_64 random_{1};
};

}  // namespace

Minimum search_multilevel(const Problem& problem, const Layout& start, std::int64_t placements,
                          const Budget& budget) {
  Minimum result{start, 0};
  const Timeline timeline(problem);
  const Bytes target = std::max(budget.target, load_bound(problem));
  if (start.height <= target || start.height > kHighest) return result;
  const CoarseProblem coarse(problem, timeline, target);
  SqueakyWheel wheel(coarse, target);
  wheel.run(placements, start.height, budget);
  if (wheel.best_offsets().empty()) return result;
  // A rectangle is an upper bound of what its buffers need, so the layout may end below the coarse
  // one.
  const Problem rest = coarse.with_blocks_at(wheel.best_offsets());
  Budget aimed = budget;
  aimed.target = target;
  for (const auto& [order, repairs] :
       {std::pair(Order::kSize, 0), std::pair(Order::kPeakRankSize, kRepairs)}) {
    if (result.layout.height <= target || budget.expired()) break;
    Layout layout =
        repaired(rest, timeline, ordered(rest, timeline, order), Fit::kFirst, repairs, aimed);
    if (layout.height < result.layout.height) result.layout = std::move(layout);
    const bool is_far = result.layout.height - target > target / kRepairablePart;
    if (is_far && wheel.best_height() > target) break;
  }
  return result;
}

Layout MultilevelPlanner::plan(const Problem& problem, const Budget& budget) const {
  const Timeline timeline(problem);
  const Layout start = *place_in_order(
      problem, timeline, ordered(problem, timeline, Order::kPeakRankSize), Fit::kFirst, budget);
  return search_multilevel(problem, start, kPlacementsAlone, budget).layout;
}

}  // namespace stalloc::solve
