// Generations: state that is handed over together shares slots.
//
// An optimizer may make all of its new state before it frees any of the old. Then each class has as
// many spare slots as requests. They are idle until the next hand-over, but they are small pieces:
// an activation that is larger than each of them finds no place. A generation is a box that holds
// all requests of one hand-over (boxes.h). Two slots of its size are one idle range between two
// steps:
//
//   slot 1 |          boxes of activations          | m1' m2' v1' v2' ...............
//   slot 0 | m1 m2 v1 v2 ............................. until the last of them is freed |   boxes
//                   forward, backward                 optimizer       forward, ...
//
// A hand-over ends with the first free of old state: requests that are made in a row are one
// generation. To its class a generation is one more request, so the validator of slots proves that
// it finds one. One late free keeps the whole slot, though. Requests whose size varies keep slots
// of their own.
//
// Cost: O(n log n).
#pragma once

#include "plan/plan.h"

namespace stalloc::plan {

// Gives generations the slots of their requests. The plan has its slots, and no offsets. False, and
// the plan as it was, if no two requests are handed over together.
bool join_generations(Plan& plan);

}  // namespace stalloc::plan
