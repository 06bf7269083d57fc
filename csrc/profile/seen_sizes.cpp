#include "profile/seen_sizes.h"

#include <algorithm>
#include <cstddef>

#include "profile/law_fit.h"

namespace stalloc::profile {

SeenSizes::SeenSizes(const trace::Trace& trace, const SizeLaws& laws)
    : laws_(laws), seen_(laws.laws.size()) {
  for (std::size_t i = 0; i < trace.requests.size(); ++i) {
    const LawIndex law = laws.of[i];
    if (law == kNone || laws[law].source != LawSource::kOwn) continue;
    const std::vector<Extent>& extents = laws.own[trace.requests[i].phase_begin.position()];
    if (extents.empty()) continue;
    Seen& seen = seen_[law.position()];
    if (seen.least.empty()) seen.least = seen.most = extents;
    for (std::size_t e = 0; e < extents.size(); ++e) {
      seen.least[e] = std::min(seen.least[e], extents[e]);
      seen.most[e] = std::max(seen.most[e], extents[e]);
    }
    seen.largest = std::max(seen.largest, trace.requests[i].size);
  }
}

Bytes SeenSizes::size(LawIndex law, const std::vector<Extent>& extents) const {
  const Bytes size = evaluate_at_least(laws_[law], extents);
  const Seen& seen = seen_[law.position()];
  for (std::size_t e = 0; e < seen.least.size(); ++e) {
    if (seen.least[e] == seen.most[e] && extents[e] < seen.least[e]) {
      return std::min(size, seen.largest);
    }
  }
  return size;
}

trace::Trace at_envelope(const trace::Trace& trace, const SizeLaws& laws) {
  trace::Trace result = trace;
  const SeenSizes seen(trace, laws);
  for (std::size_t i = 0; i < result.requests.size(); ++i) {
    if (laws.of[i] == kNone) continue;
    const Bytes size = seen.size(laws.of[i], laws.envelope);
    if (size > 0) result.requests[i].size = size;
  }
  return result;
}

}  // namespace stalloc::profile
