// A hole that goes from slot to slot by the places where these touch, and comes back to them.
//
//   A A|B|C    A's turn is over and B's comes: the hole is the cell of A next to B. It becomes B's,
//   A B B|C    and B leaves one of its own instead, here the one next to C. So the borders move
//   A B C C    towards where the hole comes from, and may be crossed again as long as there are
//   B B C C    cells on either side: twice from A to B takes as many as once.
//
// A border is where the hole goes over from one slot to another, whenever it does. Where one slot
// has two, its cells between them may be the same: what it gains at one, it gives at the other.
#pragma once

#include <cstddef>
#include <vector>

namespace stalloc::solve {

struct Contacts {
  struct Step {
    int hole = 0;   // the cell that becomes the slot's
    int freed = 0;  // the slot's cell next to it
  };

  struct Room {
    int slot = 0;
    int cell = 0;  // before which it lies
  };

  std::vector<int> owners = {};  // of the cells side by side, at first: a slot; -1: the first hole
  std::vector<Step> steps = {};  // one a turn
  // Where what a slot has besides should lie: beside a cell of its own if possible, so that the two
  // hold what is longer than one.
  std::vector<Room> rooms = {};  // by cell; one a slot
};

// For the slots in the order of their turns, numbered from 0. Empty where one has two turns in
// succession. Not always the fewest cells. Costs the cube of a slot's turns at most.
Contacts find_contacts(const std::vector<int>& slots);

}  // namespace stalloc::solve
