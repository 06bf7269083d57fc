// Disjoint address ranges in ascending order, in one flat array.
//
// A pool holds tens to a few thousand of them at a time: a binary search and one memmove of a few
// kilobytes beat every node-based tree there, and nothing is allocated once the array has grown to
// its working size. Not thread-safe.
#pragma once

#include <algorithm>
#include <cassert>
#include <cstddef>
#include <vector>

#include "base/types.h"

namespace stalloc {

struct Range {
  Offset begin = 0;
  Offset end = 0;

  Bytes size() const { return end - begin; }
  bool operator==(const Range&) const = default;
};

class RangeSet {
 public:
  bool empty() const { return ranges_.empty(); }
  std::size_t count() const { return ranges_.size(); }
  const std::vector<Range>& ranges() const { return ranges_; }
  void clear() { ranges_.clear(); }

  // Whether any range shares an address with `other`. O(log n).
  bool overlaps(Range other) const {
    const auto it = first_ending_after(other.begin);
    return it != ranges_.end() && it->begin < other.end;
  }

  // Whether one range holds all of `other`. O(log n).
  bool holds(Range other) const {
    const auto it = first_ending_after(other.begin);
    return it != ranges_.end() && it->begin <= other.begin && other.end <= it->end;
  }

  // Adds a range that overlaps none of those here, as an entry of its own.
  void insert(Range added) {
    const auto it = first_ending_after(added.begin);
    assert(it == ranges_.end() || added.end <= it->begin);
    ranges_.insert(it, added);
  }

  // Adds a range that overlaps none of those here, and merges it with those it touches.
  void insert_merged(Range added) {
    auto it = std::lower_bound(ranges_.begin(), ranges_.end(), added.begin,
                               [](const Range& i, Offset begin) { return i.end < begin; });
    if (it != ranges_.end() && it->end == added.begin) {
      it->end = added.end;
      const auto next = it + 1;
      if (next != ranges_.end() && next->begin == it->end) {
        it->end = next->end;
        ranges_.erase(next);
      }
    } else if (it != ranges_.end() && it->begin == added.end) {
      it->begin = added.begin;
    } else {
      ranges_.insert(it, added);
    }
  }

  // The range that begins exactly at `begin`, or null. O(log n).
  const Range* find(Offset begin) const {
    const auto it = first_ending_after(begin);
    return it != ranges_.end() && it->begin == begin ? &*it : nullptr;
  }

  // Removes the entry that begins at `begin`, which must be here.
  void erase(Offset begin) {
    const auto it = first_ending_after(begin);
    assert(it != ranges_.end() && it->begin == begin);
    ranges_.erase(it);
  }

  // Takes out whatever of `removed` is here. O(n).
  void remove(Range removed) {
    auto it = first_ending_after(removed.begin);
    while (it != ranges_.end() && it->begin < removed.end) {
      const Range rest{removed.end, it->end};
      if (it->begin < removed.begin) {
        it->end = removed.begin;
        ++it;
        if (rest.begin < rest.end) it = ranges_.insert(it, rest) + 1;
      } else if (rest.begin < rest.end) {
        it->begin = rest.begin;
      } else {
        it = ranges_.erase(it);
      }
    }
  }

  // Takes `taken` out of the range that holds all of it. Such a one must be here.
  void subtract(Range taken) {
    const auto it = first_ending_after(taken.begin);
    assert(it != ranges_.end() && it->begin <= taken.begin && taken.end <= it->end);
    const Range whole = *it;
    if (whole == taken) {
      ranges_.erase(it);
    } else if (whole.begin == taken.begin) {
      it->begin = taken.end;
    } else if (whole.end == taken.end) {
      it->end = taken.begin;
    } else {
      it->end = taken.begin;
      ranges_.insert(it + 1, Range{taken.end, whole.end});
    }
  }

  // The smallest range of at least `size` bytes, the lowest of equals; null when there is none.
  const Range* best_fit(Bytes size) const {
    const Range* best = nullptr;
    for (const Range& i : ranges_) {
      if (i.size() == size) return &i;
      if (i.size() > size && (!best || i.size() < best->size())) best = &i;
    }
    return best;
  }

  Bytes largest() const {
    Bytes result = 0;
    for (const Range& i : ranges_) result = std::max(result, i.size());
    return result;
  }

 private:
  using Iterator = std::vector<Range>::iterator;
  using ConstIterator = std::vector<Range>::const_iterator;

  Iterator first_ending_after(Offset offset) {
    return std::upper_bound(ranges_.begin(), ranges_.end(), offset,
                            [](Offset o, const Range& i) { return o < i.end; });
  }
  ConstIterator first_ending_after(Offset offset) const {
    return std::upper_bound(ranges_.begin(), ranges_.end(), offset,
                            [](Offset o, const Range& i) { return o < i.end; });
  }

  std::vector<Range> ranges_;
};

}  // namespace stalloc
