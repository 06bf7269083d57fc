// Numbers: requests of a few bytes, which share addresses with each other alone.
//
// A training loop keeps some of its losses: those that it logs, or the sum of an epoch. The states
// of an optimizer hold numbers, too, which its first step makes and no later one. Such a block
// outlives its planned end, often for good, and each request that has one of its addresses departs
// from the plan, however large it is:
//
//   |  loss ....~ ~ ~ ~ ~ ~ ~ ~ ~ ~ ~ ~ ~ ~ ~ ~    kept
//   |               | activation |    | gradient |  both need the address of the loss
//   | forward       | backward                   |
//
// So numbers lie apart, in units of the alignment between the slots and the rest, the same in all
// layouts of a plan. One that lives beyond its phase has a unit for itself. The others take turns
// in a few units:
//
//   unit 2 | number 2 ............. | number 5 ........      each until the next one comes
//   unit 1 | 1 ......... | 4 ................................
//   unit 0 | loss of the first microbatch ...................
//
// Their planned lifetimes are as long as that. So each unit is always taken, and the bound of the
// load counts it. If the units would take more than one part in kNumberParts of the load, numbers
// are requests like any others.
//
// Cost: O(n log n).
#pragma once

#include "plan/plan.h"

namespace stalloc::plan {

// A request of at most so many bytes is a number.
inline constexpr Bytes kNumber = 16;

inline constexpr Bytes kNumberParts = 256;

// Gives numbers their units and lifetimes. The plan has its slots and turns, and no addresses yet.
void set_numbers_apart(Plan& plan);

// The numbers of a plan that lie apart: side by side, each unit taken for the whole period.
class NumbersApart {
 public:
  explicit NumbersApart(const Plan& plan);

  bool contains(const Decision& d) const { return size_ > 0 && is_number(d); }

  // The address of the first unit, and the bytes of all; 0 if none lies apart.
  Offset begin() const { return begin_; }
  Bytes size() const { return size_; }

  // Moves the units to `begin`. Returns their end.
  Offset place(Plan& plan, Offset begin) const;

 private:
  friend void set_numbers_apart(Plan& plan);

  static bool is_number(const Decision& d) {
    return d.size <= kNumber && d.law == kNone && d.slots == kNone && d.over == 0;
  }

  Offset begin_ = 0;
  Bytes size_ = 0;  // 0: none lies apart
};

}  // namespace stalloc::plan
