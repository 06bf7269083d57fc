// Cost: every iteration is served once for each candidate, with best fit over the live blocks of
// one place.
#include "plan/regions.h"

#include <algorithm>
#include <array>
#include <limits>
#include <tuple>
#include <utility>

#include "base/align.h"
#include "plan/bound.h"

namespace stalloc {
namespace {

// At least so many bytes, but no more than half and whole pages: sizes that are rounded up never
// add up to quite the same.
constexpr Bytes kLeastHeadroom = Bytes{16} << 10;
constexpr Bytes kPage = Bytes{4} << 10;

constexpr std::array<std::int32_t, 7> kCandidates = {0, 1, 2, 5, 10, 20, 30};  // per cent

// Best fit in [0, capacity), the lowest address among equals, as at run time.
class Region {
 public:
  explicit Region(Bytes capacity) : free_{{0, capacity}} {}

  // kUnplaced when there is no room.
  Offset allocate(Bytes size) {
    auto best = free_.end();
    for (auto it = free_.begin(); it != free_.end(); ++it) {
      const Bytes room = it->end - it->begin;
      if (room >= size && (best == free_.end() || room < best->end - best->begin)) best = it;
    }
    if (best == free_.end()) return kUnplaced;
    const Offset offset = best->begin;
    best->begin += size;
    if (best->begin == best->end) free_.erase(best);
    return offset;
  }

  void release(Offset offset, Bytes size) {
    const auto after = std::ranges::lower_bound(free_, offset, {}, &Hole::begin);
    const auto hole = free_.insert(after, {offset, offset + size});
    if (const auto next = hole + 1; next != free_.end() && next->begin == hole->end) {
      hole->end = next->end;
      free_.erase(next);
    }
    if (hole != free_.begin() && (hole - 1)->end == hole->begin) {
      (hole - 1)->end = hole->end;
      free_.erase(hole);
    }
  }

 private:
  struct Hole {
    Offset begin;
    Offset end;
  };

  std::vector<Hole> free_;  // in order, not adjacent
};

// What a region of `capacity` bytes does to the requests of one iteration at one place.
struct Outcome {
  Bytes need = 0;                     // the highest end
  std::vector<DynamicSighting> over;  // what did not fit, rounded up
};

Outcome serve(const std::vector<DynamicSighting>& requests, Bytes capacity, Bytes alignment) {
  std::vector<std::tuple<Tick, bool, std::size_t>> events;  // tick, is an allocation, request
  for (std::size_t i = 0; i < requests.size(); ++i) {
    events.emplace_back(requests[i].lower, true, i);
    events.emplace_back(requests[i].upper, false, i);
  }
  std::ranges::sort(events);
  Outcome outcome;
  Region region(capacity);
  std::vector<Offset> offsets(requests.size(), kUnplaced);
  for (const auto& [tick, is_allocation, i] : events) {
    const Bytes size = align_up(requests[i].size, alignment);
    if (is_allocation) {
      offsets[i] = region.allocate(size);
      if (offsets[i] == kUnplaced) {
        outcome.over.push_back({size, requests[i].lower, requests[i].upper});
      } else {
        outcome.need = std::max(outcome.need, offsets[i] + size);
      }
    } else if (offsets[i] != kUnplaced) {
      region.release(offsets[i], size);
    }
  }
  return outcome;
}

Bytes highest_sum(const std::vector<DynamicSighting>& requests) {
  std::vector<std::pair<Tick, Bytes>> changes;
  for (const DynamicSighting& r : requests) {
    changes.emplace_back(r.lower, r.size);
    changes.emplace_back(r.upper, -r.size);
  }
  std::ranges::sort(changes);
  Bytes live = 0;
  Bytes highest = 0;
  for (const auto& [tick, bytes] : changes) highest = std::max(highest, live += bytes);
  return highest;
}

class Chooser {
 public:
  Chooser(std::span<const DynamicPlace> places, Problem problem)
      : places_(places), problem_(std::move(problem)) {
    for (const DynamicPlace& place : places_) {
      auto& needs = needs_.emplace_back();
      for (const auto& requests : place.sightings) {
        needs.push_back(need(requests));
      }
      iterations_ = needs.size();
    }
  }

  Regions run() {
    Regions best{.sizes = {}, .headroom = kDefaultHeadroom};
    const Bytes least = bound(0);
    if (iterations_ >= 2) {
      const Bytes most = overflow(0);
      Bytes lowest = std::numeric_limits<Bytes>::max();
      for (const std::int32_t headroom : kCandidates) {
        const Bytes cost = bound(headroom) - least;
        const Bytes over = overflow(headroom);
        if (cost + over >= lowest) continue;
        lowest = cost + over;
        best.headroom = headroom;
        best.cost = cost;
        best.saves = most - over;
      }
    } else {
      best.cost = bound(best.headroom) - least;
    }
    for (const auto& needs : needs_) {
      best.sizes.push_back(enlarged(std::ranges::max(needs), best.headroom));
    }
    return best;
  }

 private:
  Bytes need(const std::vector<DynamicSighting>& requests) const {
    const Outcome outcome = serve(requests, std::numeric_limits<Bytes>::max(), problem_.alignment);
    if (!outcome.over.empty()) {
      throw OverflowError("the dynamic requests of one place, rounded up to multiples of " +
                          std::to_string(problem_.alignment) +
                          ", do not fit in 63 bits; use a smaller alignment");
    }
    return outcome.need;
  }

  Bytes enlarged(Bytes size, std::int32_t headroom) const {
    Bytes result = 0;
    if (__builtin_mul_overflow(size, 100 + headroom, &result)) {
      throw OverflowError("a region of " + std::to_string(size) +
                          " bytes for dynamic requests leaves no head room within 63 bits");
    }
    result = std::max(result / 100, size + std::min(size / 2, kLeastHeadroom) / kPage * kPage);
    return align_up(result, problem_.alignment);
  }

  Bytes bound(std::int32_t headroom) {
    const std::size_t first = problem_.buffers.size() - places_.size();
    for (std::size_t i = 0; i < places_.size(); ++i) {
      problem_.buffers[first + i].size = enlarged(std::ranges::max(needs_[i]), headroom);
    }
    problem_.check();
    return load_bound(problem_);
  }

  // The peak of what does not fit in an iteration when the regions are sized after the others: the
  // mean over all iterations.
  Bytes overflow(std::int32_t headroom) const {
    Bytes sum = 0;
    for (std::size_t t = 0; t < iterations_; ++t) {
      std::vector<DynamicSighting> over;
      for (std::size_t i = 0; i < places_.size(); ++i) {
        Bytes others = 0;
        for (std::size_t o = 0; o < iterations_; ++o) {
          if (o != t) others = std::max(others, needs_[i][o]);
        }
        const auto left =
            serve(places_[i].sightings[t], enlarged(others, headroom), problem_.alignment);
        over.insert(over.end(), left.over.begin(), left.over.end());
      }
      sum += highest_sum(over) / static_cast<Bytes>(iterations_);
    }
    return sum;
  }

  std::span<const DynamicPlace> places_;
  Problem problem_;
  std::vector<std::vector<Bytes>> needs_;  // by place, by iteration
  std::size_t iterations_ = 0;
};

}  // namespace

Regions size_regions(std::span<const DynamicPlace> places, Problem problem) {
  problem.check();
  if (places.empty()) return {};
  return Chooser(places, std::move(problem)).run();
}

}  // namespace stalloc
