#include "replay/caching_model.h"

#include <algorithm>
#include <bit>
#include <tuple>

#include "base/align.h"
#include "base/error.h"

namespace stalloc::replay {
namespace {

constexpr Bytes kMinBlock = 512;
constexpr Bytes kSmallSize = Bytes{1} << 20;       // the largest small request
constexpr Bytes kSmallSegment = Bytes{2} << 20;    // the segment that it is cut from
constexpr Bytes kMinOwnSegment = Bytes{10} << 20;  // from here on a request has its own segment
constexpr Bytes kLargeSegment = Bytes{20} << 20;   // below, it is cut from one of these
constexpr Bytes kSegmentAlignment = Bytes{2} << 20;
constexpr int kRoundupStart = 20;  // log2 of the first interval

constexpr Offset kFirstAddress = Offset{1} << 21;

Bytes round_to_division(Bytes size, std::int64_t divisions) {
  const auto bits = static_cast<std::uint64_t>(size);
  if (size <= 4 || divisions <= 1 || std::has_single_bit(bits)) return size;
  const std::uint64_t floor = std::bit_floor(bits);
  const std::uint64_t division =
      floor >> (std::bit_width(static_cast<std::uint64_t>(divisions)) - 1);
  if (division == 0) return static_cast<Bytes>(floor << 1);
  return align_up(size, static_cast<Bytes>(division));
}

}  // namespace

bool CachingModel::BySize::operator()(const Block* a, const Block* b) const {
  return std::tie(a->stream, a->size, a->address) < std::tie(b->stream, b->size, b->address);
}

bool CachingModel::ByAddress::operator()(const Block* a, const Block* b) const {
  return std::tie(a->stream, a->address) < std::tie(b->stream, b->address);
}

CachingModel::CachingModel(const CachingSettings& settings)
    : settings_(settings), next_address_(kFirstAddress) {}

Bytes CachingModel::round(Bytes size) const {
  if (size < kMinBlock) return kMinBlock;
  const int log = std::bit_width(static_cast<std::uint64_t>(size)) - 1;
  const auto interval = std::clamp<std::size_t>(log < kRoundupStart ? 0 : log - kRoundupStart, 0,
                                                CachingSettings::kRoundupIntervals - 1);
  const std::int64_t divisions = settings_.roundup_power2_divisions[interval];
  if (divisions > 0 && size / kMinBlock >= divisions && size > kMinBlock * divisions) {
    return round_to_division(size, divisions);
  }
  return align_up(size, kMinBlock);
}

Bytes CachingModel::segment_size(Bytes size) {
  if (size <= kSmallSize) return kSmallSegment;
  if (size < kMinOwnSegment) return kLargeSegment;
  return align_up(size, kSegmentAlignment);
}

bool CachingModel::worth_splitting(const Block& block, Bytes size) const {
  const Bytes rest = block.size - size;
  if (block.small || settings_.expandable_segments) return rest >= kMinBlock;
  return size < settings_.max_split_size && rest > kSmallSize;
}

bool CachingModel::collects_garbage() const {
  return !settings_.expandable_segments && settings_.garbage_collection_threshold > 0 &&
         settings_.capacity != CachingSettings::kUnlimited;
}

CachingModel::Id CachingModel::malloc(Bytes size, StreamId stream) {
  if (size <= 0) throw Error("a request of " + std::to_string(size) + " bytes is not positive");
  Search search{round(size), stream};
  search.small = search.size <= kSmallSize;
  Block* block = find_free(search);
  if (!block) {
    if (when_short_) when_short_(size);
    if (collects_garbage()) collect_garbage();
    const auto allocate = [&] {
      return settings_.expandable_segments ? allocate_expandable(search) : allocate_segment(search);
    };
    block = allocate();
    if (!block && release_oversize(search)) block = allocate();
    if (!block) {
      empty_cache();
      ++stats_.retries;
      block = allocate();
    }
  }
  if (!block) {
    ++stats_.ooms;
    return kOutOfMemory;
  }
  return hand_out(block, search, size);
}

CachingModel::Id CachingModel::hand_out(Block* block, const Search& search, Bytes requested) {
  if (worth_splitting(*block, search.size)) {
    Block* front = new_block(search, block->address, search.size);
    front->range = block->range;
    insert_before(front, block);
    block->address += search.size;
    block->size -= search.size;
    cache(block);
    block = front;
  }
  block->live = true;
  block->requested = requested;
  stats_.requested.add(requested);
  stats_.allocated.add(block->size);
  return block->id;
}

void CachingModel::free(Id id) {
  if (id < 0 || static_cast<std::size_t>(id) >= blocks_.size() ||
      !blocks_[static_cast<std::size_t>(id)].live) {
    throw Error("block " + std::to_string(id) + " is not live");
  }
  Block* block = &blocks_[static_cast<std::size_t>(id)];
  stats_.requested.add(-block->requested);
  stats_.allocated.add(-block->size);
  block->live = false;
  block->requested = 0;
  merge(block, block->previous);
  merge(block, block->next);
  cache(block);
}

void CachingModel::empty_cache() {
  release_cached(large_);
  release_cached(small_);
}

void CachingModel::reset_peaks() {
  for (runtime::Gauge* gauge : {&stats_.requested, &stats_.allocated, &stats_.reserved}) {
    gauge->reset_peak();
  }
}

CachingModel::Block* CachingModel::new_block(const Search& search, Offset address, Bytes size) {
  Id id = static_cast<Id>(blocks_.size());
  if (unused_.empty()) {
    blocks_.emplace_back();
  } else {
    id = unused_.back();
    unused_.pop_back();
  }
  Block& block = blocks_[static_cast<std::size_t>(id)];
  block = Block{};
  block.id = id;
  block.address = address;
  block.size = size;
  block.stream = search.stream;
  block.small = search.small;
  block.in_use = true;
  return &block;
}

void CachingModel::forget(Block* block) {
  block->in_use = false;
  unused_.push_back(block->id);
}

void CachingModel::cache(Block* block) {
  block->age = pool(block->small).searches;
  pool(block->small).free.insert(block);
}

// Merges a free neighbour into a block that is in neither set. Returns false if that is impossible.
bool CachingModel::merge(Block* block, Block* neighbour) {
  if (!neighbour || neighbour->live || neighbour->mapped != block->mapped) return false;
  Pool& shelf = pool(block->small);
  if (neighbour->mapped) {
    shelf.free.erase(neighbour);
  } else {
    shelf.unmapped.erase(neighbour);
  }
  if (block->previous == neighbour) {
    block->address = neighbour->address;
    block->previous = neighbour->previous;
    if (block->previous) block->previous->next = block;
  } else {
    block->next = neighbour->next;
    if (block->next) block->next->previous = block;
  }
  block->size += neighbour->size;
  forget(neighbour);
  return true;
}

void CachingModel::insert_before(Block* block, Block* next) {
  block->previous = next->previous;
  block->next = next;
  if (block->previous) block->previous->next = block;
  next->previous = block;
}

void CachingModel::insert_after(Block* block, Block* previous) {
  block->next = previous->next;
  block->previous = previous;
  if (block->next) block->next->previous = block;
  previous->next = block;
}

Bytes CachingModel::largest_cached() const {
  Bytes largest = 0;
  for (const Pool* pool : {&small_, &large_}) {
    for (const Block* block : pool->free) largest = std::max(largest, block->size);
  }
  return largest;
}

CachingModel::Block* CachingModel::find_free(const Search& search) {
  Pool& shelf = pool(search.small);
  if (collects_garbage()) ++shelf.searches;
  Block key;
  key.stream = search.stream;
  key.size = search.size;
  auto it = shelf.free.lower_bound(&key);
  if (it == shelf.free.end() || (*it)->stream != search.stream) return nullptr;
  if ((*it)->range != kNone) {
    // The last block of an expandable segment counts as large as it can grow, so that others are
    // used up first.
    const auto expandable_size = [](const Block* b) {
      return b->size + (b->next && !b->next->mapped ? b->next->size : 0);
    };
    for (auto next = std::next(it); next != shelf.free.end() && (*next)->stream == search.stream &&
                                    expandable_size(*next) < expandable_size(*it);
         ++next) {
      it = next;
    }
  }
  Block* block = *it;
  if (search.size < settings_.max_split_size) {
    if (block->size >= settings_.max_split_size) return nullptr;
  } else if (block->size - search.size >= settings_.max_non_split_rounding) {
    return nullptr;
  }
  shelf.free.erase(it);
  return block;
}

CachingModel::Block* CachingModel::allocate_segment(const Search& search) {
  const Bytes size = segment_size(search.size);
  if (size > available()) return nullptr;
  const Offset address = next_address_;
  if (__builtin_add_overflow(address, size, &next_address_)) {
    throw OverflowError("the segments of all requests do not fit in 63 bits");
  }
  Block* block = new_block(search, address, size);
  if (placements_) placements_->take(address, size);
  stats_.reserved.add(size);
  ++stats_.mallocs;
  return block;
}

void CachingModel::release_segment(Block* block) {
  pool(block->small).free.erase(block);
  if (placements_) placements_->give_back(block->address, block->size);
  stats_.reserved.add(-block->size);
  ++stats_.frees;
  forget(block);
}

// With a largest size to split, blocks above it are given back first: one that is large enough, or
// the largest ones until their sum is.
bool CachingModel::release_oversize(const Search& search) {
  // Expandable segments are given back by chunks, and only together with everything cached.
  if (settings_.max_split_size == CachingSettings::kUnlimited || settings_.expandable_segments) {
    return false;
  }
  Pool& shelf = pool(search.small);
  Block key;
  key.stream = search.stream;
  key.size = std::max(search.size, settings_.max_split_size);
  auto it = shelf.free.lower_bound(&key);
  if (it != shelf.free.end() && (*it)->stream == search.stream) {
    release_segment(*it);
    return true;
  }
  Bytes released = 0;
  while (released < key.size && it != shelf.free.begin()) {
    Block* block = *--it;
    if (block->size < settings_.max_split_size || block->stream != search.stream) break;
    released += block->size;
    it = std::next(it);
    release_segment(block);
  }
  return released >= key.size;
}

void CachingModel::release_cached(Pool& shelf) {
  std::vector<Block*> expandable;
  for (auto it = shelf.free.begin(); it != shelf.free.end();) {
    Block* block = *it++;
    if (block->range != kNone) {
      expandable.push_back(block);
    } else if (!block->is_split()) {
      release_segment(block);
    }
  }
  for (Block* block : expandable) {
    unmap(block);
    if (!block->mapped && !block->is_split()) {
      shelf.unmapped.erase(block);
      forget(block);
    }
  }
}

// Gives wholly cached segments back, first those unused for longer than the average, until the
// threshold holds.
void CachingModel::collect_garbage() {
  const auto threshold = static_cast<Bytes>(settings_.garbage_collection_threshold *
                                            static_cast<double>(settings_.capacity));
  if (stats_.reserved.current <= threshold) return;
  const Bytes target = stats_.reserved.current - threshold;
  const auto age = [&](const Block* b) { return large_.searches - b->age; };
  std::int64_t total = 0;
  std::int64_t count = 0;
  for (const Block* b : large_.free) {
    if (b->is_split()) continue;
    total += age(b);
    ++count;
  }
  Bytes released = 0;
  for (bool found = count > 0; found && released < target && count > 0;) {
    const double average = static_cast<double>(total) / static_cast<double>(count);
    found = false;
    for (auto it = large_.free.begin(); it != large_.free.end();) {
      Block* block = *it++;
      if (block->is_split() || static_cast<double>(age(block)) < average) continue;
      found = true;
      released += block->size;
      total -= age(block);
      --count;
      release_segment(block);
    }
  }
}

}  // namespace stalloc::replay
