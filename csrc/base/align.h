// Rounds sizes up and catches overflow.
#pragma once

#include "base/error.h"
#include "base/types.h"

namespace stalloc {

// The smallest multiple of `alignment` (> 0) that is at least `size` (>= 0).
// Throws OverflowError if the result does not fit in Bytes.
inline Bytes align_up(Bytes size, Bytes alignment) {
  const Bytes rest = size % alignment;
  if (rest == 0) return size;
  Bytes result = 0;
  if (__builtin_add_overflow(size, alignment - rest, &result)) {
    throw OverflowError("a size of " + std::to_string(size) +
                        " bytes rounded up to a multiple of " + std::to_string(alignment) +
                        " does not fit in 63 bits");
  }
  return result;
}

}  // namespace stalloc
