// A sweep over time, with the last owner of each address.

#include "plan/waits.h"

#include <algorithm>
#include <iterator>
#include <map>

#include "base/align.h"

namespace stalloc {
namespace {

class Owners {
 public:
  Owners(const Problem& problem, std::vector<Wait>& waits) : problem_(problem), waits_(waits) {}

  void take(std::int32_t buffer, Offset begin, Offset end, bool note) {
    cut(begin);
    cut(end);
    const auto first = owner_.lower_bound(begin);
    const auto last = owner_.lower_bound(end);
    const StreamId stream = problem_.buffers[buffer].stream;
    for (auto it = first; it != last && note; ++it) {
      const std::int32_t before = it->second.buffer;
      if (problem_.buffers[before].stream != stream) waits_.push_back({buffer, before});
    }
    owner_.erase(first, last);
    owner_[begin] = {end, buffer};
  }

 private:
  struct Owner {
    Offset end = 0;
    std::int32_t buffer = kNone;
  };

  // No interval reaches across `at` any more.
  void cut(Offset at) {
    const auto above = owner_.lower_bound(at);
    if (above == owner_.begin()) return;
    Owner& below = std::prev(above)->second;
    if (below.end <= at) return;
    owner_.emplace_hint(above, at, below);
    below.end = at;
  }

  const Problem& problem_;
  std::vector<Wait>& waits_;
  std::map<Offset, Owner> owner_;  // by the beginning of the interval
};

}  // namespace

std::vector<Wait> find_waits(const Problem& problem, const Layout& layout) {
  std::vector<std::int32_t> order;
  for (std::size_t i = 0; i < problem.buffers.size(); ++i) {
    const Buffer& b = problem.buffers[i];
    if (b.size > 0 && b.upper > b.lower) order.push_back(static_cast<std::int32_t>(i));
  }
  std::ranges::stable_sort(order, {}, [&](std::int32_t i) { return problem.buffers[i].lower; });
  std::vector<Wait> waits;
  Owners owners(problem, waits);
  // On a circle, the first turn only tells who was the last at each address.
  const int turns = problem.period > 0 ? 2 : 1;
  for (int turn = 1; turn <= turns; ++turn) {
    for (const std::int32_t i : order) {
      const Bytes size = align_up(problem.buffers[i].size, problem.alignment);
      owners.take(i, layout.offsets[i], layout.offsets[i] + size, turn == turns);
    }
  }
  std::ranges::sort(waits);
  waits.erase(std::unique(waits.begin(), waits.end()), waits.end());
  return waits;
}

}  // namespace stalloc
