// Planning problems as MiniMalloc's CSV: a header line, then one buffer a line.
//
//   id,lower,upper,size
//   0,0,13312,126976
//
// Columns come in any order. `gaps` holds a buffer's idle intervals, as in "3-5 8-11". Two features
// of MiniMalloc are refused: an `alignment` for a single buffer, and gaps of a part of a buffer
// ("3-5@0:64"). An `offset` is part of a solution, not of the problem.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "solve/core/problem.h"

namespace stalloc::solve {

struct CsvProblem {
  Problem problem;               // alignment 1, no period, no capacity
  std::vector<std::string> ids;  // of the buffers, in order
  bool has_offsets = false;
  std::vector<Offset> offsets;  // as read; empty if the file has no such column
};

// Throws PlanError with the number of the offending line if a column is missing or given twice, a
// field is no number or does not fit, an id is given twice, a lifetime is negative or reversed, or
// a gap is empty, overlaps another or is not within the lifetime.
CsvProblem read_csv(std::string_view text);

// The same columns, gaps if there are any, and the offset of each. One id a buffer.
std::string write_csv(const std::vector<std::string>& ids, const Problem& problem,
                      const Layout& layout);

}  // namespace stalloc::solve
