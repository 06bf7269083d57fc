// A range of addresses.
#pragma once

#include "base/types.h"

namespace stalloc {

struct Range {
  Offset begin = 0;
  Offset end = 0;

  Bytes size() const { return end - begin; }
  bool overlaps(Range other) const { return begin < other.end && other.begin < end; }
  bool operator==(const Range&) const = default;
};

}  // namespace stalloc
