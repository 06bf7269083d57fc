// A quantity that rises and falls: its current value, its peak, and the sums of all changes.
#pragma once

#include <algorithm>
#include <cstdint>

namespace stalloc::device {

struct Tally {
  std::int64_t current = 0;
  std::int64_t peak = 0;
  std::int64_t added = 0;
  std::int64_t removed = 0;

  void add(std::int64_t amount) {
    current += amount;
    added += amount;
    peak = std::max(peak, current);
  }
  void remove(std::int64_t amount) {
    current -= amount;
    removed += amount;
  }
  void reset_peak() { peak = current; }
  void reset_totals() { added = removed = 0; }
};

}  // namespace stalloc::device
