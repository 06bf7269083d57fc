// The state of the exact search: a floor for each unplaced buffer, and the conclusions from it.
//
// A buffer is placed at its floor, and only if no unplaced neighbour fits below it. Otherwise it is
// barred: a neighbour will block its floor. In both cases the floors of other buffers rise, until
// no further conclusion follows or a section overflows.
//
//        |   +---+            Later buffers that conflict with i lie above it. So the state is only
//        |   | i |  +---+     a floor for each unplaced buffer.
//        |   +---+  | k |
//        +---+---+--+---+--
//
// * A barred buffer lies above one of the neighbours that can still block it: its floor is the
//   lowest top among them. That neighbour is its witness; the floor is checked again if it rises.
// * A section is a single machine with release dates: for every floor f, f plus all sizes whose
//   floor is f or higher must be within the capacity.
// * If two twins (buffers of the same sections) touch, the one of lower rank is below; twins
//   of the same size are stacked by rank even if they do not touch.
//
// Every change is undone in O(1). A placement costs about the sum of the sections of the buffers
// whose floors rise. Not thread-safe.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "solve/exact/exact_model.h"

namespace stalloc::solve {

class ExactState {
 public:
  // Two sums of these identify a set of floors, up to a collision of 128 bits.
  struct Hash {
    std::uint64_t low = 0;
    std::uint64_t high = 0;
    bool operator==(const Hash&) const = default;
  };
  struct Section {
    Units slack = 0;     // how much floors can rise before it overflows
    int candidates = 0;  // unplaced buffers that can come next in it
    int unplaced = 0;
    bool is_stale = true;
  };

  // `model` fits() and outlives the state.
  explicit ExactState(const ExactModel& model);

  // Resets the floors for `capacity` (at most model.total). Returns false if no layout is possible.
  bool reset(Units capacity);

  // Puts the buffer at its floor; bars it from its floor. Returns false if that leaves no layout:
  // the caller then undoes it.
  bool place(int buffer);
  bool bar(int buffer);

  std::size_t mark() const { return trail_.size(); }
  void undo(std::size_t mark);

  bool is_placed(int buffer) const { return keys_[buffer] < 0; }
  Units floor(int buffer) const { return buffers_[buffer].floor; }  // the offset of a placed one
  Units top(int buffer) const { return floor(buffer) + model_.size[buffer]; }
  const Hash& hash(int buffer) const { return buffers_[buffer].hash; }

  // True if an unplaced buffer lives in this section and the next.
  bool is_crossed(int section) const { return crossing_[section] > 0; }
  const Section& section(int section);
  // The unplaced buffers of a section, highest floor first. Call section() for it before.
  std::span<const int> unplaced(int section) const {
    return {stacks_[section].data(), static_cast<std::size_t>(sections_[section].unplaced)};
  }
  // The overflows of a section, plus one, since the construction or the last reset.
  double failures(int section) const { return failures_[section]; }
  void forget_failures();

  // The buffers that all calls so far have looked at in sections: most of their work.
  std::int64_t looks() const { return looks_; }
  // A call that has looked at so many ends as if no layout were left, and is_exhausted() then.
  void limit_looks(std::int64_t most) { most_looks_ = most; }
  bool is_exhausted() const { return looks_ >= most_looks_; }

 private:
  struct Known {
    Units floor = 0;
    Units support = 0;  // the highest top of its placed neighbours
    Units barred = -1;  // the offset it may not have: it lies above the blocker
    bool placed = false;
    bool blocked = false;  // barred, and the blocker is not placed yet
    int witness = -1;      // the possible blocker with the lowest top
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
  std::vector<Units> keys_;  // for sections: the floor of an unplaced buffer, -1 of a placed one
  std::vector<int> blocked_;
  std::vector<Change> trail_;
  std::vector<Section> sections_;
  std::vector<std::vector<int>> stacks_;  // members of a section, highest key first
  std::vector<int> crossing_;             // unplaced buffers from this section to the next
  std::vector<double> failures_;
  std::vector<int> raised_;  // buffers that propagate() has to visit
  std::vector<int> dirty_;
  std::vector<char> is_dirty_;
  std::int64_t looks_ = 0;
  std::int64_t most_looks_ = std::numeric_limits<std::int64_t>::max();
};

}  // namespace stalloc::solve
