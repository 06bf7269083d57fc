// Finds the extents that a model's stages derive from those of its inputs: convolutions and pooling
// with strides, patches of an image. See derived_extent.h.
//
// No names and no layers are known here, only sizes that the inputs' own extents do not explain. A
// stage is a divisor and an offset, floor((T + offset) / divisor), for one or several inputs. Each
// is tried, and the one that makes the most sizes affine in a product of extents is taken; then the
// one that explains the most of the rest, and so on.
//
// The profiled extents tell an offset only up to an interval: all offsets in it give the same
// values. The largest is taken: its laws do not say too little, and a smaller request fits.
//
// Cost: O(divisors * distinct extents * sizes), bounded by constants; nothing if the inputs' own
// extents explain every size.
#pragma once

#include <span>
#include <vector>

#include "base/types.h"
#include "profile/runs.h"
#include "profile/size_law.h"

namespace stalloc::profile {

// The sizes of one request of a program: one for each row of extents, kNone if unknown there.
struct OpenSizes {
  std::vector<std::int32_t> rows;  // of the table of extents; kNone if unknown
  std::vector<Bytes> sizes;
  std::int64_t requests = 1;  // of the program that have these sizes
};

// The stages that explain these sizes, in ascending order of their divisors. The table has no
// stages.
std::vector<DerivedStage> find_stages(const ExtentTable& table, std::vector<OpenSizes> open);

// True if it is no chance that a law explains sizes at these rows of extents, though many stages
// were tried: its values must lie far apart, or the observations be many.
bool is_evident(const SizeLaw& law, std::span<const std::vector<Extent>> rows,
                std::span<const Bytes> sizes);

}  // namespace stalloc::profile
