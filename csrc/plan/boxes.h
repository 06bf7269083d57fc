// Boxes: other requests in slots that are idle for a while.
//
// The spare slots of a class are needed during the hand-over only. Between two of them they are
// idle, but which ones they are changes from iteration to iteration, so no request can have a fixed
// address there. A box is a small layout that needs none: its requests have offsets from the start
// of whatever slot the box takes.
//
//   slot 2 | m2 .........................
//   slot 1 | m1 ..............................    the box takes the free slot with
//   slot 0 |  +--------+-----+      | m1' ....    its first request and gives it back
//          |  |   a    |  b  |      |             with its last one, before m1' needs it
//          |  +--------+-----+---+  |
//          |  |   c              |  |
//          |  +------------------+  |
//
// To its class a box is one more request, from its first allocation to its last free. So the
// validator of slots proves that it finds one, and the validator of layouts what lies inside.
//
// State that is handed over together lies in boxes, too (generations.h).
//
// Only requests of a constant size are put into boxes: a layout for other extents leaves the boxes
// as they are.
#pragma once

#include <vector>

#include "plan/plan.h"
#include "verify/slots_validator.h"

namespace stalloc::plan {

// Puts requests that are live where the load is above what is left of the bound into idle slots
// until the load meets it: large ones first, or those at the highest load if that leaves less. The
// plan has its slots and no offsets. Cost: O(n) for each request in a box.
void add_boxes(Plan& plan);

// Takes these requests out of the slots again. Boxes of state stay.
void drop_boxes(Plan& plan);

// A proven minimum: no plan that has these slots, and nothing else in their addresses but what lies
// in idle ones, has a smaller pool. Above the load's bound where the load is at its peak while
// slots are idle, and the requests of that moment fit into none. Cost: O(n log n + n x idle
// intervals).
Bytes bound_with_slots(const Plan& plan);

// The plan's boxes as requests of their classes. Throws PlanError unless the requests of each box
// have one class and its stream, lie inside a slot and meet none of the others.
std::vector<verify::SlotUse> check_boxes(const Plan& plan);

}  // namespace stalloc::plan
