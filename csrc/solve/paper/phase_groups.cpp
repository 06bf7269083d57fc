#include "solve/paper/phase_groups.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "base/align.h"

namespace stalloc::solve {
namespace {

// A group with phases, which can be fused.
struct Candidate {
  PhaseGroup group;
  PhaseIndex begin = kNone;
  PhaseIndex end = kNone;
  bool used = false;
};

// The denominator of TMP: memory reserved over time. It is a floating-point number because the
// product of two 63-bit numbers does not fit in 64 bits.
double reserved(const PhaseGroup& group) {
  return static_cast<double>(group.size) * static_cast<double>(group.upper - group.lower);
}

void measure(PhaseGroup& group) {
  group.size = 0;
  group.lower = group.members.front().lower;
  group.upper = group.members.front().upper;
  for (const GroupMember& m : group.members) {
    group.size = std::max(group.size, m.offset + m.size);
    group.lower = std::min(group.lower, m.lower);
    group.upper = std::max(group.upper, m.upper);
  }
}

// Packs the members contiguously, in their order.
void pack(PhaseGroup& group) {
  Offset offset = 0;
  for (GroupMember& m : group.members) {
    m.offset = offset;
    offset += m.size;
  }
  measure(group);
}

bool all_live_at_once(const PhaseGroup& group) {
  Tick last_begin = 0;
  Tick first_end = kNever;
  for (const GroupMember& m : group.members) {
    last_begin = std::max(last_begin, m.lower);
    first_end = std::min(first_end, m.upper);
  }
  return last_begin < first_end;
}

void mirror(PhaseGroup& group) {
  for (GroupMember& m : group.members) {
    m.lower = -std::exchange(m.upper, -m.lower);
  }
}

// Inserts `small` into `base`, the earlier and larger of the two. The blocks of `base` are stacked
// by end time in descending order. So above any address the base is free once the block at that
// address has ended.
PhaseGroup insert(PhaseGroup base, const PhaseGroup& small) {
  std::sort(base.members.begin(), base.members.end(), [](const auto& a, const auto& b) {
    return std::tie(b.upper, a.buffer) < std::tie(a.upper, b.buffer);
  });
  pack(base);
  const std::size_t base_count = base.members.size();
  const Bytes base_size = base.size;

  std::vector<GroupMember> waiting = small.members;
  const auto by_start = [&](std::size_t a, std::size_t b) {
    return std::tie(waiting[a].lower, waiting[a].buffer) <
           std::tie(waiting[b].lower, waiting[b].buffer);
  };
  std::set<std::size_t, decltype(by_start)> left(by_start);
  for (std::size_t i = 0; i < waiting.size(); ++i) left.insert(i);

  Offset addr = 0;
  std::size_t block = 0;  // the base's block at addr
  while (block < base_count && !left.empty()) {
    const Tick free_from = base.members[block].upper;
    auto next = std::find_if(left.begin(), left.end(), [&](std::size_t i) {
      return waiting[i].lower >= free_from && waiting[i].size <= base_size - addr;
    });
    if (next == left.end()) {
      if (++block < base_count) addr = std::max(addr, base.members[block].offset);
      continue;
    }
    GroupMember placed = waiting[*next];
    left.erase(next);
    placed.offset = addr;
    addr += placed.size;
    base.members.push_back(placed);
    while (block + 1 < base_count && base.members[block + 1].offset <= addr) ++block;
    if (addr >= base_size) break;
  }
  // Members that did not fit are stacked on top. The TMP then decides if the fusion is kept.
  Offset top = base_size;
  for (const std::size_t i : left) {
    GroupMember placed = waiting[i];
    placed.offset = top;
    top += placed.size;
    base.members.push_back(placed);
  }
  measure(base);
  return base;
}

PhaseGroup fuse(PhaseGroup earlier, PhaseGroup later) {
  if (earlier.size >= later.size) return insert(std::move(earlier), later);
  mirror(earlier);
  mirror(later);
  PhaseGroup fused = insert(std::move(later), earlier);
  mirror(fused);
  measure(fused);
  return fused;
}

// Fuses groups, the largest first, each with the partner that saves most. The fused group uses the
// sum of the two groups' memory. So its TMP exceeds their weighted average exactly if it reserves
// less than both together.
void fuse_adjacent(std::vector<Candidate>& groups, const Budget& budget) {
  std::multimap<PhaseIndex, std::size_t> by_begin;
  std::multimap<PhaseIndex, std::size_t> by_end;
  for (std::size_t i = 0; i < groups.size(); ++i) {
    by_begin.emplace(groups[i].begin, i);
    by_end.emplace(groups[i].end, i);
  }
  std::vector<std::size_t> order(groups.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return groups[a].group.size > groups[b].group.size;
  });
  for (const std::size_t i : order) {
    if (groups[i].used || budget.expired()) continue;
    PhaseGroup best;
    double best_saving = 0;
    std::size_t best_partner = i;
    const auto consider = [&](std::size_t earlier, std::size_t later) {
      const std::size_t partner = earlier == i ? later : earlier;
      if (partner == i || groups[partner].used) return;
      PhaseGroup fused = fuse(groups[earlier].group, groups[later].group);
      const double saving =
          reserved(groups[earlier].group) + reserved(groups[later].group) - reserved(fused);
      if (saving > best_saving) {
        best = std::move(fused);
        best_saving = saving;
        best_partner = partner;
      }
    };
    const auto [after, after_end] = by_begin.equal_range(groups[i].end);
    for (auto it = after; it != after_end; ++it) consider(i, it->second);
    const auto [before, before_end] = by_end.equal_range(groups[i].begin);
    for (auto it = before; it != before_end; ++it) consider(it->second, i);
    if (best_partner == i) continue;
    groups[i].group = std::move(best);
    groups[i].used = true;
    groups[best_partner].group.members.clear();
    groups[best_partner].used = true;
  }
}

}  // namespace

std::vector<PhaseGroup> phase_groups(const Problem& problem, const Budget& budget) {
  std::vector<PhaseGroup> result;
  const auto add_single = [&](const GroupMember& member) {
    result.push_back({{member}, 0, 0, 0});
    pack(result.back());
  };
  std::map<std::pair<PhaseIndex, PhaseIndex>, PhaseGroup> by_phases;
  for (std::size_t i = 0; i < problem.buffers.size(); ++i) {
    const Buffer& b = problem.buffers[i];
    if (b.size == 0 || b.upper <= b.lower) continue;
    const GroupMember member{static_cast<std::int32_t>(i), align_up(b.size, problem.alignment),
                             b.lower, b.upper, 0};
    const bool wraps = problem.period > 0 && b.upper > problem.period;
    const bool tagged = b.phase_begin != kNone && b.phase_end != kNone;
    if (tagged && b.phase_begin != b.phase_end && !wraps) {
      by_phases[{b.phase_begin, b.phase_end}].members.push_back(member);
    } else {
      add_single(member);
    }
  }
  std::vector<Candidate> candidates;
  for (auto& [phases, group] : by_phases) {
    if (!all_live_at_once(group)) {
      for (const GroupMember& member : group.members) add_single(member);
      continue;
    }
    std::sort(group.members.begin(), group.members.end(), [](const auto& a, const auto& b) {
      return std::tie(a.lower, a.buffer) < std::tie(b.lower, b.buffer);
    });
    pack(group);
    candidates.push_back({std::move(group), phases.first, phases.second});
  }
  fuse_adjacent(candidates, budget);
  for (Candidate& candidate : candidates) {
    if (!candidate.group.members.empty()) result.push_back(std::move(candidate.group));
  }
  return result;
}

}  // namespace stalloc::solve
