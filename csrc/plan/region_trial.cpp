// Cost: one pass over the iteration's requests, and one over the open regions for each request
// whose own region is full.
#include "plan/region_trial.h"

#include <algorithm>
#include <limits>
#include <tuple>

#include "base/align.h"
#include "base/range_set.h"

namespace stalloc::plan {
namespace {

constexpr std::size_t kIdle = std::numeric_limits<std::size_t>::max();
constexpr std::size_t kOver = kIdle - 1;

// Takes space as the runtime does. Returns kUnplaced if no hole is large enough.
Offset take_best_fit(HoleSet& holes, Bytes size) {
  const Offset offset = holes.best_fit(size);
  if (offset != kUnplaced) holes.subtract({offset, offset + size});
  return offset;
}

}  // namespace

// Serves the requests of a trial from regions of given sizes.
class RegionRun {
 public:
  RegionRun(const RegionTrial& trial, std::span<const Bytes> sizes, std::span<const Bytes> idle)
      : trial_(trial),
        idle_(idle),
        holes_(sizes.size()),
        is_open_(sizes.size()),
        blocks_(trial.events_.size() / 2) {
    for (std::size_t g = 0; g < sizes.size(); ++g) {
      if (sizes[g] > 0) holes_[g].insert({0, sizes[g]});
    }
  }

  Bytes run(Bytes limit) {
    for (const Event& e : trial_.events_) {
      now_ = e.tick;
      if (!e.is_allocation) {
        release(e);
        continue;
      }
      allocate(e);
      if (most_over_ > limit) break;
    }
    return most_over_;
  }

 private:
  using Event = RegionTrial::Event;
  struct Block {
    std::size_t host = kOver;  // the group whose region serves it
    Offset offset = 0;
  };

  bool put(const Event& e, std::size_t host) {
    const Offset offset = take_best_fit(holes_[host], e.size);
    if (offset == kUnplaced) return false;
    blocks_[e.request] = {host, offset};
    return true;
  }

  void allocate(const Event& e) {
    const auto& visits = trial_.visits_;
    const auto& groups = trial_.groups_;
    if (!is_open_[e.group]) open_.push_back(e.group);
    is_open_[e.group] = true;
    if (put(e, e.group)) return;
    std::erase_if(open_, [&](std::size_t g) { return visits[g].closes <= now_; });
    const RegionTrial::Visit& visit = visits[e.group];
    const Tick least = visit.passing ? 0 : (visit.closes - now_) / 8 * 7;
    for (const std::size_t g : open_) {
      const bool lends = g != e.group && groups[g].stream == groups[e.group].stream &&
                         visits[g].last_birth < now_ && visits[g].closes - now_ >= least;
      if (lends && put(e, g)) return;
    }
    Block& block = blocks_[e.request];
    block.host = visit.passing && in_idle_ + e.size <= idle_[e.group] / 2 ? kIdle : kOver;
    Bytes& live = block.host == kIdle ? in_idle_ : over_;
    live += e.size;
    most_over_ = std::max(most_over_, over_);
  }

  void release(const Event& e) {
    const Block& block = blocks_[e.request];
    if (block.host == kOver) {
      over_ -= e.size;
    } else if (block.host == kIdle) {
      in_idle_ -= e.size;
    } else {
      holes_[block.host].insert_merged({block.offset, block.offset + e.size});
    }
  }

  const RegionTrial& trial_;
  std::span<const Bytes> idle_;
  std::vector<HoleSet> holes_;     // by group: of its region
  std::vector<char> is_open_;      // by group
  std::vector<Block> blocks_;      // by request
  std::vector<std::size_t> open_;  // may still list regions that have closed
  Tick now_ = 0;
  Bytes in_idle_ = 0;
  Bytes over_ = 0;
  Bytes most_over_ = 0;
};

Bytes region_need(std::span<const profile::DynamicSighting> requests, Bytes alignment) {
  std::vector<std::tuple<Tick, bool, std::size_t>> events;  // tick, is an allocation, request
  for (std::size_t i = 0; i < requests.size(); ++i) {
    events.emplace_back(requests[i].lower, true, i);
    events.emplace_back(requests[i].upper, false, i);
  }
  std::ranges::sort(events);
  Bytes need = 0;
  HoleSet holes;
  holes.insert({0, std::numeric_limits<Bytes>::max()});
  std::vector<Offset> offsets(requests.size(), kUnplaced);
  for (const auto& [tick, is_allocation, i] : events) {
    const Bytes size = align_up(requests[i].size, alignment);
    if (is_allocation) {
      offsets[i] = take_best_fit(holes, size);
      if (offsets[i] == kUnplaced) return -1;
      need = std::max(need, offsets[i] + size);
    } else {
      holes.insert_merged({offsets[i], offsets[i] + size});
    }
  }
  return need;
}

RegionTrial::RegionTrial(std::span<const profile::ProfiledGroup> groups, std::size_t iteration,
                         Bytes alignment, Tick period)
    : groups_(groups) {
  std::size_t number = 0;
  for (std::size_t g = 0; g < groups.size(); ++g) {
    Visit visit{.passing = groups[g].phase_end == groups[g].phase && groups[g].upper <= period};
    for (const profile::DynamicSighting& r : groups[g].sightings[iteration]) {
      const Bytes size = align_up(r.size, alignment);
      events_.push_back({r.lower, true, g, number, size});
      events_.push_back({r.upper, false, g, number, size});
      ++number;
      visit.last_birth = std::max(visit.last_birth, r.lower);
      visit.closes = std::max(visit.closes, r.upper);
    }
    visits_.push_back(visit);
  }
  std::ranges::sort(events_);
}

Bytes RegionTrial::overflow(std::span<const Bytes> sizes, std::span<const Bytes> idle,
                            Bytes limit) const {
  return RegionRun(*this, sizes, idle).run(limit);
}

}  // namespace stalloc::plan
