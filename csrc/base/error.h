// The library's exceptions. Each message says what was asked, what there is and what to do next;
// the bindings turn each class into the Python exception of the same name.
#pragma once

#include <stdexcept>
#include <string>

namespace stalloc {

struct Error : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// A trace that is damaged, of another format, or that no training run can have produced.
struct TraceError : Error {
  using Error::Error;
};

// A plan that is damaged, does not fit the run, or a planning problem that has no solution.
struct PlanError : Error {
  using Error::Error;
};

// A planning problem whose sizes do not fit in 63 bits.
struct OverflowError : PlanError {
  using PlanError::PlanError;
};

// The device lacks the memory for a request, even after all cached memory was given back.
struct OutOfMemory : Error {
  using Error::Error;
};

}  // namespace stalloc
