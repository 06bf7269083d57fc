// Maps each address to the value of the range that was assigned last.
//
// Not thread-safe.
#pragma once

#include <iterator>
#include <map>
#include <memory_resource>

#include "base/range.h"
#include "base/types.h"

namespace stalloc {

template <typename Value>
class RangeMap {
 public:
  explicit RangeMap(std::pmr::memory_resource* memory = std::pmr::get_default_resource())
      : entries_(memory) {}

  // Amortised O(log n).
  void assign(Range r, const Value& value) {
    cut(r.begin);
    cut(r.end);
    entries_.erase(entries_.lower_bound(r.begin), entries_.lower_bound(r.end));
    entries_[r.begin] = {r.end, value};
  }

  // Calls visit(value) for each stretch of one value that overlaps `r`, ascending. O(log n) plus
  // their number.
  void visit(Range r, auto visit) const {
    auto it = entries_.upper_bound(r.begin);
    if (it != entries_.begin() && std::prev(it)->second.end > r.begin) --it;
    for (; it != entries_.end() && it->first < r.end; ++it) visit(it->second.value);
  }

 private:
  struct Entry {  // the value of [key, end); disjoint
    Offset end = 0;
    Value value{};
  };

  // Splits the entry that contains `at`, so that none crosses it.
  void cut(Offset at) {
    const auto above = entries_.lower_bound(at);
    if (above == entries_.begin()) return;
    Entry& below = std::prev(above)->second;
    if (below.end <= at) return;
    entries_.emplace_hint(above, at, below);
    below.end = at;
  }

  std::pmr::map<Offset, Entry> entries_;
};

}  // namespace stalloc
