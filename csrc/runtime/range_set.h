// Disjoint address ranges in ascending order, in one flat array.
//
// A pool holds tens to a few thousand of them at a time: a binary search and one memmove of a few
// kilobytes beat every node-based tree there, and nothing is allocated once the array has grown to
// its working size. Where the best fit is sought, they are kept in order of their size as well
// (HoleSet). Not thread-safe.
#pragma once

#include <algorithm>
#include <cassert>
#include <cstddef>
#include <vector>

#include "base/types.h"
#include "runtime/size_order.h"

namespace stalloc {

struct Range {
  Offset begin = 0;
  Offset end = 0;

  Bytes size() const { return end - begin; }
  bool operator==(const Range&) const = default;
};

// Keeps no order.
struct Unordered {
  void insert(SizeOrder::Key /*key*/) {}
  void erase(SizeOrder::Key /*key*/) {}
  void clear() {}
};

template <typename Order>
class BasicRangeSet {
 public:
  bool empty() const { return ranges_.empty(); }
  std::size_t count() const { return ranges_.size(); }
  const std::vector<Range>& ranges() const { return ranges_; }
  void clear() {
    ranges_.clear();
    order_.clear();
  }

  // Becomes a copy. O(n log n).
  template <typename Other>
  void assign(const BasicRangeSet<Other>& other) {
    clear();
    ranges_ = other.ranges();
    for (const Range& r : ranges_) order_.insert(key(r));
  }

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

  // Calls visit(range) for what `other` and the ranges here have in common, ascending.
  void intersect(Range other, auto visit) const {
    for (auto it = first_ending_after(other.begin); it != ranges_.end() && it->begin < other.end;
         ++it) {
      visit(Range{std::max(it->begin, other.begin), std::min(it->end, other.end)});
    }
  }

  // Adds a range that overlaps none of those here, as an entry of its own.
  void insert(Range added) {
    const auto it = first_ending_after(added.begin);
    assert(it == ranges_.end() || added.end <= it->begin);
    add(it, added);
  }

  // Adds a range that overlaps none of those here, and merges it with those it touches.
  void insert_merged(Range added) {
    auto it = std::lower_bound(ranges_.begin(), ranges_.end(), added.begin,
                               [](const Range& i, Offset begin) { return i.end < begin; });
    if (it != ranges_.end() && it->end == added.begin) {
      Range whole{it->begin, added.end};
      const auto next = it + 1;
      if (next != ranges_.end() && next->begin == added.end) {
        whole.end = next->end;
        drop(next);
      }
      change(it, whole);
    } else if (it != ranges_.end() && it->begin == added.end) {
      change(it, {added.begin, it->end});
    } else {
      add(it, added);
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
    drop(it);
  }

  // Takes out whatever of `removed` is here. O(n).
  void remove(Range removed) {
    auto it = first_ending_after(removed.begin);
    while (it != ranges_.end() && it->begin < removed.end) {
      const Range rest{removed.end, it->end};
      if (it->begin < removed.begin) {
        change(it, {it->begin, removed.begin});
        ++it;
        if (rest.begin < rest.end) it = add(it, rest) + 1;
      } else if (rest.begin < rest.end) {
        change(it, rest);
      } else {
        it = drop(it);
      }
    }
  }

  // Takes `taken` out of the range that holds all of it. Such a one must be here.
  void subtract(Range taken) {
    const auto it = first_ending_after(taken.begin);
    assert(it != ranges_.end() && it->begin <= taken.begin && taken.end <= it->end);
    const Range whole = *it;
    if (whole == taken) {
      drop(it);
    } else if (whole.begin == taken.begin) {
      change(it, {taken.end, whole.end});
    } else {
      change(it, {whole.begin, taken.begin});
      if (taken.end < whole.end) add(it + 1, {taken.end, whole.end});
    }
  }

  // Where the smallest range of at least `size` bytes begins, the lowest of equals; kUnplaced when
  // there is none. O(log n), with an order.
  Offset best_fit(Bytes size) const {
    const SizeOrder::Key* const fit = order_.at_least(size);
    return fit ? fit->begin : kUnplaced;
  }

  // 0 when there is none. O(1), with an order.
  Bytes largest() const { return order_.largest(); }

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

  static SizeOrder::Key key(Range r) { return {r.size(), r.begin}; }

  Iterator add(Iterator before, Range added) {
    order_.insert(key(added));
    return ranges_.insert(before, added);
  }
  Iterator drop(Iterator it) {
    order_.erase(key(*it));
    return ranges_.erase(it);
  }
  void change(Iterator it, Range changed) {
    order_.erase(key(*it));
    order_.insert(key(changed));
    *it = changed;
  }

  std::vector<Range> ranges_;
  [[no_unique_address]] Order order_;
};

using RangeSet = BasicRangeSet<Unordered>;
using HoleSet = BasicRangeSet<SizeOrder>;

}  // namespace stalloc
