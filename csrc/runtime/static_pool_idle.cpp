// The idle space of the pool: its owners among the streams, and the blocks outside the plan in it.
#include <algorithm>
#include <iterator>
#include <utility>

#include "base/align.h"
#include "runtime/static_pool.h"

namespace stalloc::runtime {
namespace {

// The number of entries that an iteration may visit to find the idle ranges: some 80 ms.
constexpr std::size_t kMaxSearched = std::size_t{1} << 26;

// The number of events that an iteration may visit in find_needed_last(): some 30 ms.
constexpr std::size_t kMaxPassed = std::size_t{1} << 20;

// A large block that stays leaves one part in so many of the pool to small ones.
constexpr Bytes kGapParts = 256;

// A decision of at least this part of the pool finds no other place when it is displaced: memory
// that moves, or other idle addresses.
constexpr Bytes kLargeParts = 16;
constexpr Bytes kLargeIdleParts = 64;

// A tiny block, of at most this part of the pool, displaces no more than so many decisions:
// it costs little beside the pool.
constexpr Bytes kTinyParts = 128;
constexpr Bytes kMostTiny = Bytes{1} << 20;
constexpr std::size_t kMostDisplaced = 4;

}  // namespace

// Finds the idle ranges if they are not known. Returns the stream's index, or the number of streams
// if the stream owns no addresses here or the ranges were searched too often.
std::size_t StaticPool::owner_of(StreamId stream) {
  const auto owner = std::ranges::find(streams_, stream);
  if (owner == streams_.end()) return streams_.size();
  if (!idle_known_) {
    if (searched_ > kMaxSearched) return streams_.size();
    searched_ += entries_.size();
    find_levels();
    idle_known_ = true;
  }
  return static_cast<std::size_t>(owner - streams_.begin());
}

// Finds the addresses that each phase needs, and those that it or a later phase needs.
void StaticPool::find_needs() {
  const auto add = [](RangeSet& set, Range r) {
    set.remove(r);
    set.insert_merged(r);
  };
  needs_.resize(phase_begins_.size());
  for (const DecisionIndex d : decisions_.indices()) {
    if (decisions_[d].size == 0) continue;
    add(needs_[phase_of_[d]].now, range(decisions_[d]));
  }
  for (PhaseIndex p = needs_.end_index(); p-- > PhaseIndex(0);) {
    if ((p + 1).points_into(needs_)) needs_[p].from_now_on = needs_[p + 1].from_now_on;
    for (const Range& r : needs_[p].now.ranges()) add(needs_[p].from_now_on, r);
  }
}

// See Note [Least in the way].
void StaticPool::find_levels() {
  if (needs_.size() < phase_begins_.size()) find_needs();
  for (Level& level : levels_) level.needed.clear();
  // The clock has just passed the allocation that it was moved to last.
  const auto next = std::ranges::lower_bound(phase_begins_, std::max(clock_, Position(1)));
  const PhaseIndex current(std::max<std::ptrdiff_t>(0, next - phase_begins_.begin() - 1));
  if (current.points_into(needs_)) {
    levels_[0].needed = needs_[current].from_now_on;
    levels_[1].needed = levels_[2].needed = needs_[current].now;
  }
  if ((current + 1).points_into(needs_)) {
    for (const Range& r : needs_[current + 1].now.ranges()) {
      levels_[1].needed.remove(r);
      levels_[1].needed.insert_merged(r);
    }
  }
  const std::vector<HoleSet> idle = find_idle();
  for (Level& level : levels_) {
    level.idle = idle;
    for (const Range& r : level.needed.ranges()) {
      for (HoleSet& holes : level.idle) holes.remove(r);
    }
  }
}

Bytes StaticPool::gap() const { return round_up(memory() / kGapParts); }

// Finds idle addresses and takes them as a stray.
Offset StaticPool::place_anywhere(Bytes size, StreamId stream, const Departure& departure) {
  const std::size_t owner = owner_of(stream);
  if (owner == streams_.size()) return kUnplaced;
  const DecisionIndex lifetime = departure.lifetime;
  const bool is_known = lifetime != kNone && is_current(decisions_[lifetime]);
  const bool is_dynamic = lifetime != kNone && lifetime >= planned_;
  const Bytes parts = departure.yields ? kLargeIdleParts : kLargeParts;
  const bool is_tiny = size <= std::min(kMostTiny, memory() / kTinyParts);
  Offset offset = kUnplaced;
  if (departure.stays_outside) {
    offset = find_end(size, owner, *departure.stays_outside, departure.last);
    if (offset == kUnplaced && departure.only_outside) return kUnplaced;
  } else if (departure.is_brief) {
    offset = levels_.back().idle[owner].first_fit(size);
  }
  if (offset == kUnplaced && departure.harmless) {
    if (!is_known || passed_ >= kMaxPassed) return kUnplaced;
    offset = find_needed_last(lifetime, size, owner, {.larger = 0, .more = 0});
  } else if (offset == kUnplaced) {
    const Bytes larger = departure.displaces ? size_ : std::max(size, memory() / parts);
    const bool is_limited = is_tiny && !departure.displaces;
    offset = is_known && passed_ < kMaxPassed
                 ? find_needed_last(
                       lifetime, size, owner,
                       {.larger = larger, .more = is_limited ? kMostDisplaced : decisions_.size()})
                 : find_least_in_the_way(size, owner, is_dynamic && is_known ? 2 : levels_.size());
  }
  if (offset == kUnplaced) return kUnplaced;
  take_idle({offset, offset + size});
  add_stray({offset, offset + size});
  return offset;
}

// The first or last addresses of the smallest idle range for `size` and `room` bytes. O(n) for the
// last ones.
Offset StaticPool::find_fit(Bytes size, Bytes room, std::size_t owner, bool last) const {
  const HoleSet& idle = levels_.back().idle[owner];
  Offset found = idle.best_fit(size + room);
  if (found == kUnplaced || !last) return found;
  idle.intersect({found, size_}, [&, begin = found](Range hole) {
    if (hole.begin == begin) found = hole.end - size;
  });
  return found;
}

// The first or last idle addresses outside of these. A large block leaves a gap for small ones,
// such as the next batch: behind it, they would divide the idle space once it is freed.
Offset StaticPool::find_end(Bytes size, std::size_t owner, const RangeSet& outside,
                            bool last) const {
  const Bytes gap = size < this->gap() ? 0 : this->gap();
  Offset found = kUnplaced;
  levels_.back().idle[owner].intersect({0, size_}, [&](Range hole) {
    if (hole.size() < size + gap) return;
    visit_outside(outside, hole, [&](Range r) {
      if (r.size() < size + gap || (!last && found != kUnplaced)) return;
      found = last ? r.end - gap - size : r.begin + gap;
    });
  });
  return found;
}

// Searches so many levels.
Offset StaticPool::find_least_in_the_way(Bytes size, std::size_t owner, std::size_t levels) const {
  for (std::size_t i = 0; i < levels; ++i) {
    const Offset offset = levels_[i].idle[owner].best_fit(size);
    if (offset != kUnplaced) return offset;
  }
  return kUnplaced;
}

// True if some of these idle addresses are left by a live decision. O(n).
bool StaticPool::is_rest(Range r) const {
  return std::ranges::any_of(entries_, [&](const Entry& e) {
    return e.live != kNone && decisions_[e.live].state == State::kRegular &&
           range(decisions_[e.live]).overlaps(r);
  });
}

// Finds the addresses that the plan leaves idle longest, up to the end of `lifetime`. kUnplaced if
// decisions need them before that must not be displaced: that would cost more than a block beside
// the pool.
Offset StaticPool::find_needed_last(DecisionIndex lifetime, Bytes size, std::size_t owner,
                                    Undisplaced kept) {
  HoleSet idle = levels_.back().idle[owner];
  Offset found = idle.best_fit(size);
  bool is_last = false;  // no other range is left
  // Temporaries of the phase come and go there, and a dynamic block would displace each of them.
  const bool is_dynamic = lifetime >= planned_;
  std::size_t displaced = 0;
  Position next = clock_;
  for (std::int32_t left = remaining(decisions_[lifetime]); left > 0 && found != kUnplaced;
       --left, ++next) {
    if (next == events_.end_index()) next = Position(0);
    ++passed_;
    const Event e = events_[next];
    const Range needed = range(decisions_[e.decision]);
    if (e.is_free || needed.size() == 0) continue;
    if (!is_last) idle.remove(needed);
    if (needed.end <= found || found + size <= needed.begin) continue;
    const Offset other = is_last ? kUnplaced : idle.best_fit(size);
    is_last = other == kUnplaced;
    if (!is_last) found = other;
    if (!is_last) continue;
    if (needed.size() > kept.larger || ++displaced > kept.more) return kUnplaced;
    if (is_dynamic && is_rest({found, found + size})) return kUnplaced;
  }
  return is_last || found == kUnplaced ? found : idle.best_fit(size);
}

Offset StaticPool::place_idle(Bytes size, StreamId stream, Departure departure) {
  const Bytes rounded = round_up(size);
  GroupIndex host = kNone;
  const bool is_dynamic = departure.lifetime != kNone && departure.lifetime >= planned_;
  const GroupIndex group =
      is_dynamic ? groups_[GroupIndex(departure.lifetime - planned_)].host : GroupIndex(kNone);
  Offset offset = place_anywhere(rounded, stream, departure);
  if (offset == kUnplaced && departure.harmless) return kUnplaced;
  if (offset == kUnplaced) {
    // In a region that closes before its own, a dynamic request that stays would soon be a stray,
    // which may displace a large decision.
    const bool stays = is_dynamic && !groups_[group].passing;
    const std::int32_t least = stays ? remaining(decisions_[departure.lifetime]) : 0;
    host = find_open(rounded, stream, least);
    if (host == kNone) return kUnplaced;
    offset = place_in_region(host, rounded);
  }
  foreign_[offset] = {.size = rounded,
                      .requested = size,
                      .kind = departure.kind,
                      .stray = host == kNone,
                      .group = host,
                      .origin = departure.origin,
                      .iteration = iteration_,
                      .stream = static_cast<ShortStreamId>(stream)};
  ++live_;
  return offset;
}

// The open region of the stream that stays open for `least` more events and whose largest idle
// range is the smallest that holds `size`.
StaticPool::GroupIndex StaticPool::find_open(Bytes size, StreamId stream,
                                             std::int32_t least) const {
  GroupIndex best = kNone;
  Bytes smallest = 0;
  for (const GroupIndex g : open_) {
    const Group& group = groups_[g];
    const Bytes largest = group.idle.largest();
    if (group.stream != stream || largest < size || remaining(region(g)) < least) continue;
    if (best != kNone && largest >= smallest) continue;
    best = g;
    smallest = largest;
  }
  return best;
}

bool StaticPool::place_at(Offset offset, Bytes size, StreamId stream) {
  const Range block{offset, offset + round_up(size)};
  const std::size_t owner = owner_of(stream);
  if (owner == streams_.size() || !levels_.back().idle[owner].holds(block)) return false;
  take_idle(block);
  add_stray(block);
  foreign_[offset] = {.size = block.size(),
                      .requested = size,
                      .kind = Kind::kStartup,
                      .stray = true,
                      .stream = static_cast<ShortStreamId>(stream)};
  ++live_;
  return true;
}

bool StaticPool::open_zone(Bytes size, StreamId stream, Bytes room, bool last) {
  const std::size_t owner = owner_of(stream);
  if (owner == streams_.size()) return false;
  const Bytes rounded = round_up(size);
  const Offset offset = find_fit(rounded, room, owner, last);
  if (offset == kUnplaced) return false;
  zone_ = {offset, offset + rounded};
  take_idle(zone_);
  open_ranges_.insert(zone_);
  return true;
}

void StaticPool::close_zone() {
  if (!has_zone()) return;
  open_ranges_.erase(zone_.begin);
  return_region(std::exchange(zone_, Range{}));
}

Offset StaticPool::place_in_zone(Offset offset, Bytes size, StreamId stream, Departure departure) {
  const Range block{zone_.begin + offset, zone_.begin + offset + round_up(size)};
  if (block.end > zone_.end || strays_.overlaps(block)) return kUnplaced;
  add_stray(block);
  foreign_[block.begin] = {.size = block.size(),
                           .requested = size,
                           .kind = departure.kind,
                           .stray = true,
                           .origin = departure.origin,
                           .iteration = iteration_,
                           .stream = static_cast<ShortStreamId>(stream)};
  ++live_;
  return block.begin;
}

// Adds `r`, which has just become free, to the idle ranges. Addresses in an open region belong to
// the region.
void StaticPool::take_known_idle(Range r) {
  visit_homes(r, [this](std::size_t owner, Range part) {
    for (Level& level : levels_) level.idle[owner].remove(part);
  });
}

void StaticPool::return_known_idle(Range r) {
  visit_outside(open_ranges_, r, [this](Range outside) {
    for (Level& level : levels_) {
      visit_outside(level.needed, outside, [&](Range gap) {
        visit_homes(gap,
                    [&](std::size_t owner, Range part) { level.idle[owner].insert_merged(part); });
      });
    }
  });
}

// Adds the closed region `r` to the idle ranges, except for the strays in it.
void StaticPool::return_region(Range r) {
  if (!idle_known_) return;
  visit_outside(strays_, r, [this](Range gap) { return_idle(gap); });
}

std::vector<StaticPool::Departed> StaticPool::departed() const {
  std::vector<Departed> result;
  for (const auto& [offset, block] : foreign_) {
    if (block.origin == kNone) continue;
    result.push_back({offset, block.requested, block.origin, iteration_ - block.iteration});
  }
  return result;
}

// See Note [Streams].
void StaticPool::divide(const plan::Plan& plan) {
  for (const plan::Decision& d : plan.decisions) streams_.push_back(d.stream);
  for (const plan::DynamicGroup& g : plan.groups) streams_.push_back(g.stream);
  for (const plan::SlotClass& c : plan.slots) streams_.push_back(c.stream);
  std::ranges::sort(streams_);
  streams_.erase(std::unique(streams_.begin(), streams_.end()), streams_.end());
  if (streams_.empty()) streams_.push_back(0);
  homes_.push_back({0, 0});
  if (streams_.size() == 1) return;

  const auto index = [this](StreamId stream) {
    return static_cast<std::size_t>(std::ranges::lower_bound(streams_, stream) - streams_.begin());
  };
  std::vector<std::pair<Range, std::size_t>> owned;
  RangeSet nobodys;
  nobodys.insert({0, size_});
  const auto claim = [&](Range wanted, StreamId stream) {
    nobodys.intersect(wanted, [&](Range r) { owned.emplace_back(r, index(stream)); });
    nobodys.remove(wanted);
  };
  for (const plan::Decision& d : plan.decisions) {
    claim({d.offset, d.offset + align_up(d.size, alignment_)}, d.stream);
  }
  for (const plan::DynamicGroup& g : plan.groups) {
    if (g.size > 0) claim({g.offset, g.offset + align_up(g.size, alignment_)}, g.stream);
  }
  for (const plan::SlotClass& c : plan.slots) {
    claim({c.offset, c.offset + c.size * c.count}, c.stream);
  }
  for (const plan::DynamicGroup& g : plan.groups) {
    for (const plan::AddressRange& r : g.reusable) claim({r.begin, r.end}, g.stream);
  }
  for (const Range& gap : nobodys.ranges()) owned.emplace_back(gap, std::size_t{0});

  std::ranges::sort(owned, {}, [](const auto& o) { return o.first.begin; });
  homes_.clear();
  for (const auto& [r, owner] : owned) {
    if (homes_.empty() || homes_.back().owner != owner) homes_.push_back({r.begin, owner});
  }
  for (const GroupIndex g : groups_.indices()) {
    const std::size_t mine = index(plan[g].stream);
    for (std::size_t h = 0; h < homes_.size(); ++h) {
      const Offset end = h + 1 < homes_.size() ? homes_[h + 1].begin : size_;
      if (homes_[h].owner != mine) groups_[g].reusable.remove({homes_[h].begin, end});
    }
  }
}

std::vector<HoleSet> StaticPool::find_idle() const {
  std::vector<Range> taken = strays_.ranges();
  for (const Entry& e : entries_) {
    if (e.live == kNone) continue;
    const Placed& p = decisions_[e.live];
    if (p.state == State::kRegular) taken.push_back(this->taken(p));
  }
  for (const GroupIndex g : groups_.indices()) {
    if (groups_[g].open) taken.push_back(range(region(g)));
  }
  taken.push_back(zone_);
  for (const Offset wall : walls_) taken.push_back({wall, wall + alignment_});
  for (const SlotClass& slots : slot_classes_) taken.push_back(slots.whole);
  std::sort(taken.begin(), taken.end(),
            [](const Range& a, const Range& b) { return a.begin < b.begin; });
  taken.push_back({size_, size_});
  std::vector<HoleSet> idle(streams_.size());
  Offset at = 0;
  for (const Range& t : taken) {
    visit_homes({at, t.begin}, [&](std::size_t owner, Range part) { idle[owner].insert(part); });
    at = std::max(at, t.end);  // strays may lie in an open region
  }
  return idle;
}

Bytes StaticPool::largest_hole() const {
  Bytes result = 0;
  for (const HoleSet& idle : find_idle()) result = std::max(result, idle.largest());
  return result;
}

}  // namespace stalloc::runtime
