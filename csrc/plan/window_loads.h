// Computes the highest load within each window of a group while regions grow.
//
// The edges of all windows divide the period into pieces. The load of the static requests is
// reduced once to its maximum in each piece, so a window is a few numbers.
#pragma once

#include <cstddef>
#include <map>
#include <span>
#include <vector>

#include "profile/lifetimes.h"
#include "solve/core/problem.h"

namespace stalloc::plan {

class WindowLoads {
 public:
  // `problem` passes check(), has a period and ends with one buffer a group. The sizes of these do
  // not matter: regions begin empty. O(n log n).
  WindowLoads(std::span<const profile::ProfiledGroup> groups, const solve::Problem& problem);

  // Makes the region of a group larger, or smaller. All functions below are O(edges in the window)
  // unless they say otherwise.
  void grow(std::size_t group, Bytes by);

  // The highest load of the group's stream within its window, regions included.
  Bytes most(std::size_t group) const;

  // The highest load of a stream at any time. O(edges).
  Bytes peak(StreamId stream) const;

  // The sum of all streams' highest loads: no plan with these regions is lower.
  Bytes bound() const;

 private:
  struct Stretch {  // between two edges
    std::size_t begin = 0;
    std::size_t end = 0;  // past the last, it goes on at the first
  };
  template <typename Visit>
  void for_each(const Stretch& s, Visit visit) const;

  std::vector<Stretch> windows_;   // by group
  std::vector<StreamId> streams_;  // by group
  std::map<StreamId, std::vector<Bytes>> live_;
};

}  // namespace stalloc::plan
