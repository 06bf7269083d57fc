// The number of uses of a class that are live at once, on a line of ticks.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>

#include "base/types.h"
#include "plan/plan.h"

namespace stalloc::plan {

class Occupancy {
 public:
  void add(Tick lower, Tick upper) {
    ++changes_[lower];
    --changes_[upper];
  }

  void remove(Tick lower, Tick upper) {
    --changes_[lower];
    ++changes_[upper];
  }

  // O(n).
  std::int32_t most() const {
    std::int32_t live = 0;
    std::int32_t most = 0;
    for (const auto& [tick, change] : changes_) most = std::max(most, live += change);
    return most;
  }

 private:
  std::map<Tick, std::int32_t> changes_;
};

using Occupancies = IndexedVector<SlotClassIndex, Occupancy>;

}  // namespace stalloc::plan
