// What is idle in the pool, whose addresses it is, and the guests that are put there.
#include <algorithm>
#include <iterator>

#include "base/align.h"
#include "runtime/static_pool.h"

namespace stalloc::runtime {
namespace {

// How many slots an iteration may pass when it looks for all that is idle: some 20 ms.
constexpr std::size_t kMaxSearched = std::size_t{1} << 24;

}  // namespace

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
  foreign_[offset] = {.size = rounded,
                      .requested = size,
                      .kind = Kind::kIdle,
                      .stray = true,
                      .origin = origin,
                      .stream = static_cast<ShortStreamId>(stream)};
  ++live_;
  return offset;
}

bool StaticPool::place_at(Offset offset, Bytes size, StreamId stream) {
  const Range block{offset, offset + round_up(size)};
  HoleSet* idle = idle_of(stream);
  if (!idle || !idle->holds(block)) return false;
  idle->subtract(block);
  add_stray(block);
  foreign_[offset] = {.size = block.size(),
                      .requested = size,
                      .kind = Kind::kIdle,
                      .stray = true,
                      .stream = static_cast<ShortStreamId>(stream)};
  ++live_;
  return true;
}

void StaticPool::return_idle(Range r, bool stray) {
  if (stray && !open_.empty()) {
    idle_known_ = false;  // it may lie in an open region
  } else if (idle_known_) {
    visit_homes(r, [this](std::size_t owner, Range part) { idle_[owner].insert_merged(part); });
  }
}

std::vector<StaticPool::Guest> StaticPool::guests() const {
  std::vector<Guest> result;
  for (const auto& [offset, block] : foreign_) {
    if (block.origin != kNone) result.push_back({offset, block.requested, block.origin});
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
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    const std::size_t mine = index(plan.groups[g].stream);
    for (std::size_t h = 0; h < homes_.size(); ++h) {
      const Offset end = h + 1 < homes_.size() ? homes_[h + 1].begin : size_;
      if (homes_[h].owner != mine) groups_[g].reusable.remove({homes_[h].begin, end});
    }
  }
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
  for (const Offset wall : walls_) taken.push_back({wall, wall + alignment_});
  for (const SlotPlaces& places : slot_classes_) taken.push_back(places.whole);
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
