// Disjoint address ranges in ascending order.
//
// A pool holds tens to a few thousand of them at a time, and each request changes a handful: see
// chunked_list.h. HoleSet also keeps them in order of size, to find the best fit without looking at
// the others. Not thread-safe.
#pragma once

#include <algorithm>
#include <cassert>
#include <cstddef>
#include <vector>

#include "base/align.h"
#include "base/chunked_list.h"
#include "base/range.h"
#include "base/types.h"

namespace stalloc {

// Keeps ranges in order of size, then address.
class SizeOrder {
 public:
  void clear() { ranges_.clear(); }
  void insert(Range r) { ranges_.insert(first_from(r), r); }
  void erase(Range r) { ranges_.erase(first_from(r)); }

  // Returns the beginning of the smallest range of at least `size` bytes, the lowest of equals;
  // kUnplaced if there is none. O(log n).
  Offset best_fit(Bytes size) const {
    const auto fit = first_from({0, size});
    return fit == ranges_.end() ? kUnplaced : ranges_.at(fit).begin;
  }
  Bytes largest() const { return ranges_.empty() ? 0 : ranges_.back().size(); }

 private:
  ChunkedList<Range>::Position first_from(Range r) const {
    return ranges_.first([&](const Range& i) {
      return i.size() != r.size() ? i.size() > r.size() : i.begin >= r.begin;
    });
  }

  ChunkedList<Range> ranges_;
};

// Keeps no order.
struct Unordered {
  void clear() {}
  void insert(Range /*r*/) {}
  void erase(Range /*r*/) {}
};

// Every operation is O(log n) unless noted otherwise.
template <typename Order>
class BasicRangeSet {
 public:
  bool empty() const { return list_.empty(); }
  std::size_t count() const { return list_.size(); }
  void clear() {
    list_.clear();
    order_.clear();
  }

  // Returns a copy. O(n).
  std::vector<Range> ranges() const {
    std::vector<Range> result;
    result.reserve(list_.size());
    for (Position p = list_.begin(); p != list_.end(); p = list_.next(p)) {
      result.push_back(list_.at(p));
    }
    return result;
  }

  // Copies the ranges of `other`. O(n log n).
  template <typename Other>
  void assign(const BasicRangeSet<Other>& other) {
    clear();
    for (const Range& r : other.ranges()) add(list_.end(), r);
  }

  // Returns true if any range overlaps `other`.
  bool overlaps(Range other) const {
    const Position p = first_ending_after(other.begin);
    return p != list_.end() && list_.at(p).begin < other.end;
  }

  // Returns true if one range contains `other`.
  bool holds(Range other) const {
    const Position p = first_ending_after(other.begin);
    return p != list_.end() && list_.at(p).begin <= other.begin && other.end <= list_.at(p).end;
  }

  // Calls visit(range) for each range that overlaps `other`, ascending.
  void visit_overlapping(Range other, auto visit) const {
    for (Position p = first_ending_after(other.begin);
         p != list_.end() && list_.at(p).begin < other.end; p = list_.next(p)) {
      visit(list_.at(p));
    }
  }

  // Calls visit(range) for each intersection with `other`, ascending.
  void intersect(Range other, auto visit) const {
    for (Position p = first_ending_after(other.begin);
         p != list_.end() && list_.at(p).begin < other.end; p = list_.next(p)) {
      visit(Range{std::max(list_.at(p).begin, other.begin), std::min(list_.at(p).end, other.end)});
    }
  }

  // Adds a range that overlaps no other, as an entry of its own.
  void insert(Range added) {
    const Position p = first_ending_after(added.begin);
    assert(p == list_.end() || added.end <= list_.at(p).begin);
    add(p, added);
  }

  // Adds a range that overlaps no other, and merges it with those it touches.
  void insert_merged(Range added) {
    Position p = list_.first([&](const Range& i) { return i.end >= added.begin; });
    Range whole = added;
    if (p != list_.end() && list_.at(p).end == added.begin) {
      whole.begin = list_.at(p).begin;
      const Position next = list_.next(p);
      if (next == list_.end() || list_.at(next).begin != added.end) {
        change(p, whole);
        return;
      }
      p = drop(p);
    }
    if (p != list_.end() && list_.at(p).begin == added.end) {
      whole.end = list_.at(p).end;
      change(p, whole);
    } else {
      add(p, whole);
    }
  }

  // Returns the range that begins at `begin`, or an empty one.
  Range find(Offset begin) const {
    const Position p = first_ending_after(begin);
    return p != list_.end() && list_.at(p).begin == begin ? list_.at(p) : Range{};
  }

  // Removes the entry that begins at `begin`. It must exist.
  void erase(Offset begin) {
    const Position p = first_ending_after(begin);
    assert(p != list_.end() && list_.at(p).begin == begin);
    drop(p);
  }

  // Removes the addresses of `removed`. O(log n) for each range that overlaps it.
  void remove(Range removed) {
    Position p = first_ending_after(removed.begin);
    while (p != list_.end() && list_.at(p).begin < removed.end) {
      const Range whole = list_.at(p);
      if (whole.begin < removed.begin) {
        change(p, {whole.begin, removed.begin});
        p = list_.next(p);
        if (removed.end < whole.end) add(p, {removed.end, whole.end});
        if (removed.end <= whole.end) return;
      } else if (removed.end < whole.end) {
        change(p, {removed.end, whole.end});
        return;
      } else {
        p = drop(p);
      }
    }
  }

  // Removes `taken` from the range that contains it. Such a range must exist.
  void subtract(Range taken) {
    assert(holds(taken));
    const Position p = first_ending_after(taken.begin);
    const Range whole = list_.at(p);
    if (whole == taken) {
      drop(p);
    } else if (whole.begin == taken.begin) {
      change(p, {taken.end, whole.end});
    } else {
      change(p, {whole.begin, taken.begin});
      if (taken.end < whole.end) add(list_.next(p), {taken.end, whole.end});
    }
  }

  // Returns the beginning of the smallest range of at least `size` bytes, the lowest of equals;
  // kUnplaced if there is none. Needs an order.
  Offset best_fit(Bytes size) const { return order_.best_fit(size); }

  // Returns the beginning of the first range of at least `size` bytes; kUnplaced if there is none.
  // O(n); needs an order.
  Offset first_fit(Bytes size) const {
    if (largest() < size) return kUnplaced;
    Position p = list_.begin();
    while (list_.at(p).size() < size) p = list_.next(p);
    return list_.at(p).begin;
  }

  // 0 if there is none. O(1); needs an order.
  Bytes largest() const { return order_.largest(); }

 private:
  using Position = ChunkedList<Range>::Position;

  Position first_ending_after(Offset offset) const {
    return list_.first([&](const Range& i) { return i.end > offset; });
  }

  void add(Position before, Range added) {
    order_.insert(added);
    list_.insert(before, added);
  }
  Position drop(Position p) {
    order_.erase(list_.at(p));
    return list_.erase(p);
  }
  void change(Position p, Range changed) {
    order_.erase(list_.at(p));
    order_.insert(changed);
    list_.set(p, changed);
  }

  ChunkedList<Range> list_;
  [[no_unique_address]] Order order_;
};

using RangeSet = BasicRangeSet<Unordered>;
using HoleSet = BasicRangeSet<SizeOrder>;

// The whole units of `set` that `r` needs. They begin at whole units of the range of `set` that
// holds them; its last one may be smaller.
inline std::vector<Range> units_within(const RangeSet& set, Range r, Bytes unit) {
  std::vector<Range> result;
  set.visit_overlapping(r, [&](Range whole) {
    const Offset before = std::max<Bytes>(0, r.begin - whole.begin) / unit * unit;
    const Bytes behind = align_up(std::min(whole.end, r.end) - whole.begin, unit);
    result.push_back({whole.begin + before, std::min(whole.end, whole.begin + behind)});
  });
  return result;
}

// Calls visit(range) for the parts of `r` outside of `set`, ascending.
void visit_outside(const RangeSet& set, Range r, auto visit) {
  Offset at = r.begin;
  set.intersect(r, [&](Range common) {
    if (at < common.begin) visit(Range{at, common.begin});
    at = common.end;
  });
  if (at < r.end) visit(Range{at, r.end});
}

}  // namespace stalloc
