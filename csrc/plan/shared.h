// Addresses that streams share where the program orders them anyway.
//
// Streams that share addresses wait for each other: for all work that any stream had got when the
// address was freed. A program has an order of its own, such as a communication stream that waits
// for the computation. Where it covers the wait, the wait costs nothing. Until it does, the address
// is closed to that stream (covered.h), and open to others:
//
//   stream 0   [ a )[ c )                           a's own stream has its addresses at once
//   stream 1          waits for stream 0  [ b )     b has them without another wait
//
// A run does not trust this order: it lets the later stream wait, as in every plan with ordered
// streams. So a program that orders its streams otherwise may lose overlap, never a value.
#pragma once

#include <span>

#include "base/order.h"
#include "plan/layout.h"
#include "plan/plan.h"
#include "solve/core/planner.h"

namespace stalloc::plan {

// Lets streams share addresses in a plan of separate streams that has a layout, if the pool becomes
// smaller. Otherwise the plan stays as it is. Such a plan has ordered streams and Plan::orders.
void share_addresses(Plan& plan, std::span<const Order> orders, const LayoutOptions& options,
                     const solve::Budget& budget);

}  // namespace stalloc::plan
