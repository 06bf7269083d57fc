#include "solve/pipeline/two_stacks.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <vector>

#include "base/align.h"
#include "solve/core/bound.h"
#include "solve/core/order.h"
#include "solve/core/placement.h"
#include "solve/greedy/greedy.h"

namespace stalloc::solve {
namespace {

enum class Side : std::uint8_t { kBottom, kTop };

using Sides = std::map<PhaseIndex, Side>;

// The stack that each phase works on. Leaves out phases that work on none.
Sides sides_of(const Problem& problem) {
  std::map<PhaseIndex, Bytes> carried;  // bytes that outlive each phase
  for (const Buffer& b : problem.buffers) {
    if (is_carried(b)) carried[b.phase_begin] += b.size;
  }
  Bytes most = 0;
  for (const auto& [phase, bytes] : carried) most = std::max(most, bytes);
  Sides carriers;
  Side next = Side::kBottom;
  for (const auto& [phase, bytes] : carried) {
    if (bytes <= most / 2) continue;
    carriers[phase] = next;
    next = next == Side::kBottom ? Side::kTop : Side::kBottom;
  }
  std::map<PhaseIndex, std::array<Bytes, 2>> freed;  // bytes of each stack
  for (const Buffer& b : problem.buffers) {
    const auto begun = carriers.find(b.phase_begin);
    if (!is_carried(b) || begun == carriers.end()) continue;
    freed[b.phase_end][static_cast<std::size_t>(begun->second)] += b.size;
  }
  Sides sides = carriers;
  for (const auto& [phase, bytes] : freed) {
    sides.try_emplace(phase, bytes[1] > bytes[0] ? Side::kTop : Side::kBottom);
  }
  return carriers.size() < 2 ? Sides{} : sides;
}

// A placement that can be searched from both ends: a second one is upside down.
class TwoEnded {
 public:
  TwoEnded(Moment moments, Bytes height)
      : height_(height), upright_(moments), upside_down_(moments) {}

  // The lowest free offset, or the highest below the height. If there is none below it, the lowest.
  Offset place(const Span& span, Bytes size, Side side) {
    Offset offset = kUnplaced;
    if (side == Side::kTop) {
      const Offset depth = upside_down_.first_fit(span, size);
      if (depth <= height_ - size) offset = height_ - size - depth;
    }
    if (offset == kUnplaced) offset = upright_.first_fit(span, size);
    upright_.place(span, offset, size);
    // The part above the height is in no one's way below it.
    const Offset top = std::min(offset + size, height_);
    if (offset < top) upside_down_.place(span, height_ - top, top - offset);
    return offset;
  }

 private:
  Bytes height_;
  Placement upright_;
  Placement upside_down_;
};

}  // namespace

std::optional<Layout> plan_two_stacks(const Problem& problem, const Timeline& timeline,
                                      const Budget& budget, const std::atomic<Bytes>* limit) {
  const auto is_fixed = [](const Buffer& b) { return b.fixed != kUnplaced; };
  if (std::ranges::any_of(problem.buffers, is_fixed)) return std::nullopt;
  const Sides sides = sides_of(problem);
  if (sides.empty()) return std::nullopt;
  Layout layout;
  layout.offsets.assign(problem.buffers.size(), 0);
  for (const Buffer& b : problem.buffers) {
    layout.height = std::max(layout.height, align_up(b.size, problem.alignment));
  }
  TwoEnded placement(timeline.moments(), load_bound(problem));
  for (const BufferIndex i : ordered(problem, timeline, Order::kPeakRankEnd)) {
    if (budget.is_late()) return std::nullopt;
    const Buffer& b = problem.buffers[i];
    const auto stack = sides.find(b.phase_begin);
    Side side = Side::kBottom;
    if (stack != sides.end() && (stack->second == Side::kTop) == is_carried(b)) side = Side::kTop;
    const Bytes size = align_up(b.size, problem.alignment);
    layout.offsets[i] = placement.place(timeline.span(i), size, side);
    layout.height = std::max(layout.height, layout.offsets[i] + size);
    if (limit && layout.height >= limit->load(std::memory_order_relaxed)) return std::nullopt;
  }
  return layout;
}

Layout TwoStacksPlanner::plan(const Problem& problem, const Budget& budget) const {
  const Timeline timeline(problem);
  if (std::optional<Layout> layout = plan_two_stacks(problem, timeline, budget)) return *layout;
  return *place_in_order(problem, timeline, ordered(problem, timeline, Order::kPeakRankEnd),
                         Fit::kFirst, budget);
}

}  // namespace stalloc::solve
