// Planning problems as MiniMalloc's CSV: a header line, then one buffer a line.
//
//   id,lower,upper,size
//   0,0,13312,126976
//
// Columns come in any order. `alignment` and `gaps`, which MiniMalloc knows as well, are refused
// where they would change the problem; an `offset` is the answer, not part of the question.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "plan/problem.h"

namespace stalloc {

struct CsvProblem {
  Problem problem;               // alignment 1, no period, no capacity
  std::vector<std::string> ids;  // of the buffers, in order
  bool has_offsets = false;
  std::vector<Offset> offsets;  // as read; empty where the file has no such column
};

// Throws PlanError with the number of the offending line: columns missing or given twice, fields
// that are no numbers or do not fit, ids given twice, negative or reversed lifetimes.
CsvProblem read_csv(std::string_view text);

// The same columns, and the offset of each. One id a buffer.
std::string write_csv(const std::vector<std::string>& ids, const Problem& problem,
                      const Layout& layout);

}  // namespace stalloc
