// Sums over the ticks of one period, as the load or the idle slots of a class.
#pragma once

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <limits>
#include <map>
#include <vector>

#include "base/types.h"

namespace stalloc::plan {

struct TickInterval {
  Tick lower = 0;
  Tick upper = 0;
};

// A sum over one period that changes at ticks.
class Curve {
 public:
  explicit Curve(Tick period) : period_(period) { values_[0] = 0; }

  // `upper` may lie in the next period.
  void add(Tick lower, Tick upper, std::int64_t value) {
    if (upper <= lower) return;
    if (upper > period_) {
      change(0, upper - period_, value);
      upper = period_;
    }
    change(lower, upper, value);
  }

  std::int64_t most() const {
    std::int64_t most = std::numeric_limits<std::int64_t>::min();
    for (const auto& [tick, value] : values_) most = std::max(most, value);
    return most;
  }

  // The same in an interval, which is not empty and lies within the period.
  std::int64_t most_in(TickInterval in) const {
    std::int64_t most = std::numeric_limits<std::int64_t>::min();
    for (auto at = std::prev(values_.upper_bound(in.lower));
         at != values_.end() && at->first < in.upper; ++at) {
      most = std::max(most, at->second);
    }
    return most;
  }

  // True if it is above `limit` anywhere in the interval, which lies within the period.
  bool exceeds(std::int64_t limit, TickInterval in) const {
    for (auto at = std::prev(values_.upper_bound(in.lower));
         at != values_.end() && at->first < in.upper; ++at) {
      if (at->second > limit) return true;
    }
    return false;
  }

  // The longest intervals in which it is at least `limit`.
  std::vector<TickInterval> at_least(std::int64_t limit) const {
    std::vector<TickInterval> result;
    bool inside = false;
    for (const auto& [tick, value] : values_) {
      if (value >= limit && !inside) result.push_back({tick, period_});
      if (value < limit && inside) result.back().upper = tick;
      inside = value >= limit;
    }
    return result;
  }

 private:
  std::map<Tick, std::int64_t>::iterator split(Tick tick) {
    const auto after = values_.upper_bound(tick);
    return values_.try_emplace(after, tick, std::prev(after)->second);
  }

  void change(Tick lower, Tick upper, std::int64_t value) {
    if (upper <= lower) return;
    const auto end = upper >= period_ ? values_.end() : split(upper);
    for (auto at = split(lower); at != end; ++at) at->second += value;
  }

  Tick period_;
  std::map<Tick, std::int64_t> values_;  // each until the next
};

}  // namespace stalloc::plan
