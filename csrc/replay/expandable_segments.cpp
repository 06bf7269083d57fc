// The part of the model that maps memory in chunks; see Note [Expandable Segments] of torch.
#include <algorithm>

#include "base/error.h"
#include "replay/caching_model.h"

namespace stalloc::replay {
namespace {

constexpr Bytes kSmallChunk = Bytes{2} << 20;
constexpr Bytes kLargeChunk = Bytes{20} << 20;
// The address space of a segment if the device has no limit. It is many times that of any device,
// and thousands of such segments fit in 63 bits.
constexpr Bytes kEndless = Bytes{1} << 48;

Bytes chunks(Bytes size, Bytes chunk) { return size / chunk + (size % chunk != 0); }

}  // namespace

CachingModel::Block* CachingModel::allocate_expandable(const Search& search) {
  Block* block = find_expandable(search);
  // A list of free and unmapped blocks that are large enough together: unmapped, unmapped - free
  // or free - unmapped, and so on.
  if (!block->mapped && !map(block, std::min(block->size, search.size))) return nullptr;
  while (block->size < search.size) {
    Block* next = block->next;
    if (!map(next, std::min(search.size - block->size, next->size))) return nullptr;
    block = next;  // which has been merged with the one before it
  }
  pool(search.small).free.erase(block);
  return block;
}

// Finds the lowest address at which a segment has space, or makes a new segment.
CachingModel::Block* CachingModel::find_expandable(const Search& search) {
  const auto has_room = [&](const Block* b) {
    Bytes size = 0;
    for (; size < search.size && b && !b->live; b = b->next) size += b->size;
    return size >= search.size;
  };
  Pool& shelf = pool(search.small);
  Block key;
  key.stream = search.stream;
  for (auto it = shelf.unmapped.lower_bound(&key);
       it != shelf.unmapped.end() && (*it)->stream == search.stream; ++it) {
    Block* block = *it;
    if (block->previous && !block->previous->live) block = block->previous;
    if (has_room(block)) return block;
  }
  const Bytes chunk = search.small ? kSmallChunk : kLargeChunk;
  const Bytes capacity = std::min(settings_.capacity, kEndless);
  // As in torch, a segment has an eighth more addresses than the device, so that it can have holes.
  // A request that the device will refuse still needs addresses.
  const Bytes size =
      chunks(std::max(capacity + capacity / 8, std::min(search.size, kEndless)), chunk) * chunk;
  const Range range{next_address_, size, chunk};
  if (search.size > range.size || __builtin_add_overflow(next_address_, size, &next_address_)) {
    throw OverflowError("a request of " + std::to_string(search.size) +
                        " bytes is larger than any device's address space");
  }
  Block* block = new_block(search, range.address, range.size);
  block->mapped = false;
  block->range = static_cast<std::int32_t>(ranges_.size());
  ranges_.push_back(range);
  shelf.unmapped.insert(block);
  return block;
}

// Maps the first `size` bytes of an unmapped block, in whole chunks, and caches it. Returns false
// if the device has too little memory left.
bool CachingModel::map(Block* block, Bytes size) {
  const Range& range = ranges_[static_cast<std::size_t>(block->range)];
  const Bytes mapped = chunks(size, range.chunk) * range.chunk;
  if (mapped > available()) return false;
  if (placements_) placements_->take(block->address, mapped);
  Pool& shelf = pool(block->small);
  shelf.unmapped.erase(block);
  block->mapped = true;
  if (mapped < block->size) {
    Block* rest =
        new_block({0, block->stream, block->small}, block->address + mapped, block->size - mapped);
    rest->mapped = false;
    rest->range = block->range;
    insert_after(rest, block);
    shelf.unmapped.insert(rest);
    block->size = mapped;
  }
  merge(block, block->previous);
  merge(block, block->next);
  cache(block);
  stats_.reserved.add(mapped);
  stats_.maps += mapped / range.chunk;
  return true;
}

// Unmaps the whole chunks within a cached block.
void CachingModel::unmap(Block* block) {
  const Range& range = ranges_[static_cast<std::size_t>(block->range)];
  const Offset first = block->address - range.address;
  const Offset begin = chunks(first, range.chunk) * range.chunk;
  const Offset end = (first + block->size) / range.chunk * range.chunk;
  if (begin >= end) return;
  pool(block->small).free.erase(block);
  const Search like{0, block->stream, block->small};
  if (begin > first) {
    Block* before = new_block(like, block->address, begin - first);
    before->range = block->range;
    insert_before(before, block);
    cache(before);
  }
  if (const Bytes after = first + block->size - end; after > 0) {
    Block* rest = new_block(like, range.address + end, after);
    rest->range = block->range;
    insert_after(rest, block);
    cache(rest);
  }
  block->address = range.address + begin;
  block->size = end - begin;
  block->mapped = false;
  if (placements_) placements_->give_back(block->address, block->size);
  merge(block, block->previous);
  merge(block, block->next);
  pool(block->small).unmapped.insert(block);
  stats_.reserved.add(begin - end);
  stats_.unmaps += (end - begin) / range.chunk;
}

void CachingModel::check() const {
  const auto fail = [](const std::string& what) { throw Error("caching model: " + what); };
  Bytes requested = 0, allocated = 0, reserved = 0;
  std::size_t free_blocks = 0, unmapped_blocks = 0;
  for (const Block& b : blocks_) {
    if (!b.in_use) continue;
    const Pool& shelf = b.small ? small_ : large_;
    if (b.next && (b.next->previous != &b || b.address + b.size != b.next->address)) {
      fail("a segment is not tiled by its blocks");
    }
    if (b.next && !b.live && !b.next->live && b.mapped == b.next->mapped) {
      fail("two free neighbours were not merged");
    }
    if (b.requested > b.size || (b.live && (b.requested <= 0 || !b.mapped))) {
      fail("a block is smaller than what was asked for");
    }
    auto* key = const_cast<Block*>(&b);
    if (shelf.free.contains(key) != (!b.live && b.mapped) ||
        shelf.unmapped.contains(key) != !b.mapped) {
      fail("a block is in the wrong set");
    }
    requested += b.requested;
    if (b.live) allocated += b.size;
    if (b.mapped) reserved += b.size;
    free_blocks += !b.live && b.mapped;
    unmapped_blocks += !b.mapped;
  }
  if (free_blocks != small_.free.size() + large_.free.size() ||
      unmapped_blocks != small_.unmapped.size() + large_.unmapped.size()) {
    fail("a set holds what is no block");
  }
  if (requested != stats_.requested.current || allocated != stats_.allocated.current ||
      reserved != stats_.reserved.current) {
    fail("the counts of bytes are off");
  }
  if (reserved > settings_.capacity) fail("more is reserved than the device has");
}

}  // namespace stalloc::replay
