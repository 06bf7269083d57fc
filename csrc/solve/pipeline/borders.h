// Moves a hole from slot to slot across their borders, so that it can cross a border again.
//
//   A A|B|C    After A's peak comes B's: the hole is the cell of A next to B. It becomes B's, and B
//   A B B|C    leaves one of its own cells instead, here the one next to C. So a border moves
//   A B C C    towards the side that the hole comes from. The hole can cross it again as long as
//   B B C C    there are cells on either side: twice from A to B takes as many cells as once.
//
// A border is where the hole crosses from one slot to another. If a slot has two borders, the cells
// between them can serve both: the slot gives at one border the cells that it gains at the other.
#pragma once

#include <cstddef>
#include <vector>

namespace stalloc::solve {

struct Crossings {
  struct Step {
    int hole = 0;   // the cell that becomes the slot's
    int freed = 0;  // the slot's cell next to it
  };

  struct Rest {
    int slot = 0;
    int cell = 0;  // the rest lies before this cell
  };

  // The first owner of each cell, in order of address: a slot, or -1 for the first hole.
  std::vector<int> owners = {};
  std::vector<Step> steps = {};  // one a peak
  // The offset of each slot's other addresses: next to a cell of the slot if possible, so that the
  // two together hold buffers that are longer than one of them.
  std::vector<Rest> rests = {};  // by cell; one a slot
};

// `slots` has the slot of each peak, in order; slots are numbered from 0. Returns nothing if a slot
// has two peaks in succession. The number of cells is not always the least. The cost is at most the
// cube of a slot's number of peaks.
Crossings find_crossings(const std::vector<int>& slots);

}  // namespace stalloc::solve
