#include "profile/short_iterations.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "base/types.h"

namespace stalloc::profile {
namespace {

// The reference has a warm-up and another iteration before it.
constexpr std::int32_t kFirstReference = 2;

// Iterations are of one program if in the phases that both have the numbers of requests differ by
// no more than one in so many.
constexpr std::int64_t kAlike = 10;

// The number of requests of each phase that has a name of its own.
using Counts = std::map<trace::PhaseKey, std::int64_t>;

bool is_named(const trace::PhaseKey& key) {
  return key.kind != trace::PhaseKind::kOther && key.kind != trace::PhaseKind::kUnplanned;
}

std::vector<Counts> count_requests(const trace::Trace& trace) {
  std::vector<Counts> counts(trace.iterations.size() - 1);
  for (const trace::Request& r : trace.requests) {
    const trace::PhaseKey& key = trace[r.phase_begin].key;
    const auto after = std::ranges::upper_bound(trace.iterations, r.lower);
    const bool is_inside = after != trace.iterations.begin() && after != trace.iterations.end();
    if (!is_inside || r.thread != 0 || !is_named(key)) continue;
    ++counts[static_cast<std::size_t>(after - trace.iterations.begin() - 1)][key];
  }
  return counts;
}

// True if `longer` has all phases of `shorter`, and runs the same program in them.
bool covers(const Counts& longer, const Counts& shorter) {
  std::int64_t all = 0;
  std::int64_t different = 0;
  for (const auto& [key, count] : shorter) {
    const auto at = longer.find(key);
    if (at == longer.end()) return false;
    all += count;
    different += std::abs(count - at->second);
  }
  return different * kAlike <= all;
}

std::int32_t choose_reference(const std::vector<Counts>& counts) {
  const auto last = static_cast<std::int32_t>(counts.size()) - 1;
  std::int32_t chosen = last;
  for (std::int32_t t = last - 1; t >= kFirstReference; --t) {
    const Counts& best = counts[static_cast<std::size_t>(chosen)];
    const Counts& other = counts[static_cast<std::size_t>(t)];
    if (other.size() > best.size() && covers(other, best)) chosen = t;
  }
  return chosen;
}

// Names an `other` phase by the named one that it follows, and their distance.
struct Following {
  trace::PhaseKey key;
  std::int32_t nth = 0;
  auto operator<=>(const Following&) const = default;
};

// The `other` phases of one iteration: the occurrence of each.
std::map<Following, std::int32_t> others_of(const trace::Trace& trace, std::int32_t iteration) {
  std::map<Following, std::int32_t> others;
  Following following;
  std::int32_t newest = kNone;
  for (const trace::PhaseSpan& span : trace.phases) {
    if (span.iteration != iteration) continue;
    if (is_named(span.key)) {
      following = {span.key, 0};
    } else if (span.key.kind == trace::PhaseKind::kOther && span.key.occurrence > newest) {
      newest = span.key.occurrence;  // else one that was interrupted goes on
      others.emplace(following, newest);
      ++following.nth;
    }
  }
  return others;
}

// The new numbers of an iteration's `other` phases, by their old ones.
std::map<std::int32_t, std::int32_t> renumbered(const std::map<Following, std::int32_t>& others,
                                                const std::map<Following, std::int32_t>& known) {
  std::map<std::int32_t, std::int32_t> numbers;
  auto unknown = static_cast<std::int32_t>(known.size());
  for (const auto& [following, occurrence] : others) {
    const auto at = known.find(following);
    numbers.emplace(occurrence, at != known.end() ? at->second : unknown++);
  }
  return numbers;
}

}  // namespace

std::optional<trace::Trace> even_out(const trace::Trace& trace) {
  if (trace.iterations.size() <= kFirstReference + 1) return std::nullopt;
  const std::vector<Counts> counts = count_requests(trace);
  const std::int32_t reference = choose_reference(counts);
  const Counts& longest = counts[static_cast<std::size_t>(reference)];
  const bool is_even = std::all_of(
      counts.begin() + 1, counts.begin() + reference,
      [&](const Counts& c) { return c.size() == longest.size() || !covers(longest, c); });
  if (is_even && reference + 1 == static_cast<std::int32_t>(counts.size())) return std::nullopt;
  trace::Trace even = trace;
  even.iterations.resize(static_cast<std::size_t>(reference) + 2);
  const std::map<Following, std::int32_t> known = others_of(trace, reference);
  // Start-up's are found by their own numbers.
  for (std::int32_t t = 1; t < reference; ++t) {
    const auto numbers = renumbered(others_of(trace, t), known);
    for (trace::PhaseSpan& span : even.phases) {
      if (span.iteration != t || span.key.kind != trace::PhaseKind::kOther) continue;
      const auto at = numbers.find(span.key.occurrence);
      if (at != numbers.end()) span.key.occurrence = at->second;
    }
  }
  return even;
}

}  // namespace stalloc::profile
