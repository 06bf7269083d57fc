#include "plan/law_sizes.h"

#include <algorithm>
#include <string>
#include <string_view>

#include "base/align.h"
#include "base/error.h"
#include "profile/derived_extent.h"

namespace stalloc::plan {
namespace {

using profile::Extent;
using profile::in_proportion;

// The largest size of a request: rounding it up does not overflow.
constexpr Bytes kLargest = trace::kLargestRequest;

// In proportion to the inputs' extents that exceed the envelope. One that is derived from them
// grows with them, and counts only if the plan does not know its input's.
Bytes grown(const Plan& plan, Bytes size, std::span<const Extent> extents) {
  for (std::size_t i = 0; i < extents.size(); ++i) {
    if (extents[i] <= plan.extents[i]) continue;
    const std::string& name = plan.extent_names[i];
    const std::string_view base = profile::parse_extent(name).base;
    const auto known = std::ranges::find(plan.extent_names, base);
    if (base != name && known != plan.extent_names.end()) continue;
    size = in_proportion(size, extents[i], plan.extents[i]);
  }
  return size;
}

Bytes law_size(const Plan& plan, const profile::SizeLaw& law, std::span<const Extent> extents) {
  if (law.proof == profile::LawProof::kUnexplained) return grown(plan, law.constant, extents);
  const Bytes exact = profile::evaluate(law, extents);
  if (exact != kNone || law.divisor == 1) return exact;
  profile::SizeLaw whole = law;
  whole.divisor = 1;
  whole.step = 1;
  const Bytes numerator = profile::evaluate(whole, extents);
  if (numerator == kNone) return kNone;
  return align_up((numerator + law.divisor - 1) / law.divisor, law.step);
}

}  // namespace

LawSizes law_sizes(const Plan& plan, std::span<const Extent> extents) {
  LawSizes sizes;
  sizes.reserve(plan.laws.size());
  for (const profile::SizeLaw& law : plan.laws) {
    const Bytes size = law_size(plan, law, extents);
    if (size < 0 || size > kLargest) {
      throw PlanError("laws, row " + std::to_string(sizes.size()) +
                      ": a request has a negative size at these extents, or one above " +
                      std::to_string(kLargest) +
                      " bytes; use extents nearer to those of the profile");
    }
    sizes.push_back(std::max<Bytes>(size, 1));
  }
  return sizes;
}

LawSizes largest_sizes(const Plan& plan) {
  LawSizes largest = law_sizes(plan, plan.extents);
  for (const std::vector<profile::Extent>& extents : plan.seen) {
    const LawSizes sizes = law_sizes(plan, extents);
    for (const auto l : sizes.indices()) largest[l] = std::max(largest[l], sizes[l]);
  }
  return largest;
}

}  // namespace stalloc::plan
