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

// The addresses without memory that a request of `rounded` bytes at the beginning of the block
// needs, in whole units.
std::vector<Range> CachingPool::lacking_units(Blocks::const_iterator block, Bytes rounded) const {
  const auto& b = block->second;
  Range needed = offsets_of(block);
  if (worth_splitting(b.size - rounded, b.small)) needed.end = needed.begin + rounded;
  std::vector<Range> result;
  segments_.at(b.segment).absent.visit_overlapping(needed, [&](Range r) {
    const Offset before = std::max<Bytes>(0, needed.begin - r.begin) / unit_ * unit_;
    const Bytes behind = align_up(std::min(r.end, needed.end) - r.begin, unit_);
    result.push_back({r.begin + before, std::min(r.end, r.begin + behind)});
  });
  return result;
}

Bytes CachingPool::lacking(Blocks::const_iterator block, Bytes rounded) const {
  Bytes sum = 0;
  for (const Range& r : lacking_units(block, rounded)) sum += r.size();
  return sum;
}

// The free block with absent memory that needs the least of it for such a request, the smallest of
// equals; end() if there is none. O(blocks of the shelf).
CachingPool::Blocks::const_iterator CachingPool::find_lacking(Bytes rounded,
                                                              const Shelf& shelf) const {
  auto found = blocks_.end();
  if (!moves_ || shelf.small) return found;
  const Shelf on{.stream = shelf.stream, .small = shelf.small, .lacks = true};
  Bytes least = 0;
  for (auto fit = free_.lower_bound(FreeKey{on, rounded, 0});
       fit != free_.end() && std::get<Shelf>(*fit) == on; ++fit) {
    const auto block = blocks_.find(std::get<Address>(*fit));
    const Bytes needed = lacking(block, rounded);
    if (found != blocks_.end() && needed >= least) continue;
    found = block;
    least = needed;
  }
  return found;
}

Bytes CachingPool::growth(Bytes size, StreamId stream) const {
  const Bytes rounded = align_up(size, kDefaultAlignment);
  const auto block = find_lacking(rounded, {.stream = stream, .small = is_small(rounded)});
  return block == blocks_.end() ? segment_size(rounded) : lacking(block, rounded);
}

// Takes a block that lacks memory off its shelf, and gives it what the request needs. Returns end()
// if there is none, or if the device lacks the memory.
CachingPool::Blocks::iterator CachingPool::fill(Bytes rounded, const Shelf& shelf) {
  const auto found = find_lacking(rounded, shelf);
  if (found == blocks_.end()) return blocks_.end();
  const auto block = blocks_.find(found->first);
  forget_free(block);
  Block& b = block->second;
  Held& held = segments_.at(b.segment);
  for (const Range& units : lacking_units(block, rounded)) {
    bool attached = false;
    try {
      attached = device_.attach(reinterpret_cast<void*>(b.segment), units);
    } catch (const Error&) {
      // A later call tells if the device is lost.
    }
    if (!attached) {
      b.absent = absent_in(block);
      free_.insert(key_of(block));
      return blocks_.end();
    }
    held.absent.subtract(units);
    held.missing -= units.size();
    reserved_ += units.size();
  }
  held.used = true;
  return block;
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
  const Bytes rounded = align_up(next, kDefaultAlignment);
  const auto kept = find_lacking(rounded, {.stream = stream, .small = is_small(rounded)});
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
