// Cost: every iteration is served once for each candidate.
#include "plan/regions.h"

#include <algorithm>
#include <array>
#include <limits>
#include <map>
#include <tuple>
#include <utility>

#include "base/align.h"
#include "base/error.h"
#include "plan/region_trial.h"
#include "plan/window_loads.h"

namespace stalloc::plan {
namespace {

constexpr std::array<std::int32_t, 8> kCandidates = {0, 50, 100, 150, 200, 300, 400, 600};

// The least head room of a need that differs at all, since rounded sizes never add up to quite the
// same. It is at most half the need, in whole pages.
constexpr Bytes kLeastHeadroom = Bytes{16} << 10;
constexpr Bytes kPage = Bytes{4} << 10;

// With fewer needs than kFewNeeds, the largest counts as above the median by at least one part in
// kLeastSpread.
constexpr std::size_t kFewNeeds = 4;
constexpr Bytes kLeastSpread = 20;

// A family's largest need is at most so many halves of the least need of its groups.
constexpr Bytes kAlikeHalves = 3;

using Needs = std::vector<std::vector<Bytes>>;  // by group, by iteration
using Levels = std::vector<std::int32_t>;       // of head room, by family

// Finds the families: groups that correspond to each other, in order.
std::vector<std::vector<std::size_t>> find_families(std::span<const profile::ProfiledGroup> groups,
                                                    std::span<const profile::ProfiledPhase> phases,
                                                    const Needs& needs) {
  // kind, chunk, occurrence; stream; the phase's number of sites, the site's index among them; the
  // site's number of groups, the group's index among them
  using Kind = std::tuple<trace::PhaseKind, std::int32_t, std::int32_t>;
  using Key = std::tuple<Kind, StreamId, std::size_t, std::size_t, std::size_t, std::size_t>;
  std::map<Key, std::vector<std::size_t>> alike;
  for (std::size_t begin = 0; begin < groups.size();) {
    std::size_t end = begin;
    std::vector<std::size_t> starts;  // of each group's groups
    for (; end < groups.size() && groups[end].phase == groups[begin].phase; ++end) {
      const bool same = end > begin && groups[end].after == groups[end - 1].after &&
                        groups[end].stream == groups[end - 1].stream;
      if (!same) starts.push_back(end);
    }
    const trace::PhaseKey& phase = phases[groups[begin].phase.position()].key;
    for (std::size_t at = 0; at < starts.size(); ++at) {
      const std::size_t next = at + 1 < starts.size() ? starts[at + 1] : end;
      for (std::size_t i = starts[at]; i < next; ++i) {
        alike[{{phase.kind, phase.chunk, phase.occurrence},
               groups[i].stream,
               starts.size(),
               at,
               next - starts[at],
               i - starts[at]}]
            .push_back(i);
      }
    }
    begin = end;
  }
  std::vector<std::vector<std::size_t>> families;
  const auto most = [&](std::size_t group) { return std::ranges::max(needs[group]); };
  for (auto& [key, members] : alike) {
    std::ranges::stable_sort(members, {}, most);
    for (std::size_t i = 0; i < members.size(); ++i) {
      const bool begins =
          i == 0 || most(members[i]) / kAlikeHalves > most(families.back().front()) / 2;
      if (begins) families.emplace_back();
      families.back().push_back(members[i]);
    }
  }
  return families;
}

class Chooser {
 public:
  Chooser(std::span<const profile::ProfiledGroup> groups,
          std::span<const profile::ProfiledPhase> phases, solve::Problem problem)
      : groups_(groups), problem_(std::move(problem)), loads_(groups, problem_) {
    for (const profile::ProfiledGroup& group : groups_) {
      auto& needs = needs_.emplace_back();
      for (const auto& requests : group.sightings) {
        needs.push_back(region_need(requests, problem_.alignment));
        if (needs.back() < 0) throw_overflow();
        // Sizes that were enlarged round up differently from those at the envelope.
        if (group.law != kNone) {
          needs.back() += problem_.alignment * static_cast<Bytes>(requests.size());
        }
      }
      iterations_ = needs.size();
    }
    for (std::size_t t = 0; t < iterations_; ++t) {
      trials_.emplace_back(groups_, t, problem_.alignment, problem_.period);
    }
    families_ = find_families(groups_, phases, needs_);
    sizes_.resize(groups_.size());
  }

  Regions run() {
    Regions best{.sizes = {}, .headroom = kDefaultHeadroom};
    set_sizes(sizes_of(Levels(families_.size(), 0), kNobody));
    const Bytes least = loads_.bound();
    Bytes over_best = 0;
    if (iterations_ >= 2) {
      Bytes lowest = std::numeric_limits<Bytes>::max();
      Bytes most = 0;
      for (const std::int32_t headroom : kCandidates) {
        const Levels levels = filled(headroom);
        const Bytes cost = loads_.bound() - least;
        if (cost > lowest) break;  // more head room costs as much at least
        const Bytes over = overflow(levels, lowest - cost);
        if (headroom == 0) most = over;
        // Head room without cost is taken, up to the default.
        if (cost + over < lowest || (cost + over == lowest && headroom <= kDefaultHeadroom)) {
          lowest = cost + over;
          best.headroom = headroom;
          best.saves = most - over;
          over_best = over;
        }
      }
    }
    best.sizes = sizes_of(filled(best.headroom), kNobody);
    best.cost = loads_.bound() - least;
    best.total = loads_.bound() + over_best;
    return best;
  }

 private:
  static constexpr std::size_t kNobody = std::numeric_limits<std::size_t>::max();

  [[noreturn]] void throw_overflow() const {
    throw OverflowError("the dynamic requests of one site, rounded up to multiples of " +
                        std::to_string(problem_.alignment) +
                        ", do not fit in 63 bits; use a smaller alignment");
  }

  // Gives each family that head room, or more, up to the default, if it does not raise the bound.
  Levels filled(std::int32_t headroom) {
    Levels levels(families_.size(), headroom);
    set_sizes(sizes_of(levels, kNobody));
    const std::map<StreamId, Bytes> peaks = this->peaks();
    for (const std::int32_t more : kCandidates) {
      if (more <= headroom) continue;
      if (more > kDefaultHeadroom) break;
      for (std::size_t f = 0; f < families_.size(); ++f) {
        const std::size_t first = families_[f].front();
        const Bytes before = sizes_[first];
        resize(families_[f], family_size(f, more, kNobody));
        const bool costs = std::ranges::any_of(families_[f], [&](std::size_t group) {
          return loads_.most(group) > peaks.at(groups_[group].stream);
        });
        if (costs) {
          resize(families_[f], before);
        } else {
          levels[f] = more;
        }
      }
    }
    return levels;
  }

  // The sizes of the regions, by group, from the needs of all iterations except one.
  std::vector<Bytes> sizes_of(const Levels& levels, std::size_t without) const {
    std::vector<Bytes> sizes(groups_.size());
    for (std::size_t f = 0; f < families_.size(); ++f) {
      const Bytes size = family_size(f, levels[f], without);
      for (const std::size_t group : families_[f]) sizes[group] = size;
    }
    return sizes;
  }

  Bytes family_size(std::size_t family, std::int32_t headroom, std::size_t without) const {
    std::vector<Bytes> needs;
    for (const std::size_t group : families_[family]) {
      for (std::size_t t = 0; t < iterations_; ++t) {
        if (t != without) needs.push_back(needs_[group][t]);
      }
    }
    return size_of(needs, headroom);
  }

  Bytes size_of(std::vector<Bytes>& needs, std::int32_t headroom) const {
    if (needs.empty()) return 0;
    std::ranges::sort(needs);
    const Bytes median = needs[needs.size() / 2];
    Bytes spread = needs.back() - median;
    const bool differs = needs.front() < needs.back();
    if (needs.size() == 1 || (differs && needs.size() < kFewNeeds)) {
      spread = std::max(spread, median / kLeastSpread);
    }
    Bytes extra = 0;
    Bytes size = 0;
    const bool fits = !__builtin_mul_overflow(spread, headroom, &extra);
    extra = extra / 100;
    if (differs && headroom > 0) {
      extra = std::max(extra, std::min(median / 2, kLeastHeadroom) / kPage * kPage);
    }
    if (!fits || __builtin_add_overflow(median, extra, &size) ||
        size > std::numeric_limits<Bytes>::max() - problem_.alignment) {
      throw OverflowError("a region of " + std::to_string(median) +
                          " bytes for dynamic requests leaves no head room within 63 bits");
    }
    return align_up(size, problem_.alignment);
  }

  void set_sizes(const std::vector<Bytes>& sizes) {
    const std::size_t first = problem_.buffers.size() - groups_.size();
    for (std::size_t i = 0; i < groups_.size(); ++i) problem_.buffers[first + i].size = sizes[i];
    problem_.check();
    for (std::size_t i = 0; i < groups_.size(); ++i) {
      loads_.grow(i, sizes[i] - sizes_[i]);
      sizes_[i] = sizes[i];
    }
  }

  void resize(const std::vector<std::size_t>& family, Bytes size) {
    for (const std::size_t group : family) {
      loads_.grow(group, size - sizes_[group]);
      sizes_[group] = size;
    }
  }

  // The highest load of each stream that has groups.
  std::map<StreamId, Bytes> peaks() const {
    std::map<StreamId, Bytes> peaks;
    for (const profile::ProfiledGroup& group : groups_) {
      if (!peaks.contains(group.stream)) peaks[group.stream] = loads_.peak(group.stream);
    }
    return peaks;
  }

  // The worst overflow of an iteration whose regions are sized by the other iterations; some value
  // above `limit` if it exceeds that.
  Bytes overflow(const Levels& levels, Bytes limit) const {
    const std::map<StreamId, Bytes> peaks = this->peaks();
    std::vector<Bytes> idle;
    for (std::size_t i = 0; i < groups_.size(); ++i) {
      idle.push_back(peaks.at(groups_[i].stream) - loads_.most(i));
    }
    Bytes worst = 0;
    for (std::size_t t = 0; t < iterations_ && worst <= limit; ++t) {
      worst = std::max(worst, trials_[t].overflow(sizes_of(levels, t), idle, limit));
    }
    return worst;
  }

  std::span<const profile::ProfiledGroup> groups_;
  solve::Problem problem_;
  WindowLoads loads_;
  std::vector<Bytes> sizes_;  // of the regions in `loads_`, by group
  Needs needs_;
  std::vector<std::vector<std::size_t>> families_;
  std::vector<RegionTrial> trials_;  // by iteration
  std::size_t iterations_ = 0;
};

}  // namespace

Regions size_regions(std::span<const profile::ProfiledGroup> groups,
                     std::span<const profile::ProfiledPhase> phases, solve::Problem problem) {
  problem.check();
  if (groups.empty()) return {};
  return Chooser(groups, phases, std::move(problem)).run();
}

}  // namespace stalloc::plan
