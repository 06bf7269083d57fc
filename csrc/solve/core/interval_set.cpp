#include "solve/core/interval_set.h"

#include <algorithm>
#include <bit>

namespace stalloc::solve {

Interval* IntervalArena::take(std::uint32_t capacity) {
  auto& blocks = free_[std::countr_zero(capacity)];
  if (!blocks.empty()) {
    Interval* block = blocks.back();
    blocks.pop_back();
    return block;
  }
  if (capacity > kChunk / 4) {  // a chunk of its own, inserted before the one in use
    chunks_.push_back(std::make_unique_for_overwrite<Interval[]>(capacity));
    Interval* block = chunks_.back().get();
    if (chunks_.size() > 1) std::swap(chunks_.back(), chunks_[chunks_.size() - 2]);
    return block;
  }
  if (left_ < capacity) {
    chunks_.push_back(std::make_unique_for_overwrite<Interval[]>(kChunk));
    left_ = kChunk;
  }
  left_ -= capacity;
  return chunks_.back().get() + left_;
}

void IntervalArena::give_back(Interval* block, std::uint32_t capacity) {
  free_[std::countr_zero(capacity)].push_back(block);
}

void IntervalSet::grow(IntervalArena& arena) {
  const std::uint32_t capacity = capacity_ == 0 ? 4 : 2 * capacity_;
  Interval* block = arena.take(capacity);
  std::copy_n(data(), size_, block);
  if (capacity_ > 0) arena.give_back(many_, capacity_);
  many_ = block;
  capacity_ = capacity;
}

bool IntervalSet::insert(const Interval& interval, IntervalArena& arena) {
  Interval* const all = data();
  // [first, last): the intervals that the new one overlaps or touches.
  Interval* const first = std::partition_point(
      all, all + size_, [&](const Interval& i) { return i.end < interval.begin; });
  if (first != all + size_ && first->begin <= interval.begin && first->end >= interval.end) {
    return false;
  }
  Interval* last = first;
  while (last != all + size_ && last->begin <= interval.end) ++last;
  if (last != first) {
    first->begin = std::min(first->begin, interval.begin);
    first->end = std::max((last - 1)->end, interval.end);
    std::copy(last, all + size_, first + 1);
    size_ -= static_cast<std::uint32_t>(last - first - 1);
    return true;
  }
  const auto at = static_cast<std::uint32_t>(first - all);
  if (size_ == std::max(capacity_, 1U)) grow(arena);
  Interval* const moved = data();
  std::copy_backward(moved + at, moved + size_, moved + size_ + 1);
  moved[at] = interval;
  ++size_;
  return true;
}

}  // namespace stalloc::solve
