#include "solve/order.h"

#include <algorithm>

namespace stalloc::solve {

OrderTable::OrderTable(std::span<const Order> orders, std::vector<StreamId> streams, Tick period)
    : streams_(std::move(streams)), period_(period) {
  for (const Order& o : orders) {
    std::vector<Row>& rows = rows_[{o.stream, o.after}];
    if (rows.empty() || rows.back().upto < o.upto) rows.push_back({o.upto, o.tick});
  }
}

Tick OrderTable::after_all(StreamId stream, Tick freed) const {
  Tick all = freed;
  for (const StreamId other : streams_) {
    if (other == stream) continue;
    const auto known = rows_.find({stream, other});
    if (known == rows_.end()) return kNever;
    Tick first = kNever;
    // A row may reach into the next period. A free of this period, or the next, is covered by the
    // third one at the latest, or never.
    for (Tick shift = -period_; shift <= 3 * period_; shift += std::max<Tick>(period_, 1)) {
      const auto row = std::ranges::upper_bound(known->second, freed - shift, {}, &Row::upto);
      if (row != known->second.end()) first = std::min(first, row->tick + shift);
      if (period_ == 0) break;
    }
    if (first == kNever) return kNever;
    all = std::max(all, first);
  }
  return all;
}

Tick OrderTable::use_after(const Problem& problem, std::int32_t user, std::int32_t before) {
  Tick use = problem.buffers[user].lower;
  const Tick freed = problem.buffers[before].upper;
  while (problem.period > 0 && use < freed) use += problem.period;
  return use;
}

std::vector<Wait> uncovered(const Problem& problem, std::span<const Wait> waits,
                            const OrderTable& table) {
  std::vector<Wait> result;
  for (const Wait& wait : waits) {
    const Buffer& before = problem.buffers[wait.after];
    const Tick use = OrderTable::use_after(problem, wait.buffer, wait.after);
    if (table.after_all(problem.buffers[wait.buffer].stream, before.upper) > use) {
      result.push_back(wait);
    }
  }
  return result;
}

}  // namespace stalloc::solve
