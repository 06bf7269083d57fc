// Extents that a model pads: it rounds the length of a batch up to a multiple, for its attention
// windows or its kernels, so sizes follow from the padded length.
//
// A padded extent is an extent of its own, named after the one that the inputs have: "ids.1:64" is
// "ids.1", rounded up to a multiple of 64.
#pragma once

#include <string>
#include <string_view>

#include "profile/size_law.h"

namespace stalloc::profile {

struct PaddedExtent {
  std::string_view base;  // the inputs' extent
  Extent multiple = 1;    // 1: it is not padded

  // The value for one of the base; an unknown one stays unknown.
  Extent of(Extent value) const {
    return value <= 0 ? value : (value + multiple - 1) / multiple * multiple;
  }
};

// The extent that a name means. O(length); allocates nothing.
PaddedExtent parse_extent(std::string_view name);

// The name of `base`, rounded up to a multiple; `base` itself for 1.
std::string padded_name(const std::string& base, Extent multiple);

}  // namespace stalloc::profile
