// Finds where a buffer still fits, if addresses stay closed to other streams for a while.
//
// A placement for each stream holds all buffers as that stream sees them: up to the end of the hold
// for it, if they have one. A second one for each stream holds its buffers alone, without holds:
// there a buffer that comes before them looks up whom its own holds would shut out.
//
//   stream 0   [ a ) . . hold for 1 . . |
//   stream 1              [ b )                 b searches among all up to their holds for 1,
//                                               a among those of stream 1 through its hold
//
// Without holds it is a single placement. Cost: that of placement.h for each stream, and twice.
#pragma once

#include <cstddef>
#include <vector>

#include "solve/core/placement.h"
#include "solve/core/problem.h"
#include "solve/core/timeline.h"

namespace stalloc::solve {

class StreamPlacement {
 public:
  // Both outlive this object. `timeline` is that of `problem`, which has passed check().
  StreamPlacement(const Problem& problem, const Timeline& timeline);

  // As in Placement, for buffer `i`, which has a lifetime, and `size` > 0 bytes.
  Offset first_fit(std::size_t i, Bytes size) const;
  Offset best_fit(std::size_t i, Bytes size, Offset top) const;
  void place(std::size_t i, Offset offset, Bytes size);

 private:
  // Calls visit(place of the stream, spans) for each hold of buffer `i`.
  void visit_holds(std::size_t i, auto visit) const;
  std::size_t place_of(StreamId stream) const;
  const std::vector<Placement::Search>& searches(std::size_t i) const;

  const Problem& problem_;
  const Timeline& timeline_;
  std::vector<StreamId> streams_;                    // ascending; one for all if there are no holds
  std::vector<Placement> all_;                       // by stream: all buffers, as it sees them
  std::vector<Placement> own_;                       // by stream: its buffers; empty without holds
  std::vector<std::size_t> first_hold_;              // by buffer, and one behind the last
  mutable std::vector<Placement::Search> searches_;  // kept to save its allocation
};

}  // namespace stalloc::solve
