#include "solve/search/coarse_problem.h"

#include <algorithm>
#include <map>
#include <utility>

#include "base/align.h"

namespace stalloc::solve {
namespace {

constexpr Bytes kLargePart = 2048;       // a buffer is large from this part of the target on
constexpr std::size_t kFewestLong = 64;  // long buffers, where there are as many large ones
constexpr std::size_t kMostLong = 30'000;
constexpr Bytes kBlockPart = 96;           // the part of the target that a merged block may have
constexpr Moment kLoosePart = 20;          // the part of a block's lifetime that a member may miss,
constexpr Moment kMostLoose = 1024;        // and the most moments
constexpr std::ptrdiff_t kOpenBlocks = 3;  // latest blocks that a buffer may join

}  // namespace

CoarseProblem::CoarseProblem(const Problem& problem, const Timeline& timeline, Bytes target)
    : problem_(problem), timeline_(timeline), target_(target), load_(timeline.load(problem)) {
  merge(long_buffers());
  cut_time();
  bundle();
}

Problem CoarseProblem::with_blocks_at(std::span<const Offset> offsets) const {
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

Moment CoarseProblem::lifetime(BufferIndex i) const {
  const Span& span = timeline_.span(i);
  return span.end - span.begin + span.wrap;
}

std::vector<BufferIndex> CoarseProblem::long_buffers() const {
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

void CoarseProblem::merge(const std::vector<BufferIndex>& buffers) {
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

bool CoarseProblem::try_merge(Block& block, const Block& later) {
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

bool CoarseProblem::has_room(const Span& span, Bytes size) const {
  return std::all_of(load_.begin() + span.begin, load_.begin() + span.end,
                     [&](Bytes load) { return load + size <= target_; });
}

void CoarseProblem::add_load(const Span& span, Bytes size) {
  for (Moment m = span.begin; m < span.end; ++m) load_[m] += size;
}

void CoarseProblem::cut_time() {
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

void CoarseProblem::bundle() {
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
    if (!block.is_rectangle() && last != last_of_size.end() &&
        is_nested(block, blocks_[last->second.block])) {
      unit = last->second.unit;
    } else {
      units_.emplace_back();
      units_[unit].first = block.span.begin;
    }
    const Piece end = block.span.wrap > 0 ? pieces() + block.span.wrap : block.span.end;
    units_[unit].blocks.push_back(k);
    units_[unit].load = std::max(units_[unit].load, largest_load(block.span));
    units_[unit].end = std::max(units_[unit].end, end);
    units_[unit].is_rectangle = block.is_rectangle();
    if (!block.is_rectangle()) last_of_size.insert_or_assign(block.size, Last{unit, k});
  }
}

bool CoarseProblem::is_nested(const Block& inner, const Block& outer) {
  return inner.is_movable() && outer.is_movable() && outer.span.begin <= inner.span.begin &&
         inner.span.end <= outer.span.end;
}

Bytes CoarseProblem::largest_load(const Span& span) const {
  Bytes largest = 0;
  for (Piece p = span.begin; p < span.end; ++p) largest = std::max(largest, piece_load_[p]);
  for (Piece p = 0; p < span.wrap; ++p) largest = std::max(largest, piece_load_[p]);
  return largest;
}

}  // namespace stalloc::solve
