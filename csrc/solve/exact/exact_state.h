// The state of the exact search: a floor for every buffer that is not placed, and what follows.
//
// A buffer is placed at its floor, and only when no unplaced neighbour fits below it; or it is
// barred from its floor, which is to say that a neighbour will be in its way there. Either way the
// floors of others rise, until nothing follows any more or a section overflows.
//
//        |   +---+            All that is placed later and meets i lies above it, so the state is a
//        |   | i |  +---+     floor for each unplaced buffer, nothing more.
//        |   +---+  | k |
//        +---+---+--+---+--
//
// * A barred buffer lies above one of the neighbours that can still block it: its floor is the
//   lowest top among them. It stands on one witness and is looked at again when that one rises.
// * A section is a single machine with release dates: for every floor f, f plus all sizes whose
//   floor is f or higher must fit under the capacity.
// * Of two twins (buffers of the same sections) that touch, the one of lower rank is below; twins
//   of the same size are stacked by rank whether they touch or not.
//
// Every change is undone in O(1); a placement costs about the sum of the sections of what rises.
// Not thread-safe.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "solve/exact/exact_model.h"

namespace stalloc::solve {

class ExactState {
 public:
  // Two sums of them tell two sets of floors apart, up to a collision of 128 bits.
  struct Hash {
    std::uint64_t low = 0;
    std::uint64_t high = 0;
    bool operator==(const Hash&) const = default;
  };
  struct Section {
    Units slack = 0;     // how much floors can rise before it overflows
    int candidates = 0;  // unplaced buffers that can be its next
    int unplaced = 0;
    bool is_stale = true;
  };

  // `model` fits() and outlives the state.
  explicit ExactState(const ExactModel& model);

  // Nothing is placed but on the ground. False when nothing fits under `capacity` (at most
  // model.total).
  bool reset(Units capacity);

  // The buffer lies at its floor; it does not. False when that leaves no layout: undo it then.
  bool place(int buffer);
  bool bar(int buffer);

  std::size_t mark() const { return trail_.size(); }
  void undo(std::size_t mark);

  bool is_placed(int buffer) const { return keys_[buffer] < 0; }
  Units floor(int buffer) const { return buffers_[buffer].floor; }  // or its offset, once placed
  Units top(int buffer) const { return floor(buffer) + model_.size[buffer]; }
  const Hash& hash(int buffer) const { return buffers_[buffer].hash; }

  // Whether an unplaced buffer lives in this section and the next.
  bool is_crossed(int section) const { return crossing_[section] > 0; }
  const Section& section(int section);
  // The unplaced buffers of a section that section() has been asked for, highest floor first.
  std::span<const int> unplaced(int section) const {
    return {stacks_[section].data(), static_cast<std::size_t>(sections_[section].unplaced)};
  }
  // How often a section overflowed, plus one; since the state was made or this forgotten.
  double failures(int section) const { return failures_[section]; }
  void forget_failures();

 private:
  struct Known {
    Units floor = 0;
    Units support = 0;  // the highest top of its neighbours that are placed
    Units barred = -1;  // it may not lie here, but above what blocks it
    bool placed = false;
    bool blocked = false;  // barred, and the blocker is not placed yet
    int witness = -1;      // the lowest that can block it, by its top
    Hash hash;
  };
  struct Change {
    int buffer;
    Known before;
  };

  bool support(int buffer, Units floor, Units top);
  bool bar_here(int buffer);
  bool raise(int buffer, Units floor);
  bool raise_blocked(int buffer);
  bool propagate();
  bool propagate_from(int buffer);
  bool evaluate(int section);

  Known& change(int buffer);
  void set_blocked(int buffer, bool blocked);
  void touch(int buffer);
  bool fail();
  void rehash(int buffer);

  const ExactModel& model_;
  Units capacity_ = 0;
  std::vector<Known> buffers_;
  std::vector<Units> keys_;  // the floor of what is not placed, else -1: all that sections look at
  std::vector<int> blocked_;
  std::vector<Change> trail_;
  std::vector<Section> sections_;
  std::vector<std::vector<int>> stacks_;  // members of a section, highest key first
  std::vector<int> crossing_;             // unplaced buffers from this section to the next
  std::vector<double> failures_;
  std::vector<int> raised_;  // work of propagate()
  std::vector<int> dirty_;
  std::vector<char> is_dirty_;
};

}  // namespace stalloc::solve
