// A sweep over time keeps the live blocks in order of address. As long as they are disjoint, a new
// block can overlap only its two neighbours. A sweep over addresses checks the streams.

#include "verify/validator.h"

#include <algorithm>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "base/error.h"

namespace stalloc::verify {
namespace {

using Index = std::size_t;

std::string describe(const solve::Problem& problem, const solve::Layout& layout, Index i) {
  const solve::Buffer& b = problem.buffers[i];
  return "buffer " + std::to_string(i) + " (" + std::to_string(b.size) + " bytes at " +
         std::to_string(layout.offsets[i]) + ", ticks " + std::to_string(b.lower) + " to " +
         std::to_string(b.upper) + ", stream " + std::to_string(b.stream) + ")";
}

Bytes rounded(const solve::Problem& problem, Index i) {
  const Bytes size = problem.buffers[i].size;
  const Bytes rest = size % problem.alignment;
  return rest == 0 ? size : size - rest + problem.alignment;
}

void check_places(const solve::Problem& problem, const solve::Layout& layout) {
  if (layout.offsets.size() != problem.buffers.size()) {
    throw PlanError("a layout of " + std::to_string(layout.offsets.size()) +
                    " offsets for a problem of " + std::to_string(problem.buffers.size()) +
                    " buffers");
  }
  if (problem.capacity > 0 && layout.height > problem.capacity) {
    throw PlanError("the layout is " + std::to_string(layout.height) +
                    " bytes high, above the capacity of " + std::to_string(problem.capacity));
  }
  for (Index i = 0; i < layout.offsets.size(); ++i) {
    const Offset offset = layout.offsets[i];
    const Offset fixed = problem.buffers[i].fixed;
    if (offset < 0) throw PlanError(describe(problem, layout, i) + " is not placed");
    if (offset % problem.alignment != 0) {
      throw PlanError(describe(problem, layout, i) + " is not aligned to " +
                      std::to_string(problem.alignment));
    }
    if (offset > layout.height || rounded(problem, i) > layout.height - offset) {
      throw PlanError(describe(problem, layout, i) + " ends above the height of " +
                      std::to_string(layout.height));
    }
    if (fixed != kUnplaced && fixed != offset) {
      throw PlanError(describe(problem, layout, i) + " is not at its fixed offset " +
                      std::to_string(fixed));
    }
  }
}

[[noreturn]] void fail_overlap(const solve::Problem& problem, const solve::Layout& layout, Index a,
                               Index b) {
  throw PlanError(describe(problem, layout, a) + " and " + describe(problem, layout, b) +
                  " overlap");
}

void check_time(const solve::Problem& problem, const solve::Layout& layout,
                const std::vector<Index>& indices) {
  std::vector<std::tuple<Tick, bool, Index>> events;  // tick, is an allocation, buffer
  events.reserve(2 * indices.size());
  const auto live = [&](Tick lower, Tick upper, Index i) {
    events.emplace_back(lower, true, i);
    events.emplace_back(upper, false, i);
  };
  const auto active = [&](Tick lower, Tick upper, Index i) {
    const Tick end = problem.period > 0 ? problem.period : upper;
    if (lower < std::min(upper, end)) live(lower, std::min(upper, end), i);
    if (upper > end) live(std::max(lower, end) - end, upper - end, i);
  };
  std::multimap<Index, const solve::IdleInterval*> intervals;
  for (const solve::IdleInterval& interval : problem.idle)
    intervals.emplace(interval.buffer, &interval);
  for (const Index i : indices) {
    Tick reached = problem.buffers[i].lower;
    const auto [first, last] = intervals.equal_range(i);
    for (auto it = first; it != last; ++it) {
      if (reached < it->second->lower) active(reached, it->second->lower, i);
      reached = it->second->upper;
    }
    if (reached < problem.buffers[i].upper) active(reached, problem.buffers[i].upper, i);
  }
  std::sort(events.begin(), events.end());
  std::map<Offset, Index> blocks;
  for (const auto& [tick, is_allocation, i] : events) {
    const Offset begin = layout.offsets[i];
    if (!is_allocation) {
      blocks.erase(begin);
      continue;
    }
    const auto [place, is_new] = blocks.emplace(begin, i);
    if (!is_new) fail_overlap(problem, layout, place->second, i);
    if (place != blocks.begin()) {
      const auto& [below, j] = *std::prev(place);
      if (below + rounded(problem, j) > begin) fail_overlap(problem, layout, j, i);
    }
    if (const auto above = std::next(place); above != blocks.end()) {
      if (begin + rounded(problem, i) > above->first) {
        fail_overlap(problem, layout, above->second, i);
      }
    }
  }
}

// `indices` are in order of offset. It suffices to know the two highest ends so far of two
// different streams: a block that overlaps one of another stream also overlaps one of these two.
void check_streams(const solve::Problem& problem, const solve::Layout& layout,
                   const std::vector<Index>& indices) {
  struct Top {
    Offset end = 0;
    Index index = 0;
  };
  Top first;
  Top second;  // of a stream other than that of `first`
  for (const Index i : indices) {
    const StreamId stream = problem.buffers[i].stream;
    const bool same = first.end == 0 || problem.buffers[first.index].stream == stream;
    const Top& foreign = same ? second : first;
    if (foreign.end > layout.offsets[i]) fail_overlap(problem, layout, foreign.index, i);
    const Top mine{layout.offsets[i] + rounded(problem, i), i};
    if (same) {
      if (mine.end > first.end) first = mine;
    } else if (mine.end > first.end) {
      second = first;
      first = mine;
    } else if (second.end == 0 || mine.end > second.end) {
      second = mine;
    }
  }
}

}  // namespace

void validate(const solve::Problem& problem, const solve::Layout& layout) {
  check_places(problem, layout);
  std::vector<Tick> active(problem.buffers.size());
  for (Index i = 0; i < active.size(); ++i) {
    active[i] = problem.buffers[i].upper - problem.buffers[i].lower;
  }
  for (const solve::IdleInterval& interval : problem.idle)
    active[interval.buffer] -= interval.upper - interval.lower;
  std::vector<Index> indices;
  for (Index i = 0; i < problem.buffers.size(); ++i) {
    if (problem.buffers[i].size > 0 && active[i] > 0) indices.push_back(i);
  }
  std::sort(indices.begin(), indices.end(),
            [&](Index a, Index b) { return layout.offsets[a] < layout.offsets[b]; });
  if (problem.streams == solve::Streams::kSeparate) check_streams(problem, layout, indices);
  check_time(problem, layout, indices);
}

}  // namespace stalloc::verify
