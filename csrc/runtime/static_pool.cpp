#include "runtime/static_pool.h"

#include <algorithm>
#include <bit>
#include <iterator>
#include <string>
#include <tuple>

#include "base/align.h"
#include "base/error.h"

namespace stalloc {
namespace {

// How many slots an iteration may pass when it looks for all that is idle: some 20 ms.
constexpr std::size_t kMaxSearched = std::size_t{1} << 24;

}  // namespace

StaticPool::StaticPool(const Plan& plan)
    : size_(plan.pool),
      alignment_(plan.alignment),
      planned_(plan.decisions.size()),
      decisions_(plan.decisions.size() + plan.groups.size()),
      groups_(plan.groups.size()) {
  const std::size_t n = decisions_.size();
  slot_bits_ = std::bit_width(std::max<std::size_t>(2 * n, 2) - 1);
  slots_.resize(std::size_t{1} << slot_bits_);

  // Frees come before allocations of the same tick: lifetimes are half-open. A wrap-around
  // decision's free is the one of the turn before, at the start of this one.
  std::vector<std::tuple<Tick, bool, std::int32_t>> ordered;  // (tick, is allocation, decision)
  ordered.reserve(2 * n);
  const auto add = [&](std::size_t i, Bytes size, Offset offset, Tick lower, Tick upper) {
    const auto index = static_cast<std::int32_t>(i);
    ordered.emplace_back(lower, true, index);
    ordered.emplace_back(upper > plan.period ? upper - plan.period : upper, false, index);
    decisions_[i].offset = offset;
    decisions_[i].size = align_up(size, alignment_);
    decisions_[i].requested = size;
  };
  for (std::size_t i = 0; i < planned_; ++i) {
    const Decision& d = plan.decisions[i];
    add(i, d.size, d.offset, d.lower, d.upper);
    decisions_[i].slot = claim_slot(d.offset);
  }
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    const DynamicGroup& group = plan.groups[g];
    add(planned_ + g, group.size, group.offset, group.lower, group.upper);
    groups_[g].stream = group.stream;
    groups_[g].passing = group.phase_end == group.phase && group.upper <= plan.period;
    for (const AddressRange& r : group.reusable) groups_[g].reusable.insert({r.begin, r.end});
    for (const DynamicContext& context : group.contexts) {
      if (context.size > 0) groups_[g].recurring.push_back(context.size);
    }
    std::ranges::sort(groups_[g].recurring);
  }
  std::sort(ordered.begin(), ordered.end());
  events_.reserve(ordered.size());
  for (const auto& [tick, is_allocation, index] : ordered) {
    Placed& p = decisions_[static_cast<std::size_t>(index)];
    (is_allocation ? p.allocated_at : p.freed_at) = static_cast<std::int32_t>(events_.size());
    events_.push_back({index, !is_allocation});
  }
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    const auto [after, phase] = std::pair{plan.groups[g].after, plan.groups[g].phase};
    const auto next = after != kNone
                          ? plan.decisions.begin() + after + 1
                          : std::ranges::lower_bound(plan.decisions, phase, {}, &Decision::phase);
    const bool follows = next != plan.decisions.end() && next->phase == phase;
    const Tick tick = follows ? next->lower : plan.phases[static_cast<std::size_t>(phase)].end;
    const auto passed = std::ranges::lower_bound(ordered, std::tuple{tick, true, std::int32_t{0}});
    groups_[g].passed_at = static_cast<std::int32_t>(passed - ordered.begin());
  }
  divide(plan);
}

bool StaticPool::is_current(const Placed& p) const {
  const bool allocated = p.allocated_at < clock_;
  const bool freed = p.freed_at < clock_;
  return p.allocated_at < p.freed_at ? allocated && !freed : allocated || !freed;
}

Offset StaticPool::place(std::int32_t d) {
  Placed& p = decisions_[static_cast<std::size_t>(d)];
  if (p.allocated_at >= clock_) {
    advance(p.allocated_at + 1);
  } else if (!is_current(p)) {
    return kUnplaced;
  }
  // Not idle when last iteration's block of this decision is still there.
  if (p.state != State::kIdle) return kUnplaced;
  if (!strays_.empty() && strays_.overlaps(range(p))) return kUnplaced;
  p.state = State::kRegular;
  slots_[static_cast<std::size_t>(p.slot)].live = d;
  take_idle(range(p));
  ++live_;
  return p.offset;
}

void StaticPool::advance(std::int32_t position) {
  for (; clock_ < position; ++clock_) {
    const Event e = events_[static_cast<std::size_t>(clock_)];
    Placed& p = decisions_[static_cast<std::size_t>(e.decision)];
    if (static_cast<std::size_t>(e.decision) >= planned_) {
      if (e.is_free) close_region(e.decision - static_cast<std::int32_t>(planned_));
    } else if (e.is_free && p.state == State::kRegular) {
      p.state = State::kStray;
      add_stray(range(p));
    } else if (!e.is_free && p.state == State::kStray) {
      p.state = State::kRegular;
      remove_stray(range(p));
    }
  }
}

void StaticPool::end_iteration() {
  advance(static_cast<std::int32_t>(events_.size()));
  clock_ = 0;
  idle_known_ = false;  // not to be followed for nothing
  searched_ = 0;
}

void StaticPool::add_stray(Range r) {
  strays_.insert(r);
  for (Reuse& reuse : reuse_) {
    if (reuse.group != kNone) reuse.space.remove(r);
  }
}

void StaticPool::remove_stray(Range r) {
  strays_.erase(r.begin);
  for (Reuse& reuse : reuse_) {
    if (reuse.group == kNone) continue;
    groups_[static_cast<std::size_t>(reuse.group)].reusable.intersect(
        r, [&](Range idle) { reuse.space.insert_merged(idle); });
  }
}

// What is idle of the stream's addresses; null when it has none, or it was looked for too often.
HoleSet* StaticPool::idle_of(StreamId stream) {
  const auto owner = std::ranges::find(streams_, stream);
  if (owner == streams_.end()) return nullptr;
  if (!idle_known_) {
    if (searched_ > kMaxSearched) return nullptr;
    searched_ += slots_.size();
    idle_ = find_idle();
    idle_known_ = true;
  }
  return &idle_[static_cast<std::size_t>(owner - streams_.begin())];
}

// Where nothing is live; the caller makes it a stray.
Offset StaticPool::place_anywhere(Bytes size, StreamId stream) {
  HoleSet* idle = idle_of(stream);
  const Offset offset = idle ? idle->best_fit(size) : kUnplaced;
  if (offset == kUnplaced) return kUnplaced;
  idle->subtract({offset, offset + size});
  add_stray({offset, offset + size});
  return offset;
}

Offset StaticPool::place_idle(Bytes size, StreamId stream, std::int32_t origin) {
  const Bytes rounded = round_up(size);
  const Offset offset = place_anywhere(rounded, stream);
  if (offset == kUnplaced) return kUnplaced;
  foreign_[offset] = {
      .size = rounded, .requested = size, .kind = Kind::kIdle, .stray = true, .origin = origin};
  ++live_;
  return offset;
}

bool StaticPool::place_at(Offset offset, Bytes size, StreamId stream) {
  const Range block{offset, offset + round_up(size)};
  HoleSet* idle = idle_of(stream);
  if (!idle || !idle->holds(block)) return false;
  idle->subtract(block);
  add_stray(block);
  foreign_[offset] = {.size = block.size(), .requested = size, .kind = Kind::kIdle, .stray = true};
  ++live_;
  return true;
}

Offset StaticPool::place_dynamic(std::int32_t g, Bytes size) {
  const Bytes rounded = round_up(size);
  const Group& group = groups_[static_cast<std::size_t>(g)];
  const auto put = [&](Offset offset, Kind kind, std::int32_t owner) {
    foreign_[offset] = {.size = rounded,
                        .requested = size,
                        .kind = kind,
                        .stray = kind == Kind::kReused,
                        .group = owner};
    ++live_;
    return offset;
  };
  if (enter_window(g)) {
    std::int32_t host = find_host(g, size, remaining(g) + 1, /*any_size=*/false);
    if (host == kNone) host = g;
    Offset offset = place_in_region(host, rounded);
    if (offset == kUnplaced) {
      // What passes may do so anywhere; the rest needs room for about as long.
      const std::int32_t least = group.passing ? 0 : remaining(g) / 8 * 7;
      host = find_host(g, size, least, group.passing);
      if (host != kNone) offset = place_in_region(host, rounded);
    }
    if (offset != kUnplaced) return put(offset, Kind::kRegion, host);
    offset = place_reused(g, rounded);
    if (offset != kUnplaced) return put(offset, Kind::kReused, g);
  }
  return kUnplaced;
}

// Moves the clock to where the group's region is one of P(clock); false when that is past.
bool StaticPool::enter_window(std::int32_t g) {
  const Placed& p = region(g);
  if (p.allocated_at >= clock_) advance(p.allocated_at + 1);
  return is_current(p);
}

// How many events there are to the end of the group's window, in which the clock is.
std::int32_t StaticPool::remaining(std::int32_t g) const {
  const std::int32_t left = region(g).freed_at - clock_;
  return left >= 0 ? left : left + static_cast<std::int32_t>(events_.size());
}

// Of the groups that have asked for all they will, one with room in its region that stays open for
// `least` more events. Unless `any_size`, one that mostly asks for this size: see Note [Dynamic
// requests in the pool].
std::int32_t StaticPool::find_host(std::int32_t g, Bytes size, std::int32_t least,
                                   bool any_size) const {
  const StreamId stream = groups_[static_cast<std::size_t>(g)].stream;
  for (const std::int32_t other : open_) {
    const Group& o = groups_[static_cast<std::size_t>(other)];
    if (other == g || o.stream != stream || o.passed_at > clock_) continue;
    if (o.idle.largest() < round_up(size) || remaining(other) < least) continue;
    if (any_size || std::ranges::binary_search(o.recurring, size)) return other;
  }
  return kNone;
}

Offset StaticPool::place_in_region(std::int32_t g, Bytes size) {
  Group& group = groups_[static_cast<std::size_t>(g)];
  if (!group.open) open_region(g);
  const Offset offset = group.idle.best_fit(size);
  if (offset == kUnplaced) return kUnplaced;
  group.idle.subtract({offset, offset + size});
  ++group.blocks;
  return offset;
}

void StaticPool::open_region(std::int32_t g) {
  Placed& p = region(g);
  if (p.size == 0) return;
  Group& group = groups_[static_cast<std::size_t>(g)];
  p.state = State::kRegular;
  group.open = true;
  open_.push_back(g);
  group.idle.clear();
  group.idle.insert(range(p));
  strays_.intersect(range(p), [&](Range stray) { group.idle.remove(stray); });
  take_idle(range(p));
}

void StaticPool::close_region(std::int32_t g) {
  Group& group = groups_[static_cast<std::size_t>(g)];
  if (!group.open) return;
  region(g).state = State::kIdle;
  group.open = false;
  group.idle.clear();
  std::erase(open_, g);
  idle_known_ = false;
  if (group.blocks == 0) return;
  for (auto& [offset, block] : foreign_) {
    if (block.group != g || block.stray) continue;
    block.stray = true;
    add_stray({offset, offset + block.size});
  }
  group.blocks = 0;
}

HoleSet& StaticPool::reuse_of(std::int32_t g) {
  const auto known = std::ranges::find(reuse_, g, &Reuse::group);
  if (known != reuse_.end()) return known->space;
  Reuse& reuse = reuse_[oldest_reuse_];
  oldest_reuse_ = (oldest_reuse_ + 1) % reuse_.size();
  reuse.group = g;
  const RangeSet& reusable = groups_[static_cast<std::size_t>(g)].reusable;
  reuse.space.assign(reusable);
  reusable.intersect({0, size_}, [&](Range idle) {
    strays_.intersect(idle, [&](Range stray) { reuse.space.remove(stray); });
  });
  return reuse.space;
}

Offset StaticPool::place_reused(std::int32_t g, Bytes size) {
  if (groups_[static_cast<std::size_t>(g)].reusable.empty()) return kUnplaced;
  const Offset offset = reuse_of(g).best_fit(size);
  if (offset == kUnplaced) return kUnplaced;
  add_stray({offset, offset + size});
  take_idle({offset, offset + size});
  return offset;
}

StaticPool::Block StaticPool::release(Offset offset) {
  const std::int32_t slot = find_slot(offset);
  const std::int32_t d = slot == kNone ? kNone : slots_[static_cast<std::size_t>(slot)].live;
  if (d != kNone) {
    Placed& p = decisions_[static_cast<std::size_t>(d)];
    const bool stray = p.state == State::kStray;
    if (stray) remove_stray(range(p));
    p.state = State::kIdle;
    slots_[static_cast<std::size_t>(slot)].live = kNone;
    return_idle(range(p), stray);
    --live_;
    return {p.requested, Kind::kPlanned};
  }
  const auto it = foreign_.find(offset);
  if (it == foreign_.end()) return {};
  const Foreign block = it->second;
  foreign_.erase(it);
  --live_;
  const Range freed{offset, offset + block.size};
  if (block.stray) {
    remove_stray(freed);
    return_idle(freed, /*stray=*/true);
  } else {
    Group& group = groups_[static_cast<std::size_t>(block.group)];
    group.idle.insert_merged(freed);
    --group.blocks;
  }
  return {block.requested, block.kind};
}

void StaticPool::return_idle(Range r, bool stray) {
  if (stray && !open_.empty()) {
    idle_known_ = false;  // it may lie in an open region
  } else if (idle_known_) {
    idle_[owner_of(r.begin)].insert_merged(r);
  }
}

StaticPool::Block StaticPool::at(Offset offset) const {
  const std::int32_t slot = find_slot(offset);
  const std::int32_t d = slot == kNone ? kNone : slots_[static_cast<std::size_t>(slot)].live;
  if (d != kNone) {
    return {decisions_[static_cast<std::size_t>(d)].requested, Kind::kPlanned};
  }
  const auto it = foreign_.find(offset);
  return it == foreign_.end() ? Block{} : Block{it->second.requested, it->second.kind};
}

std::vector<Offset> StaticPool::live() const {
  std::vector<Offset> result;
  for (const Slot& s : slots_) {
    if (s.live != kNone) result.push_back(s.offset);
  }
  for (const auto& [offset, block] : foreign_) result.push_back(offset);
  std::ranges::sort(result);
  return result;
}

std::vector<StaticPool::Guest> StaticPool::guests() const {
  std::vector<Guest> result;
  for (const auto& [offset, block] : foreign_) {
    if (block.origin != kNone) result.push_back({offset, block.requested, block.origin});
  }
  return result;
}

// See Note [Streams].
void StaticPool::divide(const Plan& plan) {
  for (const Decision& d : plan.decisions) streams_.push_back(d.stream);
  for (const DynamicGroup& g : plan.groups) streams_.push_back(g.stream);
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
  const auto claim = [&](Range r, StreamId stream) {
    owned.emplace_back(r, index(stream));
    nobodys.remove(r);
  };
  for (const Decision& d : plan.decisions) {
    claim({d.offset, d.offset + align_up(d.size, alignment_)}, d.stream);
  }
  for (const DynamicGroup& g : plan.groups) {
    if (g.size > 0) claim({g.offset, g.offset + align_up(g.size, alignment_)}, g.stream);
  }
  for (const DynamicGroup& g : plan.groups) {
    for (const AddressRange& reusable : g.reusable) {
      const Range wanted{reusable.begin, reusable.end};
      for (const Range& gap : nobodys.ranges()) {
        const Range both{std::max(gap.begin, wanted.begin), std::min(gap.end, wanted.end)};
        if (both.begin < both.end) claim(both, g.stream);
      }
    }
  }
  for (const Range& gap : nobodys.ranges()) owned.emplace_back(gap, std::size_t{0});

  std::ranges::sort(owned, {}, [](const auto& o) { return o.first.begin; });
  homes_.clear();
  for (const auto& [r, owner] : owned) {
    if (homes_.empty() || homes_.back().owner != owner) homes_.push_back({r.begin, owner});
  }
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    const std::size_t mine = index(plan.groups[g].stream);
    for (std::size_t h = 0; h < homes_.size(); ++h) {
      const Offset end = h + 1 < homes_.size() ? homes_[h + 1].begin : size_;
      if (homes_[h].owner != mine) groups_[g].reusable.remove({homes_[h].begin, end});
    }
  }
}

std::size_t StaticPool::owner_of(Offset offset) const {
  if (homes_.size() == 1) return homes_.front().owner;
  const auto next = std::ranges::upper_bound(homes_, offset, {}, &Home::begin);
  return std::prev(next)->owner;
}

std::vector<HoleSet> StaticPool::find_idle() const {
  std::vector<Range> taken = strays_.ranges();
  for (const Slot& s : slots_) {
    if (s.live == kNone) continue;
    const Placed& p = decisions_[static_cast<std::size_t>(s.live)];
    if (p.state == State::kRegular) taken.push_back(range(p));
  }
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    if (groups_[g].open) taken.push_back(range(decisions_[planned_ + g]));
  }
  std::sort(taken.begin(), taken.end(),
            [](const Range& a, const Range& b) { return a.begin < b.begin; });
  taken.push_back({size_, size_});
  std::vector<HoleSet> idle(streams_.size());
  Offset at = 0;
  auto home = homes_.begin();  // the one that holds `at`
  for (const Range& t : taken) {
    while (at < t.begin) {  // a gap, cut where the owner changes
      while (std::next(home) != homes_.end() && std::next(home)->begin <= at) ++home;
      const Offset end =
          std::next(home) == homes_.end() ? t.begin : std::min(t.begin, std::next(home)->begin);
      idle[home->owner].insert({at, end});
      at = end;
    }
    at = std::max(at, t.end);  // strays may lie in an open region
  }
  return idle;
}

Bytes StaticPool::largest_hole() const {
  Bytes result = 0;
  for (const HoleSet& idle : find_idle()) result = std::max(result, idle.largest());
  return result;
}

std::size_t StaticPool::hash(Offset offset) const {
  // Fibonacci hashing: offsets are multiples of the alignment, so the low bits say nothing.
  const auto key = static_cast<std::uint64_t>(offset / alignment_);
  return static_cast<std::size_t>((key * 0x9E3779B97F4A7C15u) >> (64 - slot_bits_));
}

// Both searches end: at most half of the slots are claimed.
std::int32_t StaticPool::find_slot(Offset offset) const {
  for (std::size_t i = hash(offset);; i = (i + 1) & (slots_.size() - 1)) {
    if (slots_[i].offset == offset) return static_cast<std::int32_t>(i);
    if (slots_[i].offset == kUnplaced) return kNone;
  }
}

std::int32_t StaticPool::claim_slot(Offset offset) {
  for (std::size_t i = hash(offset);; i = (i + 1) & (slots_.size() - 1)) {
    if (slots_[i].offset == kUnplaced) slots_[i].offset = offset;
    if (slots_[i].offset == offset) return static_cast<std::int32_t>(i);
  }
}

void StaticPool::check() const {
  const auto fail = [](const std::string& what) { throw Error("static pool: " + what); };
  std::vector<Range> taken = strays_.ranges();
  for (std::size_t i = 0; i < planned_; ++i) {
    const Placed& p = decisions_[i];
    const bool live = p.state != State::kIdle;
    if (live != (slots_[static_cast<std::size_t>(p.slot)].live == static_cast<std::int32_t>(i))) {
      fail("decision " + std::to_string(i) + " and its slot disagree about being live");
    }
    if (p.state == State::kRegular) {
      taken.push_back(range(p));
      if (!is_current(p)) fail("regular decision " + std::to_string(i) + " is past its time");
    }
    if (p.state == State::kStray) {
      if (!(strays_.find(p.offset) == range(p))) {
        fail("stray decision " + std::to_string(i) + " is not among the strays");
      }
      if (is_current(p)) fail("stray decision " + std::to_string(i) + " is in its time");
    }
  }
  std::vector<std::int32_t> blocks(groups_.size());
  for (const auto& [offset, block] : foreign_) {
    if (block.stray) {
      if (strays_.find(offset).size() != block.size)
        fail("a foreign block is not among the strays");
      continue;
    }
    const auto g = static_cast<std::size_t>(block.group);
    const Range whole = range(decisions_[planned_ + g]);
    const Range own{offset, offset + block.size};
    if (!groups_[g].open || own.begin < whole.begin || own.end > whole.end) {
      fail("a dynamic block lies outside its region");
    }
    taken.push_back(own);
    ++blocks[g];
  }
  if (taken.size() != live_) fail("the count of live blocks is off");
  std::ranges::sort(taken, {}, &Range::begin);
  Offset at = 0;
  for (const Range& t : taken) {
    if (t.begin < at) fail("two live blocks share the address " + std::to_string(t.begin));
    at = t.end;
  }
  if (at > size_) fail("a live block ends at " + std::to_string(at) + ", past the pool");
  check_regions(taken, blocks);
  for (const Reuse& reuse : reuse_) {
    if (reuse.group == kNone) continue;
    RangeSet expected = groups_[static_cast<std::size_t>(reuse.group)].reusable;
    for (const Range& stray : strays_.ranges()) expected.remove(stray);
    if (!(expected.ranges() == reuse.space.ranges())) {
      fail("a group's reusable space is not what the strays leave of it");
    }
  }
  if (!idle_known_) return;
  const std::vector<HoleSet> idle = find_idle();
  for (std::size_t i = 0; i < idle.size(); ++i) {
    if (!(idle[i].ranges() == idle_[i].ranges())) {
      fail("the idle space is not what is left of the pool");
    }
  }
}

// `taken`: all live blocks, ascending. `blocks`: how many each group has in its region.
void StaticPool::check_regions(const std::vector<Range>& taken,
                               const std::vector<std::int32_t>& blocks) const {
  const auto fail = [](const std::string& what) { throw Error("static pool: " + what); };
  std::size_t open = 0;
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    const Placed& p = decisions_[planned_ + g];
    if (groups_[g].open != (p.state != State::kIdle)) fail("a region and its group disagree");
    if (groups_[g].blocks != blocks[g]) fail("the count of a region's blocks is off");
    if (!groups_[g].open) continue;
    ++open;
    if (!is_current(p)) fail("an open region is past its time");
    for (const Range& idle : groups_[g].idle.ranges()) {
      if (idle.begin < p.offset || idle.end > p.offset + p.size) {
        fail("a region takes for idle what is not its own");
      }
      const auto next = std::ranges::lower_bound(taken, idle.end, {}, &Range::begin);
      if (next != taken.begin() && std::prev(next)->end > idle.begin) {
        fail("a region takes the place of a live block for idle");
      }
    }
  }
  if (open != open_.size()) fail("the count of open regions is off");
}

}  // namespace stalloc
