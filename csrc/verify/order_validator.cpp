#include "verify/order_validator.h"

// Looks for the latest order before each use, and asks how far it reaches.

#include <algorithm>
#include <limits>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"

namespace stalloc::verify {
namespace {

constexpr Tick kNowhere = std::numeric_limits<Tick>::min() / 4;

class Reach {
 public:
  Reach(std::span<const Order> orders, Tick period) : period_(period) {
    for (const Order& o : orders) {
      furthest_[{o.stream, o.after}][o.tick] = o.upto;
    }
    for (auto& [streams, by_tick] : furthest_) {
      Tick so_far = kNowhere;
      for (auto& [tick, upto] : by_tick) so_far = upto = std::max(so_far, upto);
    }
  }

  // Up to which tick the work of `after` comes before what `stream` gets at tick `use`.
  Tick at(StreamId stream, StreamId after, Tick use) const {
    const auto by_tick = furthest_.find({stream, after});
    if (by_tick == furthest_.end()) return kNowhere;
    Tick result = kNowhere;
    for (Tick base = -period_; base <= use; base += period_) {
      const auto later = by_tick->second.upper_bound(use - base);
      if (later != by_tick->second.begin())
        result = std::max(result, std::prev(later)->second + base);
      if (period_ == 0) break;
    }
    return result;
  }

 private:
  Tick period_;
  std::map<std::pair<StreamId, StreamId>, std::map<Tick, Tick>> furthest_;
};

}  // namespace

void validate_order(const solve::Problem& problem, std::span<const solve::Wait> waits,
                    std::span<const Order> orders) {
  std::set<StreamId> streams;
  for (const solve::Buffer& b : problem.buffers) streams.insert(b.stream);
  const Reach reach(orders, problem.period);
  for (const auto& [user, after] : waits) {
    const solve::Buffer& later = problem.buffers[user];
    const Tick freed = problem.buffers[after].upper;
    const Tick wraps = later.lower < freed && problem.period > 0
                           ? (freed - later.lower + problem.period - 1) / problem.period
                           : 0;
    const Tick use = later.lower + wraps * problem.period;
    for (const StreamId other : streams) {
      if (other == later.stream || reach.at(later.stream, other, use) > freed) continue;
      throw PlanError("buffer " + std::to_string(user) + " (stream " +
                      std::to_string(later.stream) + ") uses the addresses of buffer " +
                      std::to_string(after) + ", freed at tick " + std::to_string(freed) +
                      ", but the program does not order it after the work of stream " +
                      std::to_string(other));
    }
  }
}

}  // namespace stalloc::verify
