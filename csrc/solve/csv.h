// Planning problems as MiniMalloc's CSV: a header line, then one buffer a line.
//
//   id,lower,upper,size
//   0,0,13312,126976
//
// Columns come in any order. `gaps` holds the stretches in which a buffer's place is free for
// others, as in "3-5 8-11". An `alignment` of its own for a buffer, and gaps of only a part of it
// ("3-5@0:64"), which MiniMalloc knows as well, are refused; an `offset` is the answer, not part of
// the question.
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
  std::vector<Offset> offsets;  // as read; empty where the file has no such column
};

// Throws PlanError with the number of the offending line: columns missing or given twice, fields
// that are no numbers or do not fit, ids given twice, negative or reversed lifetimes, gaps
// that are empty, overlap or are not within them.
CsvProblem read_csv(std::string_view text);

// The same columns, gaps if there are any, and the offset of each. One id a buffer.
std::string write_csv(const std::vector<std::string>& ids, const Problem& problem,
                      const Layout& layout);

}  // namespace stalloc::solve
