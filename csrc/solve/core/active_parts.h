// Divides buffers into the parts of their lifetimes in which they are active.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "solve/core/problem.h"

namespace stalloc::solve {

// The active parts of all buffers, as buffers of a problem without idle intervals. Its load is the
// load of the whole problem. A layout of it in which all parts of a buffer have one offset is a
// layout of the whole problem.
struct ActiveParts {
  Problem problem;
  std::vector<std::int32_t> owner;  // of each part: index into the buffers of the whole problem
  std::vector<std::size_t> first;   // part of each buffer, and the number of parts last
};

ActiveParts active_parts(const Problem& problem);

}  // namespace stalloc::solve
