// The program's own order, as a planner asks for it: when does a stream come after all the others?
#pragma once

#include <map>
#include <span>
#include <utility>
#include <vector>

#include "base/order.h"
#include "solve/core/problem.h"

namespace stalloc::solve {

class OrderTable {
 public:
  // `orders` of one period, ascending by tick. `streams`: those that count, ascending.
  OrderTable(std::span<const Order> orders, std::vector<StreamId> streams, Tick period);

  // The first tick from which on work of `stream` comes after all work that any other stream had
  // got up to tick `freed`; kNever if there is none. O(streams x log orders).
  Tick after_all(StreamId stream, Tick freed) const;

  // The first allocation of buffer `user` that is not before the free of `before`, in a layout in
  // which it takes that one's addresses. Past the period it is one of a later period.
  static Tick use_after(const Problem& problem, std::int32_t user, std::int32_t before);

 private:
  struct Row {
    Tick upto = 0;
    Tick tick = 0;
  };

  std::vector<StreamId> streams_;
  Tick period_;
  std::map<std::pair<StreamId, StreamId>, std::vector<Row>> rows_;  // ascending
};

// The waits of a layout that the program does not order itself: there the user's stream would wait
// for work that it does not wait for anyway.
std::vector<Wait> uncovered(const Problem& problem, std::span<const Wait> waits,
                            const OrderTable& table);

}  // namespace stalloc::solve
