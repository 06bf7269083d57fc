#include "profile/envelope.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <map>
#include <ranges>
#include <tuple>
#include <utility>

#include "profile/seen_sizes.h"

namespace stalloc::profile {
namespace {

// The largest of each extent may need so much more memory than any row, in per mille.
constexpr Bytes kTolerance = 5;

// The rows whose memory is computed: those with the largest requests.
constexpr std::size_t kMostRows = 16;

// In fewer complete iterations, microbatches of the same extents may be chance.
constexpr std::size_t kFewestAlike = 3;

// A plan for repeated batches knows no others, and one for less than the largest batch may have to
// grow. So they must save one part in so many.
constexpr Bytes kLeastSaving = 20;

// The memory of the last complete iteration at any extents.
class Need {
 public:
  Need(const trace::Trace& trace, const SizeLaws& laws)
      : trace_(trace), laws_(laws), seen_(trace, laws) {
    const Tick begin = trace.iterations[trace.iterations.size() - 2];
    const Tick end = trace.iterations.back();
    for (std::size_t i = 0; i < trace.requests.size(); ++i) {
      const trace::Request& r = trace.requests[i];
      if (r.lower >= end || r.last() <= begin) continue;
      events_.push_back({std::max(r.lower, begin), true, i});
      if (r.last() < end) events_.push_back({r.last(), false, i});
    }
    std::ranges::sort(events_, {}, [](const Event& e) { return std::tuple(e.tick, e.is_birth); });
  }

  // The bytes of all requests.
  Bytes sum(const std::vector<Extent>& extents) const {
    Bytes sum = 0;
    for (const Event& e : events_) {
      if (e.is_birth) sum = plus(sum, size_of(e.request, extents));
    }
    return sum;
  }

  // The most bytes live at once.
  Bytes most(const std::vector<Extent>& extents) const {
    return most_of([&](std::size_t request) { return size_of(request, extents); });
  }

  // The same with the sizes that were recorded.
  Bytes recorded() const {
    return most_of([&](std::size_t request) { return trace_.requests[request].size; });
  }

 private:
  static constexpr Bytes kTooMuch = std::numeric_limits<Bytes>::max();

  struct Event {
    Tick tick = 0;
    bool is_birth = false;  // after the frees of the same tick
    std::size_t request = 0;
  };

  Bytes most_of(const auto& size_of_request) const {
    Bytes live = 0;
    Bytes most = 0;
    for (const Event& e : events_) {
      const Bytes size = size_of_request(e.request);
      if (size == kTooMuch) return kTooMuch;
      if (e.is_birth) {
        live = plus(live, size);
        if (live == kTooMuch) return kTooMuch;
        most = std::max(most, live);
      } else {
        live -= size;
      }
    }
    return most;
  }

  static Bytes plus(Bytes a, Bytes b) {
    Bytes sum = 0;
    return __builtin_add_overflow(a, b, &sum) ? kTooMuch : sum;
  }
  Bytes size_of(std::size_t request, const std::vector<Extent>& extents) const {
    const LawIndex law = laws_.of[request];
    if (law == kNone) return trace_.requests[request].size;
    const Bytes size = seen_.size(law, extents);
    return size < 0 ? kTooMuch : size;
  }

  const trace::Trace& trace_;
  const SizeLaws& laws_;
  SeenSizes seen_;
  std::vector<Event> events_;
};

// The rows with the largest requests.
std::vector<std::vector<Extent>> largest_rows(const Need& need, const SizeLaws& laws) {
  std::vector<std::pair<Bytes, std::size_t>> largest;
  for (std::size_t i = 0; i < laws.seen.size(); ++i) {
    largest.emplace_back(need.sum(laws.seen[i]), i);
  }
  std::ranges::sort(largest, std::greater{});
  largest.resize(std::min(largest.size(), kMostRows));
  std::vector<std::vector<Extent>> rows;
  for (const auto& [sum, row] : largest) rows.push_back(laws.seen[row]);
  return rows;
}

// True if the last complete iteration has several microbatches with extents.
bool has_several_microbatches(const trace::Trace& trace) {
  const auto last = static_cast<std::int32_t>(trace.iterations.size()) - 2;
  if (last < 0) return false;
  return std::ranges::count_if(trace.extents, [&](const trace::MicrobatchExtents& row) {
           return trace[row.phase].iteration == last;
         }) > 1;
}

}  // namespace

Bytes recorded_load(const trace::Trace& trace) {
  std::vector<std::pair<Tick, Bytes>> events;  // frees come before births of the same tick
  for (const trace::Request& r : trace.requests) {
    events.emplace_back(r.lower, r.size);
    events.emplace_back(r.last(), -r.size);
  }
  std::ranges::sort(events);
  Bytes live = 0;
  Bytes most = 0;
  for (const auto& [tick, change] : events) most = std::max(most, live += change);
  return most;
}

std::vector<Extent> planned_extents(const trace::Trace& trace, const SizeLaws& laws) {
  if (laws.seen.empty() || trace.iterations.size() < 2) return laws.envelope;
  const Need need(trace, laws);
  Bytes most = 0;
  std::vector<Extent> best = laws.envelope;
  for (const std::vector<Extent>& row : largest_rows(need, laws)) {
    const Bytes here = need.most(row);
    if (here <= most) continue;
    most = here;
    best = row;
  }
  const Bytes together = need.most(laws.envelope);
  return together - most <= most / 1000 * kTolerance ? laws.envelope : best;
}

std::vector<Extent> fitting_extents(const trace::Trace& trace, const SizeLaws& laws) {
  if (laws.seen.empty() || !has_several_microbatches(trace)) return laws.envelope;
  const Need need(trace, laws);
  const Bytes load = recorded_load(trace);
  if (need.most(laws.envelope) - load <= load / kLeastSaving) return laws.envelope;
  Bytes most = 0;
  std::vector<Extent> best = laws.envelope;
  for (const std::vector<Extent>& row : largest_rows(need, laws)) {
    const Bytes here = need.most(row);
    if (here > load || here <= most) continue;
    most = here;
    best = row;
  }
  return best;
}

bool is_repeated(const trace::Trace& trace, const SizeLaws& laws) {
  using Rows = std::vector<std::vector<Extent>>;
  std::map<std::int32_t, Rows> rows_of;  // by iteration
  for (const trace::MicrobatchExtents& row : trace.extents) {
    rows_of[trace[row.phase].iteration].push_back(row.values);
  }
  if (trace.iterations.size() <= kFewestAlike || rows_of.size() < kFewestAlike) return false;
  const Rows& first = rows_of.begin()->second;
  const auto complete = static_cast<std::int32_t>(trace.iterations.size()) - 1;
  for (const auto& [iteration, rows] : rows_of) {
    const bool alike = rows.size() <= first.size() &&
                       std::ranges::equal(rows, first | std::views::take(rows.size()));
    if (!alike || (iteration < complete && rows.size() < first.size())) return false;
  }
  const Need need(trace, laws);
  const Bytes recorded = need.recorded();
  return need.most(laws.envelope) - recorded > recorded / kLeastSaving;
}

}  // namespace stalloc::profile
