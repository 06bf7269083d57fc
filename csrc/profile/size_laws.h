// Finds the size laws of a trace: which request follows which law of which microbatch's extents.
//
// If batches change, the iterations of one program still make the same requests in the same order.
// Only the sizes differ, and they follow from the extents of the microbatch (trace.h). So requests
// are aligned here by structure, before any sizes are compared:
//
//   family   all runs of a phase that have the same kind, chunk, occurrence and thread, of every
//            iteration and microbatch
//   run      the requests of one iteration in one phase on one thread, in order
//   position a request of the family's reference run, and its counterparts in the other runs
//
// Runs with the same layers and streams in the same order align one to one. In other runs the calls
// of layers are aligned, and calls of equal length align one to one. Each position gets the
// simplest law that explains the sizes of all its runs. Otherwise it gets a law for the runs of one
// microbatch, or of one structure. Requests of runs that do not align are matched with the sizes
// that the laws predict.
//
// The varying extents, and the requests that follow them, are found in the data, never by names.
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
  // The extents that vary and that laws use. Only the first of several that always coincide.
  std::vector<std::string> extent_names;
  // All other extents, each with its largest value: those that never vary, and the coinciding ones.
  std::vector<std::pair<std::string, Extent>> fixed;
  std::vector<Extent> envelope;           // the largest of each extent
  std::vector<std::vector<Extent>> seen;  // distinct rows without unknown extents, ascending
  std::vector<SizeLaw> laws;              // no two have the same sizes everywhere
  std::vector<LawIndex> of;               // by request of the trace; kNone if none is known
  // By phase of the trace: the extents that its requests follow. Empty where they are unknown.
  std::vector<std::vector<Extent>> own;

  const SizeLaw& operator[](LawIndex l) const { return laws[l.position()]; }

  // True if no extent varies: every size is its own law, and the tables are empty.
  bool empty() const { return extent_names.empty(); }
};

// The trace has passed check(). Only complete iterations count.
SizeLaws find_size_laws(const trace::Trace& trace);

// No laws: all extents count as fixed.
SizeLaws no_laws(const trace::Trace& trace);

}  // namespace stalloc::profile
