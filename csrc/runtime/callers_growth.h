// The memory that torch's allocator takes of a device where none of its cached blocks fits. Apart
// from torch, so that replays can follow it.
#pragma once

#include "base/align.h"
#include "base/types.h"

namespace stalloc::runtime {

// For a request of `size` bytes; `expandable`: torch's segments are expandable.
inline Bytes callers_growth(Bytes size, bool expandable) {
  constexpr Bytes kMiB = Bytes{1} << 20;
  constexpr Bytes kPage = 2 * kMiB, kLargePage = 20 * kMiB;
  if (size <= kMiB) return kPage;
  if (!expandable && size >= 10 * kMiB) return align_up(size, kPage);
  return align_up(size, kLargePage);
}

}  // namespace stalloc::runtime
