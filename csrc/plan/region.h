// A region as it is served: best fit in [0, capacity), the lowest address among equals.
#pragma once

#include <algorithm>
#include <vector>

#include "base/types.h"

namespace stalloc {

class Region {
 public:
  explicit Region(Bytes capacity) {
    if (capacity > 0) free_.push_back({0, capacity});
  }

  // kUnplaced when there is no room. O(holes).
  Offset allocate(Bytes size) {
    auto best = free_.end();
    for (auto it = free_.begin(); it != free_.end(); ++it) {
      const Bytes room = it->end - it->begin;
      if (room >= size && (best == free_.end() || room < best->end - best->begin)) best = it;
    }
    if (best == free_.end()) return kUnplaced;
    const Offset offset = best->begin;
    best->begin += size;
    if (best->begin == best->end) free_.erase(best);
    return offset;
  }

  void release(Offset offset, Bytes size) {
    const auto after = std::ranges::lower_bound(free_, offset, {}, &Hole::begin);
    const auto hole = free_.insert(after, {offset, offset + size});
    if (const auto next = hole + 1; next != free_.end() && next->begin == hole->end) {
      hole->end = next->end;
      free_.erase(next);
    }
    if (hole != free_.begin() && (hole - 1)->end == hole->begin) {
      (hole - 1)->end = hole->end;
      free_.erase(hole);
    }
  }

 private:
  struct Hole {
    Offset begin;
    Offset end;
  };

  std::vector<Hole> free_;  // in order, not adjacent
};

}  // namespace stalloc
