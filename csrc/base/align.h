// Rounds sizes up and catches overflow.
#pragma once

#include "base/error.h"
#include "base/types.h"

namespace stalloc {

// Apart, so that callers of align_up() stay short.
[[noreturn, gnu::noinline]] inline void throw_too_large(Bytes size, Bytes alignment) {
  throw OverflowError("a size of " + std::to_string(size) + " bytes rounded up to a multiple of " +
                      std::to_string(alignment) + " does not fit in 63 bits");
}

// The smallest multiple of `alignment` (> 0) that is at least `size` (>= 0).
// Throws OverflowError if the result does not fit in Bytes.
inline Bytes align_up(Bytes size, Bytes alignment) {
  // Nearly all alignments are powers of two, which need no division.
  const bool is_power = (alignment & (alignment - 1)) == 0;
  const Bytes rest = is_power ? size & (alignment - 1) : size % alignment;
  if (rest == 0) return size;
  Bytes result = 0;
  if (__builtin_add_overflow(size, alignment - rest, &result)) throw_too_large(size, alignment);
  return result;
}

}  // namespace stalloc
