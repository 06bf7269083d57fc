// Finds how much memory a group of dynamic requests needs in batches of other extents.
//
// The size of a dynamic request follows no law, but the sum over its group often does: the experts
// of a layer get all tokens of the microbatch, whichever expert gets which. So a law is fitted to
// the sums. It is a straight line through a product of extents, by least squares, and the group's
// region grows and shrinks in proportion to it.
//
// Cost: O(products * iterations) a group. Four extents have 34 products.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "base/types.h"
#include "profile/size_law.h"

namespace stalloc::profile {

// The requests of a group in one iteration.
struct GroupSum {
  std::span<const Extent> extents;  // of their microbatch; empty if unknown
  Bytes bytes = 0;                  // of all requests together
};

// The law of these sums; std::nullopt if no extent explains them much better than a constant does.
// `envelope` has the largest of each extent.
std::optional<SizeLaw> find_group_law(std::span<const GroupSum> sums,
                                      std::span<const Extent> envelope);

}  // namespace stalloc::profile
