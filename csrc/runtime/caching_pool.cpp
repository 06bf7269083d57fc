#include "runtime/caching_pool.h"

#include <string>
#include <utility>

#include "base/align.h"
#include "base/error.h"

namespace stalloc::runtime {
namespace {

// Memory moves in so many parts of a segment at most.
constexpr Bytes kChunks = 64;

}  // namespace

CachingPool::~CachingPool() {
  for (const auto& [address, held] : segments_) {
    device_.release(reinterpret_cast<void*>(address), held.size);
  }
}

// The best fit; end() if no free block is large enough.
std::set<CachingPool::FreeKey>::const_iterator CachingPool::find_free(Bytes rounded,
                                                                      const Shelf& shelf) const {
  const auto fit = free_.lower_bound(FreeKey{shelf, rounded, 0});
  return fit != free_.end() && std::get<Shelf>(*fit) == shelf ? fit : free_.end();
}

bool CachingPool::holds(Bytes size, StreamId stream) const {
  const Bytes rounded = align_up(size, kDefaultAlignment);
  return find_free(rounded, {.stream = stream, .small = is_small(rounded)}) != free_.end();
}

bool CachingPool::would_serve(const void* p, Bytes size, StreamId stream) const {
  const auto block = blocks_.find(reinterpret_cast<Address>(p));
  if (block == blocks_.end()) return false;
  const Bytes rounded = align_up(size, kDefaultAlignment);
  const Block& b = block->second;
  return b.requested > 0 && b.stream == stream && b.small == is_small(rounded) && b.size >= rounded;
}

void* CachingPool::allocate(Bytes size, StreamId stream, bool marked) {
  const Bytes rounded = align_up(size, kDefaultAlignment);
  const Shelf shelf{.stream = stream, .small = is_small(rounded)};

  auto block = blocks_.end();
  const auto fit = find_free(rounded, shelf);
  if (fit != free_.end()) {
    block = blocks_.find(std::get<Address>(*fit));
    free_.erase(fit);
    segments_.at(block->second.segment).used = true;
  } else {
    if (thrifty_ && returns_ && growth(size, stream) > 0) release_cached();
    block = fill(rounded, shelf, moves_ && !capturing_);
    if (block == blocks_.end()) block = add_segment(segment_size(rounded), shelf);
    // The last resort, once other segments have gone.
    if (block == blocks_.end()) block = fill(rounded, shelf, !capturing_);
    if (block == blocks_.end()) return nullptr;
  }

  const Bytes rest = block->second.size - rounded;
  if (worth_splitting(rest, shelf.small)) {
    Block remainder = block->second;
    remainder.size = rest;
    block->second.size = rounded;
    const Address at = block->first + static_cast<Address>(rounded);
    const auto behind = blocks_.emplace(at, remainder).first;
    behind->second.absent = absent_in(behind);
    free_.insert(key_of(behind));
  }
  block->second.requested = size;
  block->second.absent = 0;
  block->second.marked = marked;
  ++live_;
  return reinterpret_cast<void*>(block->first);
}

Bytes CachingPool::segment_size(Bytes rounded) const {
  if (is_small(rounded)) return unit_;
  const Bytes whole = align_up(rounded, unit_);
  const bool shares = !thrifty_ || whole - rounded > rounded / 8;
  return shares && rounded < 5 * unit_ ? 10 * unit_ : whole;
}

bool CachingPool::worth_splitting(Bytes rest, bool small) const {
  return small ? rest >= kDefaultAlignment : rest > unit_ / 2;
}

CachingPool::Freed CachingPool::deallocate(void* p, bool keep) {
  auto block = blocks_.find(reinterpret_cast<Address>(p));
  if (block == blocks_.end() || block->second.requested == 0) return {};
  const Freed freed{block->second.requested, block->second.marked};
  block->second.requested = 0;
  --live_;
  block = make_free(block);
  if (!keep && is_whole_segment(block) && may_release(block->first)) release_segment(block);
  return freed;
}

CachingPool::Freed CachingPool::find(const void* p) const {
  const auto block = blocks_.find(reinterpret_cast<Address>(p));
  if (block == blocks_.end() || block->second.requested == 0) return {};
  return {block->second.requested, block->second.marked};
}

StreamId CachingPool::stream_of(const void* p) const {
  return blocks_.at(reinterpret_cast<Address>(p)).stream;
}

std::vector<CachingPool::BlockInfo> CachingPool::blocks() const {
  std::vector<BlockInfo> result;
  result.reserve(blocks_.size());
  for (const auto& [address, b] : blocks_) {
    result.push_back({reinterpret_cast<void*>(address), b.size, b.requested, b.stream,
                      reinterpret_cast<void*>(b.segment)});
  }
  return result;
}

CachingPool::Blocks::iterator CachingPool::add_segment(Bytes size, const Shelf& shelf) {
  Held held{.size = size};
  const auto take = [&] {
    const Bytes chunk = align_up(size / kChunks, unit_);
    const bool moves = moves_ && !capturing_ && !shelf.small;
    void* movable = moves ? device_.allocate_movable(size, size, chunk) : nullptr;
    held.chunk = movable ? chunk : 0;
    return movable ? movable : device_.allocate(size);
  };
  void* piece = take();
  if (!piece && release_cached() > 0) piece = take();
  if (!piece) return blocks_.end();
  const auto address = reinterpret_cast<Address>(piece);
  segments_.emplace(address, held);
  reserved_ += size;
  return blocks_
      .emplace(
          address,
          Block{.size = size, .stream = shelf.stream, .small = shelf.small, .segment = address})
      .first;
}

CachingPool::FreeKey CachingPool::key_of(Blocks::const_iterator block) {
  const Block& b = block->second;
  return {{.stream = b.stream, .small = b.small, .lacks = b.absent > 0}, b.size, block->first};
}

void CachingPool::forget_free(Blocks::iterator block) { free_.erase(key_of(block)); }

// Merges a block that has just become free with free neighbours of the same segment.
CachingPool::Blocks::iterator CachingPool::make_free(Blocks::iterator block) {
  const auto mergeable = [&](Blocks::iterator other) {
    return other->second.requested == 0 && other->second.segment == block->second.segment;
  };
  if (const auto next = std::next(block); next != blocks_.end() && mergeable(next)) {
    forget_free(next);
    block->second.size += next->second.size;
    block->second.absent += next->second.absent;
    blocks_.erase(next);
  }
  if (block != blocks_.begin()) {
    if (const auto before = std::prev(block); mergeable(before)) {
      forget_free(before);
      before->second.size += block->second.size;
      before->second.absent += block->second.absent;
      blocks_.erase(block);
      block = before;
    }
  }
  free_.insert(key_of(block));
  return block;
}

bool CachingPool::is_whole_segment(Blocks::const_iterator block) const {
  return block->second.requested == 0 &&
         block->second.size == segments_.at(block->second.segment).size;
}

void CachingPool::release_segment(Blocks::iterator block) {
  const auto [address, size] = std::pair(block->first, block->second.size);
  forget_free(block);
  blocks_.erase(block);
  reserved_ -= size - segments_.at(address).missing;
  segments_.erase(address);
  device_.release(reinterpret_cast<void*>(address), size);
}

Bytes CachingPool::release_cached() {
  const Bytes before = reserved_;
  for (auto it = segments_.begin(); it != segments_.end();) {
    const auto first = blocks_.find(it->first);
    ++it;
    if (is_whole_segment(first) && may_release(first->first)) release_segment(first);
  }
  return before - reserved_;
}

Bytes CachingPool::release_unused() {
  const Bytes before = reserved_;
  for (auto it = segments_.begin(); it != segments_.end();) {
    const auto first = blocks_.find(it->first);
    const bool unused = !std::exchange(it->second.used, false);
    ++it;
    if (unused && is_whole_segment(first) && may_release(first->first)) release_segment(first);
  }
  return before - reserved_;
}

Bytes CachingPool::largest_hole() const {
  Bytes result = 0;
  for (const auto& key : free_) {
    const Block& b = blocks_.at(std::get<Address>(key));
    result = std::max(result, b.size - b.absent);
  }
  return result;
}

void CachingPool::check() const {
  const auto fail = [](const std::string& what) { throw Error("caching pool: " + what); };
  std::size_t live = 0, free_blocks = 0, tiled = 0;
  Bytes reserved = 0;
  for (const auto& [address, held] : segments_) {
    const Bytes size = held.size;
    reserved += size - held.missing;
    Bytes missing = 0;
    bool was_free = false;
    Address at = address;
    for (auto it = blocks_.find(address); at < address + static_cast<Address>(size);
         ++it, ++tiled) {
      if (it == blocks_.end() || it->first != at) fail("a segment is not tiled by its blocks");
      const Block& b = it->second;
      if (b.segment != address) fail("a block names another segment");
      const bool is_free = b.requested == 0;
      if (is_free && was_free) fail("two free neighbours were not merged");
      if (is_free && !free_.contains(key_of(it))) fail("a free block is on no shelf");
      if (b.absent != absent_in(it)) fail("the count of bytes without memory is off");
      if (!is_free && b.absent > 0) fail("a live block lacks memory");
      missing += b.absent;
      if (b.requested > b.size) fail("a block is smaller than what was asked for");
      (is_free ? free_blocks : live) += 1;
      was_free = is_free;
      at += static_cast<Address>(b.size);
    }
    if (at != address + static_cast<Address>(size)) fail("a block reaches past its segment");
    if (missing != held.missing) fail("a segment's count of bytes without memory is off");
  }
  if (tiled != blocks_.size()) fail("a block lies in no segment");
  if (free_blocks != free_.size()) fail("a shelf holds a block that is not free");
  if (live != live_) fail("the count of live blocks is off");
  if (reserved != reserved_) fail("the count of reserved bytes is off");
}

}  // namespace stalloc::runtime
