#include "profile/envelope.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <tuple>
#include <utility>

#include "profile/law_fit.h"

namespace stalloc::profile {
namespace {

// The largest of each extent may need so much more memory than any row, in per mille.
constexpr Bytes kTolerance = 5;

// The rows whose memory is computed: those with the largest requests.
constexpr std::size_t kMostRows = 16;

// The memory of the last complete iteration at any extents.
class Need {
 public:
  Need(const trace::Trace& trace, const SizeLaws& laws) : trace_(trace), laws_(laws) {
    const Tick begin = trace.iterations[trace.iterations.size() - 2];
    const Tick end = trace.iterations.back();
    for (std::size_t i = 0; i < trace.requests.size(); ++i) {
      const trace::Request& r = trace.requests[i];
      if (r.lower >= end || r.upper <= begin) continue;
      events_.push_back({std::max(r.lower, begin), true, i});
      if (r.upper < end) events_.push_back({r.upper, false, i});
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
    Bytes live = 0;
    Bytes most = 0;
    for (const Event& e : events_) {
      const Bytes size = size_of(e.request, extents);
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

 private:
  static constexpr Bytes kTooMuch = std::numeric_limits<Bytes>::max();

  struct Event {
    Tick tick = 0;
    bool is_birth = false;  // after the frees of the same tick
    std::size_t request = 0;
  };

  static Bytes plus(Bytes a, Bytes b) {
    Bytes sum = 0;
    return __builtin_add_overflow(a, b, &sum) ? kTooMuch : sum;
  }
  Bytes size_of(std::size_t request, const std::vector<Extent>& extents) const {
    const LawIndex law = laws_.of[request];
    if (law == kNone) return trace_.requests[request].size;
    const Bytes size = evaluate_at_least(laws_[law], extents);
    return size < 0 ? kTooMuch : size;
  }

  const trace::Trace& trace_;
  const SizeLaws& laws_;
  std::vector<Event> events_;
};

}  // namespace

std::vector<Extent> planned_extents(const trace::Trace& trace, const SizeLaws& laws) {
  if (laws.seen.empty() || trace.iterations.size() < 2) return laws.envelope;
  const Need need(trace, laws);
  std::vector<std::pair<Bytes, std::size_t>> largest;
  for (std::size_t i = 0; i < laws.seen.size(); ++i)
    largest.emplace_back(need.sum(laws.seen[i]), i);
  std::ranges::sort(largest, std::greater{});
  largest.resize(std::min(largest.size(), kMostRows));
  Bytes most = 0;
  std::vector<Extent> best;
  for (const auto& [sum, row] : largest) {
    const Bytes here = need.most(laws.seen[row]);
    if (here <= most) continue;
    most = here;
    best = laws.seen[row];
  }
  const Bytes together = need.most(laws.envelope);
  return together - most <= most / 1000 * kTolerance ? laws.envelope : best;
}

}  // namespace stalloc::profile
