#include "solve/search/multilevel.h"

#include <algorithm>
#include <limits>
#include <map>
#include <numeric>
#include <random>
#include <span>
#include <utility>
#include <vector>

#include "base/align.h"
#include "solve/core/bound.h"
#include "solve/core/order.h"
#include "solve/core/placement.h"
#include "solve/core/timeline.h"
#include "solve/greedy/greedy.h"

namespace stalloc::solve {
namespace {

// Coarsening.
constexpr Bytes kLargePart = 2048;       // a buffer is large from this part of the target on
constexpr std::size_t kFewestLong = 64;  // long buffers, where there are as many large ones
constexpr std::size_t kMostLong = 30'000;
constexpr Bytes kBlockPart = 64;           // the part of the target that a merged block may have
constexpr Moment kLoosePart = 20;          // the part of a block's lifetime that a member may miss,
constexpr Moment kMostLoose = 1024;        // and the most moments
constexpr std::ptrdiff_t kOpenBlocks = 3;  // latest blocks that a buffer may join

// Squeaky wheel.
constexpr double kStep = 0.02;         // average gain in priority, as a part of the target
constexpr int kRoundsToRestart = 120;  // most searches that succeed take less
constexpr std::int64_t kPlacementsAlone = 250'000;
constexpr Bytes kHighest = std::numeric_limits<Bytes>::max() / 64;  // stacks of blocks fit in Bytes

using Piece = Moment;  // index of a stretch of moments in which the same blocks live

// A rectangle of the coarse problem.
struct Block {
  Span span;  // of moments while blocks are made, of pieces afterwards
  Bytes size = 0;
  Offset fixed = kUnplaced;
  std::vector<BufferIndex> buffers;  // from the bottom up; empty for the rectangle of a piece

  bool is_movable() const { return fixed == kUnplaced && span.wrap == 0; }
};

struct Unit {
  std::vector<std::size_t> blocks;  // indices, in the order of placement
  Bytes load = 0;                   // the largest under which one of them lives
};

class CoarseProblem {
 public:
  // `target` is not below the load bound.
  CoarseProblem(const Problem& problem, const Timeline& timeline, Bytes target)
      : problem_(problem), timeline_(timeline), target_(target), load_(timeline.load(problem)) {
    merge(long_buffers());
    cut_time();
    bundle();
  }

  const std::vector<Block>& blocks() const { return blocks_; }
  const std::vector<Unit>& units() const { return units_; }
  Piece pieces() const { return static_cast<Piece>(piece_load_.size()); }

  // The whole problem with the buffers of all blocks fixed where `offsets` puts the blocks.
  Problem with_blocks_at(std::span<const Offset> offsets) const {
    Problem rest = problem_;
    for (std::size_t k = 0; k < blocks_.size(); ++k) {
      Offset offset = offsets[k];
      for (const BufferIndex i : blocks_[k].buffers) {
        rest.buffers[i].fixed = offset;
        offset += size(i);
      }
    }
    return rest;
  }

 private:
  Bytes size(BufferIndex i) const { return align_up(problem_.buffers[i].size, problem_.alignment); }

  Moment lifetime(BufferIndex i) const {
    const Span& span = timeline_.span(i);
    return span.end - span.begin + span.wrap;
  }

  // Fixed buffers, and large ones down to the point where lifetimes fall by the largest factor. In
  // order of birth.
  std::vector<BufferIndex> long_buffers() const {
    const Bytes large = std::max<Bytes>(target_ / kLargePart, 1);
    std::vector<BufferIndex> fixed;
    std::vector<BufferIndex> longest;
    for (BufferIndex i = 0; i < std::ssize(problem_.buffers); ++i) {
      if (timeline_.span(i).empty() || size(i) == 0) continue;
      if (problem_.buffers[i].fixed != kUnplaced) {
        fixed.push_back(i);
      } else if (size(i) >= large) {
        longest.push_back(i);
      }
    }
    std::ranges::stable_sort(longest, std::ranges::greater{},
                             [&](BufferIndex i) { return lifetime(i); });
    const std::size_t most = std::min(longest.size(), kMostLong);
    std::size_t count = most;
    double largest_factor = 1;
    for (std::size_t k = kFewestLong; k < most; ++k) {
      const double factor = static_cast<double>(lifetime(longest[k - 1])) / lifetime(longest[k]);
      if (factor < largest_factor) continue;
      largest_factor = factor;
      count = k;
    }
    longest.resize(count);
    longest.insert(longest.end(), fixed.begin(), fixed.end());
    std::ranges::stable_sort(longest, {}, [&](BufferIndex i) { return timeline_.span(i).begin; });
    return longest;
  }

  // Buffers that are born and freed at about the same time become one block, as long as the load
  // stays below the target.
  void merge(const std::vector<BufferIndex>& buffers) {
    for (const BufferIndex i : buffers) {
      const Block single{timeline_.span(i), size(i), problem_.buffers[i].fixed, {i}};
      bool is_merged = false;
      for (std::ptrdiff_t back = 1; back <= kOpenBlocks && !is_merged; ++back) {
        if (back > std::ssize(blocks_)) break;
        is_merged = try_merge(blocks_[blocks_.size() - static_cast<std::size_t>(back)], single);
      }
      if (!is_merged) blocks_.push_back(single);
    }
  }

  // `later` is not born before `block`.
  bool try_merge(Block& block, const Block& later) {
    if (!block.is_movable() || !later.is_movable()) return false;
    if (block.size + later.size > target_ / kBlockPart) return false;
    const Moment end = std::max(block.span.end, later.span.end);
    const Moment loose = std::min((end - block.span.begin) / kLoosePart, kMostLoose);
    const Moment earliest_end = std::min(block.span.end, later.span.end);
    if (later.span.begin - block.span.begin > loose || end - earliest_end > loose) return false;
    const Span before{block.span.begin, later.span.begin, 0};
    const Span after{earliest_end, end, 0};
    const Bytes size_after = later.span.end < end ? later.size : block.size;
    if (!has_room(before, later.size) || !has_room(after, size_after)) return false;
    add_load(before, later.size);
    add_load(after, size_after);
    block.span.end = end;
    block.size += later.size;
    block.buffers.push_back(later.buffers.front());
    return true;
  }

  bool has_room(const Span& span, Bytes size) const {
    return std::all_of(load_.begin() + span.begin, load_.begin() + span.end,
                       [&](Bytes load) { return load + size <= target_; });
  }

  void add_load(const Span& span, Bytes size) {
    for (Moment m = span.begin; m < span.end; ++m) load_[m] += size;
  }

  // Cuts time where blocks are born and freed. Adds the rectangle of each piece.
  void cut_time() {
    const auto moments = static_cast<std::size_t>(timeline_.moments());
    std::vector<char> is_cut(moments + 1, false);
    std::vector<Bytes> change(moments + 1, 0);
    is_cut[0] = true;
    for (const Block& block : blocks_) {
      const auto& [begin, end, wrap] = block.span;
      is_cut[begin] = is_cut[end] = is_cut[wrap] = true;
      change[begin] += block.size;
      change[end] -= block.size;
      if (wrap == 0) continue;
      change[0] += block.size;
      change[wrap] -= block.size;
    }
    std::vector<Piece> piece_of(moments + 1, 0);
    std::vector<Bytes> heights;
    Bytes in_blocks = 0;
    for (std::size_t m = 0; m < moments; ++m) {
      if (is_cut[m]) {
        heights.push_back(0);
        piece_load_.push_back(0);
      }
      in_blocks += change[m];
      piece_of[m] = static_cast<Piece>(heights.size()) - 1;
      heights.back() = std::max(heights.back(), load_[m] - in_blocks);
      piece_load_.back() = std::max(piece_load_.back(), load_[m]);
    }
    piece_of[moments] = pieces();
    for (Block& block : blocks_) {
      const auto& [begin, end, wrap] = block.span;
      block.span = {piece_of[begin], piece_of[end], piece_of[wrap]};
    }
    for (Piece p = 0; p < pieces(); ++p) {
      if (heights[p] > 0) blocks_.push_back({{p, p + 1, 0}, heights[p], kUnplaced, {}});
    }
  }

  // A block joins the unit of the last block of its size if it is freed before that one.
  void bundle() {
    struct Last {
      std::size_t unit;
      std::size_t block;
    };
    std::map<Bytes, Last> last_of_size;
    for (std::size_t k = 0; k < blocks_.size(); ++k) {
      const Block& block = blocks_[k];
      if (block.fixed != kUnplaced) continue;
      std::size_t unit = units_.size();
      const auto last = last_of_size.find(block.size);
      const bool is_rectangle = block.buffers.empty();
      if (!is_rectangle && last != last_of_size.end() &&
          is_nested(block, blocks_[last->second.block])) {
        unit = last->second.unit;
      } else {
        units_.emplace_back();
      }
      units_[unit].blocks.push_back(k);
      units_[unit].load = std::max(units_[unit].load, largest_load(block.span));
      if (!is_rectangle) last_of_size.insert_or_assign(block.size, Last{unit, k});
    }
  }

  static bool is_nested(const Block& inner, const Block& outer) {
    return inner.is_movable() && outer.is_movable() && outer.span.begin <= inner.span.begin &&
           inner.span.end <= outer.span.end;
  }

  Bytes largest_load(const Span& span) const {
    Bytes largest = 0;
    for (Piece p = span.begin; p < span.end; ++p) largest = std::max(largest, piece_load_[p]);
    for (Piece p = 0; p < span.wrap; ++p) largest = std::max(largest, piece_load_[p]);
    return largest;
  }

  const Problem& problem_;
  const Timeline& timeline_;
  const Bytes target_;
  std::vector<Bytes> load_;        // at each moment; merged blocks raise it
  std::vector<Bytes> piece_load_;  // the largest in each piece
  std::vector<Block> blocks_;      // in order of birth, the rectangles of the pieces last
  std::vector<Unit> units_;
};

// Places units in the order of their priorities, again and again.
class SqueakyWheel {
 public:
  SqueakyWheel(const CoarseProblem& coarse, Bytes target)
      : coarse_(coarse), target_(target), order_(coarse.units().size()) {
    std::iota(order_.begin(), order_.end(), 0);
    for (const Unit& unit : coarse.units()) priority_.push_back(static_cast<double>(unit.load));
  }

  // Ends with a height of at most the target, or when `placements` or the budget are used up.
  void run(std::int64_t placements, const Budget& budget) {
    const std::int64_t cost = std::max<std::int64_t>(std::ssize(coarse_.blocks()), 1);
    for (int round = 1; placements > 0 && !budget.expired(); ++round, placements -= cost) {
      place_all();
      if (best_height_ <= target_) return;
      if (round % kRoundsToRestart == 0) {
        restart();
      } else {
        raise_failed();
      }
    }
  }

  Bytes best_height() const { return best_height_; }
  const std::vector<Offset>& best_offsets() const { return best_offsets_; }

 private:
  double random_share() { return static_cast<double>(random_() >> 11) * 0x1p-53; }  // below 1

  void place_all() {
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
    if (height >= best_height_) return;
    best_height_ = height;
    best_offsets_ = offsets_;
  }

  // A unit of many blocks displaces many others, so it gains less.
  void raise_failed() {
    for (const std::size_t unit : failed_) {
      const auto blocks = static_cast<double>(coarse_.units()[unit].blocks.size());
      priority_[unit] += step() * (0.5 + random_share()) / blocks;
    }
  }

  void restart() {
    for (std::size_t unit = 0; unit < priority_.size(); ++unit) {
      const auto load = static_cast<double>(coarse_.units()[unit].load);
      priority_[unit] = load + step() * (random_share() - 0.5);
    }
  }

  double step() const { return kStep * static_cast<double>(target_); }

  const CoarseProblem& coarse_;
  const Bytes target_;
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
  wheel.run(placements, budget);
  // The details only add to the height.
  if (wheel.best_height() >= start.height) return result;
  const Problem rest = coarse.with_blocks_at(wheel.best_offsets());
  for (const Order order : {Order::kSize, Order::kPeakRankSize}) {
    if (result.layout.height <= target || budget.expired()) break;
    Layout layout =
        *place_in_order(rest, timeline, ordered(rest, timeline, order), Fit::kFirst, budget);
    if (layout.height < result.layout.height) result.layout = std::move(layout);
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
