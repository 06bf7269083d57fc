// How many bytes are live at most in the windows of dynamic places, while their regions grow.
//
// What is planned is looked at once: between two edges of windows nothing changes but by its load's
// maximum, so that a window is a handful of numbers.
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
  // `problem` passes check(), has a period and ends with one buffer a place, whose sizes count for
  // nothing: regions begin empty. O(n log n).
  WindowLoads(std::span<const profile::DynamicPlace> places, const solve::Problem& problem);

  // Makes the region of a place larger, or smaller. All below are O(edges in the window).
  void grow(std::size_t place, Bytes by);

  // The most of its stream that is live within the window of the place, regions among it.
  Bytes most(std::size_t place) const;

  // And at any time. O(edges).
  Bytes peak(StreamId stream) const;

  // The sum of all streams' peaks: what no plan with these regions is below.
  Bytes bound() const;

 private:
  struct Stretch {  // between two edges
    std::size_t begin = 0;
    std::size_t end = 0;  // past the last, it goes on at the first
  };
  template <typename Visit>
  void for_each(const Stretch& s, Visit visit) const;

  std::vector<Stretch> windows_;   // by place
  std::vector<StreamId> streams_;  // by place
  std::map<StreamId, std::vector<Bytes>> live_;
};

}  // namespace stalloc::plan
