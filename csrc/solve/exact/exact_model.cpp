#include "solve/exact/exact_model.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <tuple>
#include <utility>

#include "base/align.h"
#include "solve/core/timeline.h"

namespace stalloc::solve {

ExactModel::ExactModel(const Problem& problem) {
  const Timeline timeline(problem);
  const int moments = timeline.moments();
  Bytes most_live = 0;
  for (const Bytes live : timeline.load(problem)) most_live = std::max(most_live, live);
  lower_bound_ = most_live;
  bool any_fixed = false;
  for (const Buffer& b : problem.buffers) {
    any_fixed = any_fixed || b.fixed != kUnplaced;
    const Bytes bytes = align_up(b.size, problem.alignment);
    lower_bound_ = std::max(lower_bound_, b.fixed == kUnplaced ? bytes : b.fixed + bytes);
  }

  Bytes divisor = 0;
  std::vector<std::size_t> throughout;
  for (std::size_t i = 0; i < problem.buffers.size(); ++i) {
    const Buffer& b = problem.buffers[i];
    const Span& span = timeline.span(i);
    if (b.size == 0 || span.empty()) continue;
    divisor = std::gcd(divisor, align_up(b.size, problem.alignment));
    if (b.fixed != kUnplaced) divisor = std::gcd(divisor, b.fixed);
    const int lives = span.end - span.begin + span.wrap;
    if (lives == moments && !any_fixed) {
      throughout.push_back(i);
      continue;
    }
    original.push_back(i);
    first.push_back(span.begin);
    count.push_back(lives);
    width.push_back(b.upper - b.lower);
  }
  if (divisor > 0) unit = divisor;
  const auto units = [&](std::size_t i) {
    return align_up(problem.buffers[i].size, problem.alignment) / unit;
  };
  const auto lifetime = [&](std::size_t i) {
    return problem.buffers[i].upper - problem.buffers[i].lower;
  };
  std::stable_sort(throughout.begin(), throughout.end(),
                   [&](std::size_t a, std::size_t b) { return lifetime(a) > lifetime(b); });
  for (const std::size_t i : throughout) {
    at_bottom.emplace_back(i, base * unit);
    base += units(i);
  }
  load = most_live / unit - base;
  Units highest_fixed = 0;
  for (const std::size_t i : original) {
    const Offset at = problem.buffers[i].fixed;
    size.push_back(units(i));
    total += size.back();
    fixed.push_back(at == kUnplaced ? -1 : at / unit);
    highest_fixed = std::max(highest_fixed, fixed.back());
  }
  total += highest_fixed;
  if (original.size() > kMaxBuffers) return;
  find_twins();

  member_begin.assign(static_cast<std::size_t>(moments) + 1, 0);
  std::vector<std::vector<int>> begins(moments);
  for (int i = 0; i < buffers(); ++i) {
    begins[first[i]].push_back(i);
    for (int k = 0; k < count[i]; ++k) ++member_begin[section(i, k) + 1];
  }
  std::partial_sum(member_begin.begin(), member_begin.end(), member_begin.begin());
  if (member_begin.back() > kMaxConflicts) return;
  member.resize(member_begin.back());
  std::vector<std::size_t> next(member_begin.begin(), member_begin.end() - 1);
  std::vector<Units> loads(moments, 0);
  for (int i = 0; i < buffers(); ++i) {
    for (int k = 0; k < count[i]; ++k) {
      member[next[section(i, k)]++] = i;
      loads[section(i, k)] += size[i];
    }
  }
  // A buffer conflicts with those that live in its first section or begin in one of its others.
  busiest.assign(original.size(), 0);
  neighbour_begin.assign(1, 0);
  std::vector<int> seen(original.size(), -1);
  for (int i = 0; i < buffers(); ++i) {
    seen[i] = i;
    const auto meet = [&](std::span<const int> others) {
      for (const int j : others) {
        if (seen[j] != i) neighbour.push_back(j);
        seen[j] = i;
      }
    };
    meet(members(first[i]));
    for (int k = 0; k < count[i]; ++k) {
      busiest[i] = std::max(busiest[i], loads[section(i, k)]);
      if (k > 0) meet(begins[section(i, k)]);
    }
    if (neighbour.size() > kMaxConflicts) return;
    neighbour_begin.push_back(neighbour.size());
  }
  fits_ = true;
}

// Any order of rank is sound. With the longest at the bottom, later buffers find the tidiest stack.
void ExactModel::find_twins() {
  std::vector<int> order(original.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) {
    return width[a] != width[b] ? width[a] > width[b] : size[a] > size[b];
  });
  std::map<std::pair<int, int>, int> by_sections;
  std::map<std::tuple<int, int, Units>, int> last_twin;
  twins.resize(original.size());
  std::iota(twins.begin(), twins.end(), 0);
  twin_rank.resize(original.size());
  next_twin.assign(original.size(), -1);
  for (std::size_t rank = 0; rank < order.size(); ++rank) {
    const int i = order[rank];
    twin_rank[i] = static_cast<int>(rank);
    if (fixed[i] >= 0) continue;
    twins[i] = by_sections.try_emplace({first[i], count[i]}, i).first->second;
    const auto [last, is_new] = last_twin.try_emplace({first[i], count[i], size[i]}, i);
    if (!is_new) next_twin[last->second] = i;
    last->second = i;
  }
}

Layout ExactModel::layout(const Problem& problem, std::span<const Units> offsets) const {
  Layout result;
  result.offsets.assign(problem.buffers.size(), 0);
  for (std::size_t i = 0; i < problem.buffers.size(); ++i) {
    if (problem.buffers[i].fixed != kUnplaced) result.offsets[i] = problem.buffers[i].fixed;
  }
  for (const auto& [i, offset] : at_bottom) result.offsets[i] = offset;
  for (std::size_t k = 0; k < original.size(); ++k) {
    result.offsets[original[k]] = (base + offsets[k]) * unit;
  }
  for (std::size_t i = 0; i < problem.buffers.size(); ++i) {
    const Bytes top = result.offsets[i] + align_up(problem.buffers[i].size, problem.alignment);
    result.height = std::max(result.height, top);
  }
  return result;
}

}  // namespace stalloc::solve
