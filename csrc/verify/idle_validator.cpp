// A sweep over time counts the live ranges that overlap each claim. The number that overlaps
// [begin, end) is the number that begins before `end`, less the number that ends by `begin`.
#include "verify/idle_validator.h"

#include <algorithm>
#include <array>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "base/error.h"

namespace stalloc::verify {
namespace {

// A multiset of addresses from a known set. It counts the addresses below a bound.
class AddressCounter {
 public:
  explicit AddressCounter(const std::vector<Offset>& known)
      : known_(known), sums_(known.size() + 1) {}

  void add(Offset address, int times) {
    for (std::size_t i = rank(address) + 1; i < sums_.size(); i += i & -i) sums_[i] += times;
  }
  // `bound` is known.
  std::int64_t below(Offset bound) const {
    std::int64_t sum = 0;
    for (std::size_t i = rank(bound); i > 0; i -= i & -i) sum += sums_[i];
    return sum;
  }
  std::int64_t up_to(Offset bound) const {
    std::int64_t sum = 0;
    for (std::size_t i = rank(bound) + 1; i > 0; i -= i & -i) sum += sums_[i];
    return sum;
  }

 private:
  std::size_t rank(Offset address) const {
    return static_cast<std::size_t>(std::ranges::lower_bound(known_, address) - known_.begin());
  }

  const std::vector<Offset>& known_;
  std::vector<std::int64_t> sums_;  // a Fenwick tree
};

struct LiveRanges {
  explicit LiveRanges(const std::vector<Offset>& known) : begins(known), ends(known) {}

  void add(const IdleClaim& range, int times) {
    begins.add(range.begin, times);
    ends.add(range.end, times);
  }
  bool overlap(const IdleClaim& range) const {
    return begins.below(range.end) > ends.up_to(range.begin);
  }

  AddressCounter begins;
  AddressCounter ends;
};

std::vector<IdleClaim> as_ranges(const solve::Problem& problem, const solve::Layout& layout) {
  std::vector<IdleClaim> ranges;
  for (std::size_t i = 0; i < problem.buffers.size(); ++i) {
    const solve::Buffer& b = problem.buffers[i];
    const Bytes rest = b.size % problem.alignment;
    const Bytes rounded = rest == 0 ? b.size : b.size - rest + problem.alignment;
    const Offset begin = layout.offsets[i];
    ranges.push_back({begin, begin + rounded, b.lower, b.upper, b.stream});
  }
  return ranges;
}

std::string describe(const IdleClaim& r) {
  return "[" + std::to_string(r.begin) + ", " + std::to_string(r.end) + "), ticks " +
         std::to_string(r.lower) + " to " + std::to_string(r.upper) + ", stream " +
         std::to_string(r.stream);
}

}  // namespace

void validate_idle(const solve::Problem& problem, const solve::Layout& layout,
                   std::span<const IdleClaim> claims) {
  const std::vector<IdleClaim> buffers = as_ranges(problem, layout);
  std::vector<Offset> known;
  for (const IdleClaim& r : buffers) known.insert(known.end(), {r.begin, r.end});
  for (const IdleClaim& r : claims) known.insert(known.end(), {r.begin, r.end});
  std::ranges::sort(known);
  known.erase(std::unique(known.begin(), known.end()), known.end());
  std::set<StreamId> streams;
  for (const IdleClaim& claim : claims) streams.insert(claim.stream);

  for (const StreamId stream : streams) {
    // tick, true if it begins, true if it is a claim, index; frees come before allocations
    std::vector<std::tuple<Tick, bool, bool, const IdleClaim*>> events;
    const auto live = [&](Tick lower, Tick upper, bool is_claim, const IdleClaim& r) {
      if (lower >= upper || r.begin >= r.end) return;
      events.emplace_back(lower, true, is_claim, &r);
      events.emplace_back(upper, false, is_claim, &r);
    };
    const auto live_on_circle = [&](bool is_claim, const IdleClaim& r) {
      if (problem.period > 0 && r.upper > problem.period) {
        live(r.lower, problem.period, is_claim, r);
        live(0, r.upper - problem.period, is_claim, r);
      } else {
        live(r.lower, r.upper, is_claim, r);
      }
    };
    for (const IdleClaim& r : claims) {
      if (r.stream == stream) live_on_circle(true, r);
    }
    for (const IdleClaim& r : buffers) {
      if (r.stream == stream) {
        live_on_circle(false, r);
      } else if (r.lower < r.upper) {
        live(0, kNever, false, r);
      }
    }
    std::ranges::sort(events);
    std::array<LiveRanges, 2> ranges = {LiveRanges(known), LiveRanges(known)};  // buffers, claims
    std::array<std::set<const IdleClaim*>, 2> alive;  // names the culprit in the message
    for (const auto& [tick, begins, is_claim, range] : events) {
      ranges[is_claim].add(*range, begins ? 1 : -1);
      if (!begins) {
        alive[is_claim].erase(range);
        continue;
      }
      alive[is_claim].insert(range);
      if (!ranges[!is_claim].overlap(*range)) continue;
      const auto other = std::ranges::find_if(alive[!is_claim], [&](const IdleClaim* r) {
        return r->begin < range->end && range->begin < r->end;
      });
      const IdleClaim* claim = is_claim ? range : *other;
      const IdleClaim* buffer = is_claim ? *other : range;
      throw PlanError("claim " + std::to_string(claim - claims.data()) + ", " + describe(*claim) +
                      ": not idle, buffer " + std::to_string(buffer - buffers.data()) +
                      " lies at " + describe(*buffer));
    }
  }
}

}  // namespace stalloc::verify
