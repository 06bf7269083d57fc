#include "plan/exact_model.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <tuple>
#include <utility>

#include "base/align.h"
#include "plan/timeline.h"

namespace stalloc {

ExactModel::ExactModel(const Problem& problem) {
  const Timeline timeline(problem);
  const int moments = timeline.moments();
  Bytes most_live = 0;
  for (const Bytes live : timeline.load(problem)) most_live = std::max(most_live, live);
  lower_bound_ = most_live;
  Bytes divisor = 0;
  std::vector<Bytes> bytes;
  for (std::size_t i = 0; i < problem.buffers.size(); ++i) {
    const Buffer& b = problem.buffers[i];
    const Span& span = timeline.span(i);
    const Bytes rounded = align_up(b.size, problem.alignment);
    lower_bound_ = std::max(lower_bound_, b.fixed == kUnplaced ? rounded : b.fixed + rounded);
    if (b.size == 0 || span.empty()) continue;
    original.push_back(i);
    bytes.push_back(rounded);
    divisor = std::gcd(divisor, bytes.back());
    if (b.fixed != kUnplaced) divisor = std::gcd(divisor, b.fixed);
    first.push_back(span.begin);
    count.push_back(span.end - span.begin + span.wrap);
    width.push_back(b.upper - b.lower);
  }
  if (divisor > 0) unit = divisor;
  load = most_live / unit;
  Units highest_fixed = 0;
  std::map<std::pair<int, int>, int> by_sections;
  std::map<std::tuple<int, int, Units>, int> last_twin;
  for (std::size_t k = 0; k < original.size(); ++k) {
    const Offset at = problem.buffers[original[k]].fixed;
    size.push_back(bytes[k] / unit);
    total += size.back();
    fixed.push_back(at == kUnplaced ? -1 : at / unit);
    highest_fixed = std::max(highest_fixed, fixed.back());
    const int self = static_cast<int>(k);
    twins.push_back(self);
    next_twin.push_back(-1);
    if (fixed.back() >= 0) continue;
    twins.back() = by_sections.try_emplace({first[k], count[k]}, self).first->second;
    const auto [last, is_new] = last_twin.try_emplace({first[k], count[k], size.back()}, self);
    if (!is_new) next_twin[last->second] = self;
    last->second = self;
  }
  total += highest_fixed;

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
  // A buffer conflicts with what lives in its first section, and with what begins in a later one.
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

Layout ExactModel::layout(const Problem& problem, std::span<const Units> offsets) const {
  Layout result;
  result.offsets.assign(problem.buffers.size(), 0);
  for (std::size_t i = 0; i < problem.buffers.size(); ++i) {
    if (problem.buffers[i].fixed != kUnplaced) result.offsets[i] = problem.buffers[i].fixed;
  }
  for (std::size_t k = 0; k < original.size(); ++k) {
    result.offsets[original[k]] = offsets[k] * unit;
  }
  for (std::size_t i = 0; i < problem.buffers.size(); ++i) {
    const Bytes top = result.offsets[i] + align_up(problem.buffers[i].size, problem.alignment);
    result.height = std::max(result.height, top);
  }
  return result;
}

}  // namespace stalloc
