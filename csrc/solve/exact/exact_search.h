// Decides by branch and bound if there is a layout of at most a given height, with a proof.
//
// The search builds on MiniMalloc (ASPLOS '23), which places buffers bottom-up in canonical order,
// checks each section's floor plus its remaining sizes against the capacity, and solves independent
// parts separately. Three differences make this search need far fewer nodes:
//
// * Canonical layouts are stricter. A canonical layout has the least sum of size * weight * offset
//   of all feasible ones, where the weight falls with the rank among twins. In it each free buffer
//   rests on the ground or on a neighbour. A neighbour blocks each lower offset at which it could
//   rest. If two twins touch, the one of lower rank is below: swapping them would lessen the sum.
//   So the two branches are "the buffer lies at its floor" and "it is blocked there", and
//   all conclusions are drawn from either (exact_state.h).
// * Any section may be filled next, not only the one with the lowest floor. The search takes the
//   section with the fewest buffers that can come next, weighed by how often it failed before.
// * Failed parts are remembered by a 128-bit hash of their floors, across restarts.
//
// Restarts alternate between several strategies with limits that grow. No clock is read, so the
// search is deterministic.
// A result of "infeasible" is a proof, up to a collision of hashes (2^-64 for 2^32 parts).
#pragma once

#include <cstdint>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "solve/core/planner.h"
#include "solve/exact/exact_model.h"
#include "solve/exact/exact_state.h"

namespace stalloc::solve {

enum class Verdict : std::uint8_t {
  kFound,
  kInfeasible,  // there is no such layout
  kUnknown,     // a limit was reached
};

class ExactSearch {
 public:
  // `model` fits() and outlives the search.
  explicit ExactSearch(const ExactModel& model);

  // The division of the nodes among the strategies: kEven gives all the same number, in runs that
  // double in length. kHard gives most of them to those that are quick on instances that are hard
  // for all, in many short runs.
  enum class Focus : std::uint8_t { kEven, kHard };

  // Searches for a layout of at most `capacity` in at most about `nodes` nodes. After kFound,
  // offsets() holds it. May be called again, with any capacity.
  Verdict run(Units capacity, std::int64_t nodes, const Budget& budget, Focus focus = Focus::kEven);

  const std::vector<Units>& offsets() const { return offsets_; }
  std::int64_t nodes() const { return nodes_; }  // visited by all calls so far

 private:
  enum class Branching : std::uint8_t { kFewest, kFewestTightest, kLowest };
  struct Strategy {
    Branching branching;
    std::string_view keys;  // of the order that breaks ties: W width, T busiest section, A area
  };
  struct HashOfHash {
    std::size_t operator()(const ExactState::Hash& hash) const { return hash.low; }
  };
  // Buffers that are connected in time, and the sections they are connected through.
  struct Part {
    int first = 0;
    int count = 0;
    bool closed = false;  // the sections are the whole circle
    std::vector<int> buffers;
  };

  void rank(std::string_view keys);
  double measure(char key, int buffer) const;
  Verdict restart();
  Verdict solve(const Part& part);
  Verdict solve_parts(const std::vector<Part>& parts);
  void spend_looks();
  std::int64_t most_looks() const;
  bool falls_apart(int buffer) const;
  std::vector<Part> split(const Part& part) const;
  int choose(const Part& part);
  int choose_section(const Part& part);

  const ExactModel& model_;
  ExactState state_;
  std::vector<int> rank_;
  std::unordered_set<ExactState::Hash, HashOfHash> failed_;

  Units capacity_ = 0;
  Units remembered_capacity_ = -1;  // the capacity at which the parts of `failed_` failed
  std::int64_t nodes_ = 0;
  std::int64_t limit_ = 0;
  std::int64_t paid_looks_ = 0;  // of the state
  bool expired_ = false;
  Branching branching_ = Branching::kFewest;
  const Budget* budget_ = nullptr;
  std::vector<Units> offsets_;
};

}  // namespace stalloc::solve
