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

struct Event {
  Tick tick = 0;
  bool is_allocation = false;  // frees come before allocations of the same tick
  std::size_t group = 0;
  std::size_t request = 0;

  auto operator<=>(const Event&) const = default;
};

constexpr std::size_t kIdle = std::numeric_limits<std::size_t>::max();
constexpr std::size_t kOver = kIdle - 1;

// Takes space as the runtime does. Returns kUnplaced if no hole is large enough.
Offset take_best_fit(HoleSet& holes, Bytes size) {
  const Offset offset = holes.best_fit(size);
  if (offset != kUnplaced) holes.subtract({offset, offset + size});
  return offset;
}

class Trial {
 public:
  Trial(std::span<const profile::ProfiledGroup> groups, std::size_t iteration,
        std::span<const Bytes> sizes, std::span<const Bytes> idle, Bytes alignment, Tick period)
      : groups_(groups), idle_(idle), alignment_(alignment) {
    for (std::size_t p = 0; p < groups.size(); ++p) {
      const auto& requests = groups[p].sightings[iteration];
      Visit visit;
      visit.requests = &requests;
      visit.blocks.resize(requests.size());
      if (sizes[p] > 0) visit.holes.insert({0, sizes[p]});
      visit.passing = groups[p].phase_end == groups[p].phase && groups[p].upper <= period;
      for (std::size_t i = 0; i < requests.size(); ++i) {
        events_.push_back({requests[i].lower, true, p, i});
        events_.push_back({requests[i].upper, false, p, i});
        visit.last_birth = std::max(visit.last_birth, requests[i].lower);
        visit.closes = std::max(visit.closes, requests[i].upper);
      }
      visits_.push_back(std::move(visit));
    }
    std::ranges::sort(events_);
  }

  Bytes run() {
    for (const Event& e : events_) {
      now_ = e.tick;
      if (e.is_allocation) {
        allocate(e);
      } else {
        release(e);
      }
    }
    return most_over_;
  }

 private:
  struct Block {
    std::size_t host = kOver;  // the group whose region serves it
    Offset offset = 0;
  };
  struct Visit {
    HoleSet holes;  // of the region
    const std::vector<profile::DynamicSighting>* requests = nullptr;
    std::vector<Block> blocks;
    Tick last_birth = 0;
    Tick closes = 0;
    bool passing = false;
    bool open = false;
  };

  Bytes rounded(const Event& e) const {
    return align_up((*visits_[e.group].requests)[e.request].size, alignment_);
  }

  bool put(const Event& e, std::size_t host) {
    const Offset offset = take_best_fit(visits_[host].holes, rounded(e));
    if (offset == kUnplaced) return false;
    visits_[e.group].blocks[e.request] = {host, offset};
    return true;
  }

  void allocate(const Event& e) {
    Visit& visit = visits_[e.group];
    if (!visit.open) open_.push_back(e.group);
    visit.open = true;
    if (put(e, e.group)) return;
    std::erase_if(open_, [&](std::size_t p) { return visits_[p].closes <= now_; });
    const Tick least = visit.passing ? 0 : (visit.closes - now_) / 8 * 7;
    for (const std::size_t p : open_) {
      const Visit& host = visits_[p];
      const bool lends = p != e.group && groups_[p].stream == groups_[e.group].stream &&
                         host.last_birth < now_ && host.closes - now_ >= least;
      if (lends && put(e, p)) return;
    }
    Block& block = visit.blocks[e.request];
    block.host = visit.passing && in_idle_ + rounded(e) <= idle_[e.group] / 2 ? kIdle : kOver;
    Bytes& live = block.host == kIdle ? in_idle_ : over_;
    live += rounded(e);
    most_over_ = std::max(most_over_, over_);
  }

  void release(const Event& e) {
    const Block& block = visits_[e.group].blocks[e.request];
    if (block.host == kOver) {
      over_ -= rounded(e);
    } else if (block.host == kIdle) {
      in_idle_ -= rounded(e);
    } else {
      visits_[block.host].holes.insert_merged({block.offset, block.offset + rounded(e)});
    }
  }

  std::span<const profile::ProfiledGroup> groups_;
  std::span<const Bytes> idle_;
  Bytes alignment_;
  std::vector<Visit> visits_;
  std::vector<Event> events_;
  std::vector<std::size_t> open_;  // may still list regions that have closed
  Tick now_ = 0;
  Bytes in_idle_ = 0;
  Bytes over_ = 0;
  Bytes most_over_ = 0;
};

}  // namespace

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

Bytes region_overflow(std::span<const profile::ProfiledGroup> groups, std::size_t iteration,
                      std::span<const Bytes> sizes, std::span<const Bytes> idle, Bytes alignment,
                      Tick period) {
  return Trial(groups, iteration, sizes, idle, alignment, period).run();
}

}  // namespace stalloc::plan
