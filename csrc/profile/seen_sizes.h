// The sizes of requests in batches in which they were not seen.
//
// A part of the program that only some batches reach, such as the head of one task, is seen with
// the extents of these batches. One of them may be the same in all of them:
//
//   rows x tokens   64 x 58   64 x 62   64 x 72   8 x 441   8 x 496
//   this head           yes       yes       yes        no        no
//
// Then nothing tells how the size depends on it. A law in the other extents is right for any batch
// with 64 rows, and eight times too large for 8 x 496. So for a batch with less of such an extent,
// the size is at most the largest that was seen.
//
// Cost: O(requests) once, O(extents) a size. Thread-safe for concurrent reads.
#pragma once

#include <vector>

#include "profile/size_laws.h"
#include "trace/trace.h"

namespace stalloc::profile {

class SeenSizes {
 public:
  SeenSizes(const trace::Trace& trace, const SizeLaws& laws);

  // The size of a request with this law in a batch of these extents, rounded up; kNone as
  // evaluate() has it.
  Bytes size(LawIndex law, const std::vector<Extent>& extents) const;

 private:
  // The batches in which a law was seen.
  struct Seen {
    std::vector<Extent> least;  // of each extent; empty if no batch is known
    std::vector<Extent> most;
    Bytes largest = 0;
  };

  const SizeLaws& laws_;
  std::vector<Seen> seen_;  // by law
};

// The trace with the sizes that its requests have at the largest extents.
trace::Trace at_envelope(const trace::Trace& trace, const SizeLaws& laws);

}  // namespace stalloc::profile
