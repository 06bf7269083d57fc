// Extents that a model derives from those of its inputs, and sizes that follow from them.
//
//   padded    a length is rounded up to a multiple, for attention windows or kernels: "ids.1:64" is
//             "ids.1", rounded up to a multiple of 64
//   floored   convolutions and pooling with strides keep one position in so many: it is named
//             "floor((x.2+3)/4)"
//
// Two layers with strides in a row are one floor: floor((floor((T + a) / k) + b) / m) equals
// floor((T + a + b k) / (k m)). So one divisor and one offset describe an encoder of any depth.
//
// A derived extent is an extent of its own beside the one that it is named after. It grows with it.
#pragma once

#include <compare>
#include <string>
#include <string_view>

#include "profile/size_law.h"

namespace stalloc::profile {

// factor * floor((value + offset) / divisor), at least 0.
struct ExtentForm {
  Extent divisor = 1;
  Extent offset = 0;
  Extent factor = 1;

  // The value for one of the inputs' extent. An unknown one (negative) stays unknown, and one that
  // overflows is unknown.
  Extent of(Extent value) const {
    if (value < 0) return value;
    Extent shifted = 0;
    Extent result = 0;
    if (__builtin_add_overflow(value, offset, &shifted)) return kNone;
    if (shifted <= 0) return 0;
    return __builtin_mul_overflow(shifted / divisor, factor, &result) ? kNone : result;
  }
  bool is_plain() const { return *this == ExtentForm{}; }

  auto operator<=>(const ExtentForm&) const = default;
};

// `value`, rounded up to a multiple.
constexpr ExtentForm padded_to(Extent multiple) { return {multiple, multiple - 1, multiple}; }

// The largest divisor of a name; an offset is at most four times as large, of either sign.
constexpr Extent kMostDivided = Extent{1} << 20;

struct DerivedExtent {
  std::string_view base;  // the inputs' extent
  ExtentForm form;
};

// The extent that a name means; a name that means no other extent is an input's. O(length);
// allocates nothing.
DerivedExtent parse_extent(std::string_view name);

// The name of `base` in this form, which is plain, padded_to() or has a factor of 1.
std::string derived_name(const std::string& base, const ExtentForm& form);

}  // namespace stalloc::profile
