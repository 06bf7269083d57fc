// Dynamic requests in the pool: see Note [Dynamic requests in the pool].
#include <algorithm>

#include "runtime/static_pool.h"

namespace stalloc::runtime {

Offset StaticPool::place_dynamic(GroupIndex g, Bytes size) {
  const Bytes rounded = round_up(size);
  const Group& group = groups_[g];
  const auto put = [&](Offset offset, Kind kind, GroupIndex owner) {
    foreign_[offset] = {.size = rounded,
                        .requested = size,
                        .kind = kind,
                        .stray = kind == Kind::kReused,
                        .group = owner,
                        .stream = static_cast<ShortStreamId>(group.stream)};
    ++live_;
    return offset;
  };
  if (enter_window(g)) {
    GroupIndex host = find_host(g, size, remaining(region(g)) + 1, /*any_size=*/false);
    if (host == kNone) host = group.host;
    Offset offset = place_in_region(host, rounded);
    if (offset == kUnplaced) {
      // A temporary may go to any region; other requests need one that stays open about as long.
      const std::int32_t least = group.passing ? 0 : remaining(region(g)) / 8 * 7;
      host = find_host(g, size, least, group.passing);
      if (host != kNone) offset = place_in_region(host, rounded);
    }
    if (offset != kUnplaced) return put(offset, Kind::kRegion, host);
    offset = place_reused(g, rounded);
    if (offset != kUnplaced) return put(offset, Kind::kReused, g);
  }
  return kUnplaced;
}

// Moves the clock until the group's region is in P(clock); false if the region's end has passed.
bool StaticPool::enter_window(GroupIndex g) {
  const Placed& p = region(g);
  if (p.allocated_at >= clock_) advance(p.allocated_at + 1);
  return is_current(p);
}

// The number of events until the planned free of the current decision or region.
std::int32_t StaticPool::remaining(const Placed& p) const {
  const std::int32_t left = p.freed_at - clock_;
  return left >= 0 ? left : left + events_.end_index().number();
}

// Finds another group without further requests, whose region has the space and stays open for
// `least` more events. Unless `any_size`, the group requests this size in every iteration: see Note
// [Dynamic requests in the pool].
StaticPool::GroupIndex StaticPool::find_host(GroupIndex g, Bytes size, std::int32_t least,
                                             bool any_size) const {
  const StreamId stream = groups_[g].stream;
  for (const GroupIndex other : open_) {
    const Group& o = groups_[other];
    if (other == g || o.stream != stream || o.passed_at > clock_) continue;
    if (o.idle.largest() < round_up(size) || remaining(region(other)) < least) continue;
    if (any_size || std::ranges::binary_search(o.recurring, size)) return other;
  }
  return kNone;
}

Offset StaticPool::place_in_region(GroupIndex g, Bytes size) {
  Group& group = groups_[g];
  if (!is_current(region(g))) return kUnplaced;
  if (!group.open) open_region(g);
  const Offset offset = group.idle.best_fit(size);
  if (offset == kUnplaced) return kUnplaced;
  group.idle.subtract({offset, offset + size});
  ++group.blocks;
  return offset;
}

void StaticPool::open_region(GroupIndex g) {
  Placed& p = region(g);
  if (p.size == 0) return;
  Group& group = groups_[g];
  p.state = State::kRegular;
  group.open = true;
  open_.push_back(g);
  open_ranges_.insert(range(p));
  group.idle.clear();
  group.idle.insert(range(p));
  strays_.intersect(range(p), [&](Range stray) { group.idle.remove(stray); });
  take_idle(range(p));
}

void StaticPool::close_region(GroupIndex g) {
  Group& group = groups_[g];
  if (!group.open) return;
  region(g).state = State::kIdle;
  group.open = false;
  group.idle.clear();
  std::erase(open_, g);
  open_ranges_.erase(region(g).offset);
  if (group.blocks > 0) {
    for (auto& [offset, block] : foreign_) {
      if (block.group != g || block.stray) continue;
      block.stray = true;
      add_stray({offset, offset + block.size});
    }
    group.blocks = 0;
  }
  return_region(range(region(g)));
}

// Gives addresses that were a stray's to the open regions that hold them.
void StaticPool::return_to_regions(Range r) {
  for (const GroupIndex g : open_) {
    const Range all = range(region(g));
    const Range part{std::max(all.begin, r.begin), std::min(all.end, r.end)};
    if (part.size() > 0) groups_[g].idle.insert_merged(part);
  }
}

HoleSet& StaticPool::reuse_of(GroupIndex g) {
  const auto known = std::ranges::find(reuse_, g, &Reuse::group);
  if (known != reuse_.end()) return known->space;
  Reuse& reuse = reuse_[oldest_reuse_];
  oldest_reuse_ = (oldest_reuse_ + 1) % reuse_.size();
  reuse.group = g;
  const RangeSet& reusable = groups_[g].reusable;
  reuse.space.assign(reusable);
  reusable.intersect({0, size_}, [&](Range idle) {
    strays_.intersect(idle, [&](Range stray) { reuse.space.remove(stray); });
  });
  return reuse.space;
}

Offset StaticPool::place_reused(GroupIndex g, Bytes size) {
  if (groups_[g].reusable.empty()) return kUnplaced;
  const Offset offset = reuse_of(g).best_fit(size);
  if (offset == kUnplaced) return kUnplaced;
  add_stray({offset, offset + size});
  take_idle({offset, offset + size});
  return offset;
}

}  // namespace stalloc::runtime
