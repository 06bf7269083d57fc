// Exact search: is there a layout of at most this height? Branch and bound with a proof either way.
//
// Where it comes from: MiniMalloc (ASPLOS '23) places buffers bottom-up in canonical order, checks
// the floor of each section plus what is still to come there against the capacity, and solves what
// falls apart in time separately. What is different here, and why it needs far fewer nodes:
//
// * Canonical layouts are stricter. Take, of all feasible layouts, one with the least sum of
//   size * weight * offset. In it each free buffer rests on the ground or on a neighbour, each
//   lower place it could rest at is blocked by a neighbour, and of two with the same sections that
//   touch, the one of lower rank is below (swapping them would lessen the sum). So the branches are
//   "buffer i lies at its lowest possible offset" and "it is blocked there", and the second is told
//   to all others at once: i then lies above one of its possible blockers.
//
//        |   +---+            i may lie at its floor only when no unplaced neighbour fits below:
//        |   | i |  +---+     then all that is placed later and meets i lies above it, and the
//        state |   +---+  | k |     is a floor for each unplaced buffer, nothing more.
//        +---+---+--+---+--
//
// * A section is a single machine with release dates: for every floor f, f plus all sizes whose
//   floor is f or higher must fit under the capacity.
// * Any section may be filled next, not only the lowest place. The one with the fewest buffers that
//   can come next is, weighed by how often it was the one that failed.
// * Parts that failed are remembered by a 128-bit hash of their floors, across restarts.
//
// Restarts run through several strategies with limits that double: deterministic, no clock.
// A result of "infeasible" is a proof, up to a collision of hashes (< 2^-64 for 2^32 nodes).
#pragma once

#include <cstdint>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "plan/exact_model.h"
#include "plan/planner.h"

namespace stalloc {

enum class Verdict : std::uint8_t {
  kFound,
  kInfeasible,  // there is no such layout
  kUnknown,     // a limit was reached
};

class ExactSearch {
 public:
  // `model` fits() and outlives the search.
  explicit ExactSearch(const ExactModel& model);

  // Looks for a layout of at most `capacity`, visiting at most about `nodes` nodes. After kFound,
  // offsets() holds it. May be called again, with any capacity.
  Verdict run(Units capacity, std::int64_t nodes, const Budget& budget);

  const std::vector<Units>& offsets() const { return offsets_; }
  std::int64_t nodes() const { return nodes_; }  // visited by all calls so far

 private:
  enum class Branching : std::uint8_t { kFewest, kFewestTightest, kLowest };
  struct Strategy {
    Branching branching;
    std::string_view keys;  // of the order that breaks ties: W width, T busiest section, A area
  };
  struct Hash {
    std::uint64_t low = 0;
    std::uint64_t high = 0;
    bool operator==(const Hash&) const = default;
  };
  struct HashOfHash {
    std::size_t operator()(const Hash& hash) const { return hash.low; }
  };
  // What is known of a buffer. While it is not placed, `floor` is the lowest offset it can have.
  struct State {
    Units floor = 0;
    Units support = 0;  // the highest top of its neighbours that are placed
    Units barred = -1;  // it may not lie here, but above what blocks it
    bool placed = false;
    bool blocked = false;  // barred, and the blocker is not placed yet
    int witness = -1;      // the lowest that can block it, by its top: `floor` stands on that
    Hash hash;
  };
  struct Change {
    int buffer;
    State before;
  };
  struct Section {
    Units slack = 0;
    int candidates = 0;  // buffers that can be its next
    int unplaced = 0;
    bool is_stale = true;
  };
  // Buffers that are connected in time, and the sections they are connected through.
  struct Part {
    int first = 0;
    int count = 0;
    bool closed = false;  // goes all round the circle
    std::vector<int> buffers;
  };

  void rank(std::string_view keys);
  double measure(char key, int buffer) const;
  Verdict restart();
  Verdict solve(const Part& part);
  Verdict solve_parts(const std::vector<Part>& parts);
  bool falls_apart(int buffer) const;
  std::vector<Part> split(const Part& part) const;
  int choose(const Part& part);

  bool place(int buffer);
  bool bar(int buffer);
  bool bar_here(int buffer);
  bool raise(int buffer, Units floor);
  bool raise_blocked(int buffer);
  bool propagate();
  bool propagate_from(int buffer);
  bool evaluate(int section);

  State& change(int buffer);
  void set_blocked(int buffer, bool blocked);
  void touch(int buffer);
  void forget_work();
  void undo(std::size_t mark);
  void rehash(int buffer);

  const ExactModel& model_;
  std::vector<State> states_;
  std::vector<Units> keys_;  // the floor of what is not placed, else -1: all that sections look at
  std::vector<int> blocked_;
  std::vector<Change> trail_;
  std::vector<Section> sections_;
  std::vector<std::vector<int>> stacks_;  // members of a section, highest floor first, placed last
  std::vector<int> crossing_;             // unplaced buffers from this section to the next
  std::vector<double> weight_;            // of a section: how often it failed
  std::vector<int> rank_;
  std::vector<int> raised_;  // work of propagate()
  std::vector<int> dirty_;
  std::vector<char> is_dirty_;
  std::unordered_set<Hash, HashOfHash> failed_;

  Units capacity_ = 0;
  Units remembered_capacity_ = -1;  // what `failed_` is about
  std::int64_t nodes_ = 0;
  std::int64_t limit_ = 0;
  bool expired_ = false;
  Branching branching_ = Branching::kFewest;
  const Budget* budget_ = nullptr;
  std::vector<Units> offsets_;
};

}  // namespace stalloc
