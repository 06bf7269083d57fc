// The memory of segments that can lose some between their live blocks.
#include <algorithm>

#include "base/align.h"
#include "base/error.h"
#include "runtime/caching_pool.h"

namespace stalloc::runtime {

// In its segment.
Range CachingPool::offsets_of(Blocks::const_iterator block) {
  const auto begin = static_cast<Offset>(block->first - block->second.segment);
  return {begin, begin + block->second.size};
}

Bytes CachingPool::absent_in(Blocks::const_iterator block) const {
  const Held& held = segments_.at(block->second.segment);
  Bytes sum = 0;
  if (held.missing == 0) return sum;
  held.absent.intersect(offsets_of(block), [&](Range r) { sum += r.size(); });
  return sum;
}

// The addresses without memory that a request of `rounded` bytes at `at` needs, in whole units.
std::vector<Range> CachingPool::lacking_units(Blocks::const_iterator block, Offset at,
                                              Bytes rounded) const {
  const auto& b = block->second;
  Range needed{at, offsets_of(block).end};
  if (worth_splitting(needed.size() - rounded, b.small)) needed.end = at + rounded;
  return units_within(segments_.at(b.segment).absent, needed, unit_);
}

// The place in the block where a request lacks the least: at its beginning, its end, or where
// memory begins. What is left before it is worth a block.
CachingPool::Fit CachingPool::best_place(Blocks::const_iterator block, Bytes rounded) const {
  const Range whole = offsets_of(block);
  Fit best{block, whole.begin, -1};
  const auto consider = [&](Offset at) {
    if (at + rounded > whole.end) return;
    if (at > whole.begin && !worth_splitting(at - whole.begin, block->second.small)) return;
    Bytes lacking = 0;
    for (const Range& r : lacking_units(block, at, rounded)) lacking += r.size();
    if (best.lacking < 0 || lacking < best.lacking) best = {block, at, lacking};
  };
  consider(whole.begin);
  visit_outside(segments_.at(block->second.segment).absent, whole,
                [&](Range present) { consider(present.begin); });
  consider(whole.end - rounded);
  return best;
}

// The place among the free blocks with absent memory that needs the least of it, in the smallest
// of equals; end() if there is none. Unless `moves`, one that needs none. O(blocks of the shelf).
CachingPool::Fit CachingPool::find_lacking(Bytes rounded, const Shelf& shelf, bool moves) const {
  Fit found{blocks_.end(), 0, 0};
  if (shelf.small) return found;
  const Shelf on{.stream = shelf.stream, .small = shelf.small, .lacks = true};
  for (auto fit = free_.lower_bound(FreeKey{on, rounded, 0});
       fit != free_.end() && std::get<Shelf>(*fit) == on; ++fit) {
    const Fit place = best_place(blocks_.find(std::get<Address>(*fit)), rounded);
    if (place.lacking > 0 && !moves) continue;
    if (found.block == blocks_.end() || place.lacking < found.lacking) found = place;
  }
  return found;
}

Bytes CachingPool::growth(Bytes size, StreamId stream) const {
  const Bytes rounded = align_up(size, kDefaultAlignment);
  const Shelf shelf{.stream = stream, .small = is_small(rounded)};
  const Fit place = find_lacking(rounded, shelf, moves_);
  return place.block == blocks_.end() ? segment_size(rounded) : place.lacking;
}

// Cuts a block in two, neither of which is on a shelf; the second begins at `at`.
CachingPool::Blocks::iterator CachingPool::split_front(Blocks::iterator block, Offset at) {
  const Bytes front = at - offsets_of(block).begin;
  Block rest = block->second;
  rest.size -= front;
  block->second.size = front;
  block->second.absent = absent_in(block);
  const auto second = blocks_.emplace(block->first + static_cast<Address>(front), rest).first;
  second->second.absent = absent_in(second);
  return second;
}

// Takes a block that lacks memory off its shelf, and gives it what the request needs. Returns end()
// if there is none, or if the device lacks the memory.
CachingPool::Blocks::iterator CachingPool::fill(Bytes rounded, const Shelf& shelf, bool moves) {
  const Fit place = find_lacking(rounded, shelf, moves);
  if (place.block == blocks_.end()) return blocks_.end();
  const auto whole = blocks_.find(place.block->first);
  forget_free(whole);
  const Address address = whole->second.segment;
  auto* const segment = reinterpret_cast<void*>(address);
  Held& held = segments_.at(address);
  for (const Range& units : lacking_units(whole, place.at, rounded)) {
    bool attached = false;
    try {
      attached = device_.attach(segment, units);
    } catch (const Error&) {
      // A later call tells if the device is lost.
    }
    if (!attached) {
      device_.drop_detached(segment);  // the part of the range that it gave
      whole->second.absent = absent_in(whole);
      free_.insert(key_of(whole));
      return blocks_.end();
    }
    held.absent.subtract(units);
    held.missing -= units.size();
    reserved_ += units.size();
  }
  held.used = true;
  if (place.at == offsets_of(whole).begin) return whole;
  const auto block = split_front(whole, place.at);
  free_.insert(key_of(whole));
  return block;
}

// The driver waits for the device before it unmaps memory.
bool CachingPool::may_release(Address segment) const {
  return !capturing_ || segments_.at(segment).chunk == 0;
}

// Takes about `size` bytes of memory from a free block, the last ones first. Returns the bytes.
Bytes CachingPool::detach(Blocks::iterator block, Bytes size) {
  Held& held = segments_.at(block->second.segment);
  auto* const segment = reinterpret_cast<void*>(block->second.segment);
  std::vector<Range> present;
  visit_outside(held.absent, offsets_of(block), [&](Range r) { present.push_back(r); });
  forget_free(block);
  Bytes gone = 0;
  for (auto r = present.rbegin(); r != present.rend() && gone < size; ++r) {
    const Offset begin = std::max(r->begin, r->end - (size - gone)) / held.chunk * held.chunk;
    const Range chunks = device_.detach(segment, {std::max(r->begin, begin), r->end});
    if (chunks.size() <= 0) continue;
    held.absent.insert_merged(chunks);
    gone += chunks.size();
  }
  device_.drop_detached(segment);
  held.missing += gone;
  reserved_ -= gone;
  block->second.absent += gone;
  free_.insert(key_of(block));
  return gone;
}

Bytes CachingPool::give_back(Bytes size, Bytes next, StreamId stream) {
  if (capturing_) return 0;
  const Bytes rounded = align_up(next, kDefaultAlignment);
  const Shelf shelf{.stream = stream, .small = is_small(rounded)};
  const auto kept = find_lacking(rounded, shelf, moves_).block;
  const auto memory = [](Blocks::const_iterator b) { return b->second.size - b->second.absent; };
  std::vector<Blocks::iterator> blocks;
  for (const FreeKey& key : free_) {
    const auto block = blocks_.find(std::get<Address>(key));
    const Bytes chunk = segments_.at(block->second.segment).chunk;
    if (chunk > 0 && memory(block) >= chunk && block != kept) blocks.push_back(block);
  }
  std::ranges::sort(blocks, [&](auto a, auto b) { return memory(a) > memory(b); });
  Bytes gone = 0;
  for (auto block = blocks.begin(); block != blocks.end() && gone < size; ++block) {
    gone += detach(*block, size - gone);
  }
  return gone;
}

std::vector<CachingPool::Segment> CachingPool::segments() const {
  std::vector<Segment> result;
  for (const auto& [address, held] : segments_) {
    auto* const begin = reinterpret_cast<std::byte*>(address);
    visit_outside(held.absent, {0, held.size},
                  [&](Range r) { result.push_back({begin + r.begin, r.size()}); });
  }
  std::ranges::sort(result, {}, &Segment::begin);
  return result;
}

CachingPool::Segment CachingPool::segment_of(const void* p) const {
  const auto address = reinterpret_cast<Address>(p);
  auto block = blocks_.upper_bound(address);
  if (block == blocks_.begin()) return {};
  --block;
  const Address segment = block->second.segment;
  const auto offset = static_cast<Offset>(address - segment);
  if (offset >= offsets_of(block).end) return {};
  Segment found;
  const Held& held = segments_.at(segment);
  visit_outside(held.absent, {0, held.size}, [&](Range r) {
    if (r.begin > offset || offset >= r.end) return;
    found = {reinterpret_cast<std::byte*>(segment) + r.begin, r.size()};
  });
  return found;
}

}  // namespace stalloc::runtime
