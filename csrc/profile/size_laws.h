// The size laws of a trace: which request follows which law of which microbatch's extents.
//
// Iterations of one program ask for the same requests in the same order when their batches change.
// Only the sizes differ, and they follow from the extents of the microbatch (trace.h). So requests
// are aligned by structure here, before any sizes are compared:
//
//   family   all runs of a phase that have the same kind, chunk, occurrence and thread, of every
//            iteration and microbatch
//   run      the requests of one iteration in one phase on one thread, in order
//   position a request of the family's reference run, and its counterparts in the other runs
//
// Runs with the same layers and streams in the same order align one to one. In others the stays in
// layers are aligned, and stays of equal length align one to one. Each position gets the simplest
// law that explains what all its runs saw, or else what runs of one microbatch or one structure
// saw. Requests of runs that do not align are told by the sizes that the laws predict for them.
//
// Which extents vary, and which requests follow them, comes from the data, never from names.
//
// Cost: O(requests * log) and a fit for each distinct sequence of sizes of a family.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "profile/size_law.h"
#include "trace/trace.h"

namespace stalloc::profile {

struct SizeLaws {
  // The extents that vary and that laws use; of those that always coincide, the first.
  std::vector<std::string> extent_names;
  // All other extents, each with its largest value: those that never vary, and the coinciding ones.
  std::vector<std::pair<std::string, Extent>> fixed;
  std::vector<Extent> envelope;           // the largest of each extent
  std::vector<std::vector<Extent>> seen;  // distinct rows without unknown extents, ascending
  std::vector<SizeLaw> laws;              // no two have the same sizes everywhere
  std::vector<LawIndex> of;               // by request of the trace; kNone where none is known

  // True where no extent varies: every size is its own law, and the tables are empty.
  bool empty() const { return extent_names.empty(); }
};

// The trace has passed check(). Complete iterations alone count.
SizeLaws find_size_laws(const trace::Trace& trace);

// The trace with the sizes that its requests have at the largest extents.
trace::Trace at_envelope(const trace::Trace& trace, const SizeLaws& laws);

}  // namespace stalloc::profile
