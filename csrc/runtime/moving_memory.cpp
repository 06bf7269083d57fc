#include "runtime/moving_memory.h"

#include <algorithm>

#include "base/align.h"
#include "base/error.h"

namespace stalloc::runtime {
namespace {

// Memory does not move for smaller requests.
constexpr Bytes kLeastMoved = Bytes{1} << 20;

// The bytes of `ranges` that lie in `r`.
Bytes common(const std::vector<Range>& ranges, Range r) {
  Bytes sum = 0;
  for (const Range& i : ranges) {
    sum += std::max<Bytes>(0, std::min(i.end, r.end) - std::max(i.begin, r.begin));
  }
  return sum;
}

std::vector<Range> outside(const RangeSet& set, const std::vector<Range>& ranges) {
  std::vector<Range> result;
  for (const Range& r : ranges) visit_outside(set, r, [&](Range part) { result.push_back(part); });
  return result;
}

Bytes sum_of(const std::vector<Range>& ranges) {
  Bytes sum = 0;
  for (const Range& r : ranges) sum += r.size();
  return sum;
}

}  // namespace

// The beginning of the room with the least addresses without memory, the lowest of equals. Those
// behind the pool's end have none. kUnplaced if the stream has no addresses.
Offset MovingMemory::find_room(const Room& room) const {
  const auto& [size, stream, stays] = room;
  StaticPool& space = pool_.space;
  const std::vector<Range> idle = space.idle_ranges();
  std::vector<Range> open = space.claimable(stream);
  if (open.empty() && space.missing_at_end(size, stream) == kUnplaced) return kUnplaced;
  const Bytes end = space.size();
  if (stays) open = outside(space.planned(), open);
  if (open.empty() || open.back().end < end) open.push_back({end, end});
  open.back().end = end + size;
  Offset found = kUnplaced;
  Bytes least = 0;
  const auto consider = [&](Range within, Offset begin) {
    if (begin < within.begin || begin + size > within.end) return;
    const Bytes lacking = size - common(idle, {begin, begin + size});
    if (found != kUnplaced && lacking >= least) return;
    found = begin;
    least = lacking;
  };
  for (const Range& o : open) {
    consider(o, o.begin);
    for (const Range& i : idle) {
      if (!o.overlaps(i)) continue;
      consider(o, std::max(i.begin, o.begin));
      consider(o, std::min(i.end, o.end) - size);
    }
  }
  return found;
}

// The addresses in `room` without memory, in whole units.
std::vector<Range> MovingMemory::lacking_in(Range room) const {
  return units_within(pool_.space.absent(), room, device_.unit());
}

// The same for all of `needed`.
std::vector<Range> MovingMemory::lacking_in(const RangeSet& needed) const {
  std::vector<Range> result;
  for (const Range& r : pool_.space.absent().ranges()) {
    needed.intersect(r, [&](Range part) {
      for (const Range& units : lacking_in(part)) {
        // Two parts may share a unit.
        const Offset begin =
            result.empty() ? units.begin : std::max(units.begin, result.back().end);
        if (begin < units.end) result.push_back({begin, units.end});
      }
    });
  }
  return result;
}

// The bytes that detach() can take.
Bytes MovingMemory::movable(const std::vector<Range>& from) const {
  Bytes sum = 0;
  for (const Range& r : from) {
    sum += std::max<Bytes>(0, r.end / pool_.chunk * pool_.chunk - align_up(r.begin, pool_.chunk));
  }
  return sum;
}

// Takes at least `size` bytes of memory, if there are so many: from the last addresses first.
// Returns where it was.
std::vector<Range> MovingMemory::detach(Bytes size, const std::vector<Range>& from) {
  std::vector<Range> gone;
  const Bytes slack = 2 * pool_.chunk;  // whole chunks lie within a range that is so much larger
  for (auto r = from.rbegin(); r != from.rend() && size > 0; ++r) {
    const Offset enough = device_.large_chunk_at(pool_.base, r->end - size - slack);
    const Range chunks = device_.detach(pool_.base, {std::max(r->begin, enough), r->end});
    if (chunks.size() <= 0) continue;
    moved_ = true;
    pool_.space.remove_memory(chunks);
    gone.push_back(chunks);
    size -= chunks.size();
  }
  return gone;
}

// The same from all idle addresses but `kept`: at first from those that the layout needs last, and
// at last from open regions.
std::vector<Range> MovingMemory::detach_needed_last(Bytes size, Range kept) {
  RangeSet excluded;
  excluded.insert(kept);
  std::vector<Range> gone;
  for (std::size_t level = 0; level < StaticPool::kLevels && size > 0; ++level) {
    for (const Range& r : detach(size, outside(excluded, pool_.space.idle_ranges(level)))) {
      gone.push_back(r);
      size -= r.size();
    }
  }
  if (size > 0) {
    for (const Range& r : detach(size, outside(excluded, pool_.space.idle_in_regions()))) {
      gone.push_back(r);
    }
  }
  return gone;
}

// Gives memory to addresses without. Without effect if the device lacks it.
bool MovingMemory::attach(Range r) {
  try {
    if (!device_.attach(pool_.base, r)) return false;
  } catch (const Error&) {
    return false;  // a later call tells if the device is lost
  }
  pool_.space.return_memory(r);
  return true;
}

// The pool gets memory behind its end.
bool MovingMemory::grow(Bytes size, StreamId stream) {
  const Bytes before = pool_.first_size;
  try {
    if (!device_.grow(pool_.base, before, before + size)) return false;
  } catch (const Error&) {
    return false;
  }
  pool_.first_size = before + size;
  pool_.space.extend(size, stream);
  return true;
}

bool MovingMemory::make_room(Room wanted, Means means) {
  StaticPool& space = pool_.space;
  wanted.size = space.round_up(wanted.size);
  const auto& [size, stream, stays] = wanted;
  const Offset begin = find_room(wanted);
  if (begin == kUnplaced) return false;
  const Range room{begin, begin + size};
  std::vector<Range> inside = lacking_in(room);
  const Bytes behind = std::max<Bytes>(0, room.end - std::max(space.size(), begin));
  const Bytes lacking = sum_of(inside) + behind;
  if (lacking == 0) return true;
  RangeSet kept;
  kept.insert(room);
  const bool is_spare = lacking <= means.spare;
  if (!is_spare && !means.waits) return false;
  // To wait for the device costs more than a small request beside the pool.
  const bool moves = !is_spare && size >= kLeastMoved;
  const Bytes given = means.more ? lacking : means.rest;
  Bytes at_most = given;
  if (moves) {
    at_most += movable(outside(kept, space.idle_ranges())) + movable(space.idle_in_regions());
    if (means.boxes) at_most += movable(space.idle_in_boxes());
  }
  if (at_most < lacking) return false;

  std::vector<Range> gone;
  if (moves) gone = detach_needed_last(lacking + means.cushion, room);
  if (moves && means.boxes) {
    for (const Range& r : detach(lacking - sum_of(gone), space.idle_in_boxes())) gone.push_back(r);
  }
  const Bytes moved = sum_of(gone);
  bool suffices = given + moved >= lacking;
  std::size_t filled = 0;
  while (suffices && filled < inside.size()) {
    suffices = attach(inside[filled]);
    filled += suffices ? 1 : 0;
  }
  // Parts of chunks that are left go there, too.
  const Bytes left = means.cushion > 0 ? 0 : moved - sum_of(inside);
  if (suffices && behind > 0) suffices = grow(std::max(behind, left), stream);
  if (!suffices) {
    inside.resize(filled);
    detach(sum_of(inside), inside);
    std::ranges::for_each(gone, [this](Range r) { attach(r); });
  }
  device_.drop_detached(pool_.base);
  return suffices;
}

bool MovingMemory::provide(Range r, Range wish, const RangeSet& layout, Means means) {
  StaticPool& space = pool_.space;
  std::vector<Range> first = lacking_in(r);
  const std::vector<Range> elsewhere = outside(layout, space.idle_ranges());
  bool is_spare = sum_of(first) <= means.spare;
  if (!means.waits || is_spare) {
    if (std::ranges::all_of(first, [this](Range units) { return attach(units); })) return true;
    // The device is full.
    device_.drop_detached(pool_.base);  // the part of the last range that it gave
    first = lacking_in(r);
    is_spare = false;
  }
  const Bytes lacking = sum_of(first);
  const Bytes all = sum_of(lacking_in(layout));
  Bytes left = sum_of(detach(all, elsewhere));
  RangeSet soon;  // addresses of requests that come soon
  const auto add = [&](Range a) {
    soon.remove(a);
    soon.insert_merged(a);
  };
  add(r);
  bool is_scarce = false, has_cushion = false;
  if (left < lacking && !is_spare) {
    // One wait serves the rest of the phase, from addresses that it does not need.
    if (wish.size() > 0) add(wish);
    std::ranges::for_each(space.upcoming(), add);
    const Bytes more = sum_of(lacking_in(soon));
    for (std::size_t level = 0; level < StaticPool::kLevels && left < more; ++level) {
      left += sum_of(detach(more - left, outside(soon, space.idle_ranges(level))));
    }
    is_scarce = left < more;
    const Bytes wanted = lacking + means.cushion;
    has_cushion = left < wanted;
    if (has_cushion) left += sum_of(detach_needed_last(wanted - left, r));
  }
  bool provided = true;
  for (const Range& units : first) provided = provided && attach(units);
  left -= lacking;
  const auto fill = [&](const std::vector<Range>& ranges) {
    for (const Range& units : ranges) {
      // Memory lies at whole units, and the last bytes of the pool's end may be less than one.
      const Bytes size =
          left < units.size() ? left / device_.unit() * device_.unit() : units.size();
      const Range part{units.begin, units.begin + size};
      if (size <= 0 || !attach(part)) break;
      left -= part.size();
    }
  };
  if (wish.size() > 0) fill(lacking_in(wish));
  if (!is_scarce) {
    fill(lacking_in(soon));
    if (!has_cushion) fill(lacking_in(layout));
  }
  device_.drop_detached(pool_.base);
  shrink(layout);
  return provided;
}

Bytes MovingMemory::give_back(Bytes size) {
  const Bytes gone = sum_of(detach_needed_last(size, {}));
  device_.drop_detached(pool_.base);
  return gone;
}

void MovingMemory::return_end(const RangeSet& needed) {
  const Offset end = needed.empty() ? 0 : needed.ranges().back().end;
  std::vector<Range> behind;
  for (const Range& r : pool_.space.idle_ranges()) {
    if (r.end > end) behind.push_back({std::max(r.begin, end), r.end});
  }
  detach(sum_of(behind), behind);
  device_.drop_detached(pool_.base);
  shrink(needed);
}

// The pool ends where its memory does, but holds the addresses of `needed`.
void MovingMemory::shrink(const RangeSet& needed) {
  StaticPool& space = pool_.space;
  space.shrink(needed.empty() ? 0 : needed.ranges().back().end);
  device_.shrink(pool_.base, space.size());
  pool_.first_size = space.size();
}

}  // namespace stalloc::runtime
