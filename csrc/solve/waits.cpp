// A sweep over time, with the last owner of each address.

#include "solve/waits.h"

#include <algorithm>

#include "base/align.h"
#include "base/range_map.h"

namespace stalloc::solve {

std::vector<Wait> find_waits(const Problem& problem, const Layout& layout) {
  std::vector<std::int32_t> order;
  for (std::size_t i = 0; i < problem.buffers.size(); ++i) {
    const Buffer& b = problem.buffers[i];
    if (b.size > 0 && b.upper > b.lower) order.push_back(static_cast<std::int32_t>(i));
  }
  std::ranges::stable_sort(order, {}, [&](std::int32_t i) { return problem.buffers[i].lower; });
  std::vector<Wait> waits;
  RangeMap<std::int32_t> owners;
  // On a circle, the first pass only finds the last buffer at each address.
  const int passes = problem.period > 0 ? 2 : 1;
  for (int pass = 1; pass <= passes; ++pass) {
    for (const std::int32_t i : order) {
      const Buffer& b = problem.buffers[i];
      const Range place{layout.offsets[i], layout.offsets[i] + align_up(b.size, problem.alignment)};
      owners.visit(place, [&](std::int32_t before) {
        if (pass == passes && problem.buffers[before].stream != b.stream) {
          waits.push_back({i, before});
        }
      });
      owners.assign(place, i);
    }
  }
  std::ranges::sort(waits);
  waits.erase(std::unique(waits.begin(), waits.end()), waits.end());
  return waits;
}

}  // namespace stalloc::solve
