#include "replay/stitching_model.h"

#include <algorithm>
#include <limits>
#include <string>
#include <tuple>
#include <utility>

#include "base/error.h"

namespace stalloc::replay {
namespace {

constexpr Bytes kChunk = Bytes{2} << 20;
constexpr Bytes kLargestSmall = Bytes{1} << 20;
constexpr Bytes kOwnSegment = Bytes{10} << 20;
constexpr Bytes kSharedSegment = Bytes{20} << 20;

}  // namespace

bool StitchingModel::BySize::operator()(const Block* a, const Block* b) const {
  return std::tie(a->stream, a->count, a->first) < std::tie(b->stream, b->count, b->first);
}

bool StitchingModel::BySize::operator()(const Range* a, const Range* b) const {
  return std::tie(a->stream, a->count, a->order) < std::tie(b->stream, b->count, b->order);
}

StitchingModel::StitchingModel(const StitchingSettings& settings)
    : settings_(settings), small_(CachingSettings{.capacity = settings.capacity}) {}

StitchingModel::Id StitchingModel::malloc(Bytes size, StreamId stream) {
  if (size > std::numeric_limits<Bytes>::max() - kChunk) {
    throw OverflowError("a request of " + std::to_string(size) + " bytes cannot be rounded up");
  }
  Live live{.requested = size};
  const bool served =
      size <= kLargestSmall ? allocate_small(live, stream) : allocate_large(live, stream);
  if (!served) {
    update_stats(0, 0);
    ++stats_.ooms;
    return kOutOfMemory;
  }
  update_stats(live.requested, live.rounded);
  if (unused_.empty()) {
    live_.push_back(live);
    return static_cast<Id>(live_.size()) - 1;
  }
  const Id id = unused_.back();
  unused_.pop_back();
  live_[static_cast<std::size_t>(id)] = live;
  return id;
}

void StitchingModel::free(Id id) {
  const auto index = static_cast<std::size_t>(id);
  if (id < 0 || index >= live_.size() || live_[index].requested == 0) {
    throw Error("block " + std::to_string(id) + " is not live");
  }
  const Live live = std::exchange(live_[index], Live{});
  unused_.push_back(id);
  if (live.block) {
    give_back(live.block);
  } else if (live.range) {
    give_back(live.range);
  } else {
    small_.free(live.small);
  }
  update_stats(-live.requested, -live.rounded);
}

bool StitchingModel::allocate_small(Live& live, StreamId stream) {
  const auto attempt = [&] {
    const Bytes before = small_.stats().allocated.current;
    small_.set_withheld(large_);
    live.small = small_.malloc(live.requested, stream);
    live.rounded = small_.stats().allocated.current - before;
    return live.small != CachingModel::kOutOfMemory;
  };
  if (attempt()) return true;
  release_cached();
  return attempt();
}

bool StitchingModel::allocate_large(Live& live, StreamId stream) {
  const std::int64_t count = (live.requested + kChunk - 1) / kChunk;
  live.rounded = count * kChunk;
  if ((live.block = best_fit(stream, count))) {
    take(live.block, count);
  } else if ((live.range = best_range(stream, count))) {
    take(live.range, count);
  } else if ((live.range = stitch(stream, count))) {
    // whose chunks it has taken
  } else {
    live.block = grow(stream, count);
    if (!live.block) {
      ++stats_.retries;
      release_cached();
      live.block = grow(stream, count);
    }
    if (!live.block) return false;
    take(live.block, count);
  }
  return true;
}

StitchingModel::Block* StitchingModel::best_fit(StreamId stream, std::int64_t count) const {
  Block key{.count = count, .stream = stream};
  const auto found = free_.lower_bound(&key);
  return found != free_.end() && (*found)->stream == stream ? *found : nullptr;
}

StitchingModel::Range* StitchingModel::best_range(StreamId stream, std::int64_t count) const {
  Range key{.stream = stream, .count = count};
  const auto found = idle_.lower_bound(&key);
  if (found == idle_.end() || (*found)->stream != stream) return nullptr;
  const auto most = static_cast<double>(count) * settings_.reuse_limit;
  return static_cast<double>((*found)->count) <= most ? *found : nullptr;
}

// Stitches free blocks, the largest first, and takes them.
StitchingModel::Range* StitchingModel::stitch(StreamId stream, std::int64_t count) {
  if (count * kChunk < settings_.fragment_limit) return nullptr;
  Block key{.count = std::numeric_limits<std::int64_t>::max(), .stream = stream};
  std::vector<Block*> pieces;
  std::int64_t sum = 0;
  for (auto it = free_.lower_bound(&key); it != free_.begin() && sum < count;) {
    Block* block = *--it;
    if (block->stream != stream) break;
    pieces.push_back(block);
    sum += block->count;
  }
  if (sum < count) return nullptr;
  Range* range = &ranges_[made_];
  range->order = made_++;
  range->stream = stream;
  range->count = count;
  for (Block* block : pieces) {
    const auto missing = count - static_cast<std::int64_t>(range->chunks.size());
    take(block, std::min(block->count, missing));
    for (std::int64_t i = 0; i < block->count; ++i) range->chunks.push_back(block->first + i);
  }
  for (const std::int64_t chunk : range->chunks) at(chunk).ranges.push_back(range);
  range->used = range->held = count;
  maps_ += count;
  stitched_ += count * kChunk;
  if (stitched_ > settings_.stitched_limit) unmap_unused_ranges();
  return range;
}

// Makes a segment of one free block; null if the device has too little memory.
StitchingModel::Block* StitchingModel::grow(StreamId stream, std::int64_t count) {
  const Bytes size = count * kChunk < kOwnSegment ? kSharedSegment : count * kChunk;
  if (size > settings_.capacity - large_ - small_.stats().reserved.current) return nullptr;
  const auto first = static_cast<std::int64_t>(chunks_.size());
  chunks_.resize(chunks_.size() + static_cast<std::size_t>(size / kChunk));
  Block* block = new_block({.first = first, .count = size / kChunk, .stream = stream});
  free_.insert(block);
  large_ += size;
  maps_ += block->count;
  return block;
}

StitchingModel::Block* StitchingModel::new_block(const Block& block) {
  Block* made = &(blocks_[block.first] = block);
  for (std::int64_t i = 0; i < block.count; ++i) at(block.first + i).block = made;
  return made;
}

// Takes the first chunks of a free block. The rest is another free block.
void StitchingModel::take(Block* block, std::int64_t count) {
  free_.erase(block);
  if (count < block->count) {
    cut(block, count);
    free_.insert(block->next);
  }
  block->live = true;
  for (std::int64_t i = 0; i < count; ++i) use(block->first + i);
}

void StitchingModel::take(Range* range, std::int64_t count) {
  idle_.erase(range);
  range->held = count;
  for (std::int64_t i = 0; i < count; ++i) use(range->chunks[static_cast<std::size_t>(i)]);
  for (std::int64_t i = 0; i < count; ++i) {
    Block* block = at(range->chunks[static_cast<std::size_t>(i)]).block;
    if (!block->live) divide(block);
  }
}

void StitchingModel::give_back(Block* block) {
  for (std::int64_t i = 0; i < block->count; ++i) leave(block->first + i);
  block->live = false;
  if (block->next && !block->next->live) {
    free_.erase(block->next);
    merge(block, block->next);
  }
  if (Block* before = block->previous; before && !before->live) {
    free_.erase(before);
    merge(before, block);
    block = before;
  }
  free_.insert(block);
}

void StitchingModel::give_back(Range* range) {
  // The blocks of its chunks belong to it alone: take() has divided them so.
  for (std::int64_t i = 0; i < range->held; ++i) {
    const Chunk& chunk = at(range->chunks[static_cast<std::size_t>(i)]);
    if (chunk.used) give_back(chunk.block);
  }
  range->held = 0;
  if (range->goes) {
    unmap(range);
  } else if (range->used == 0) {
    idle_.insert(range);
  }
}

// Cuts a block in two, of which the first has `count` chunks.
void StitchingModel::cut(Block* block, std::int64_t count) {
  Block* rest = new_block({.first = block->first + count,
                           .count = block->count - count,
                           .stream = block->stream,
                           .previous = block,
                           .next = block->next});
  if (rest->next) rest->next->previous = rest;
  block->next = rest;
  block->count = count;
}

// Cuts a free block, some of whose chunks a range has taken, where they begin and end.
void StitchingModel::divide(Block* block) {
  free_.erase(block);
  for (Block* rest = block; rest; block = rest) {
    const auto used = [&](std::int64_t i) { return at(block->first + i).used; };
    std::int64_t run = 1;
    while (run < block->count && used(run) == used(0)) ++run;
    rest = nullptr;
    if (run < block->count) {
      cut(block, run);
      rest = block->next;
    }
    block->live = used(0);
    if (!block->live) free_.insert(block);
  }
}

void StitchingModel::merge(Block* block, Block* next) {
  for (std::int64_t i = 0; i < next->count; ++i) at(next->first + i).block = block;
  block->count += next->count;
  block->next = next->next;
  if (block->next) block->next->previous = block;
  blocks_.erase(next->first);
}

void StitchingModel::use(std::int64_t chunk) {
  at(chunk).used = true;
  for (Range* range : at(chunk).ranges) {
    if (range->used++ == 0 && range->held == 0) idle_.erase(range);
  }
}

void StitchingModel::leave(std::int64_t chunk) {
  at(chunk).used = false;
  for (Range* range : at(chunk).ranges) {
    if (--range->used == 0 && range->held == 0) idle_.insert(range);
  }
}

void StitchingModel::unmap(Range* range) {
  for (const std::int64_t chunk : range->chunks) std::erase(at(chunk).ranges, range);
  idle_.erase(range);
  unmaps_ += range->count;
  ranges_.erase(range->order);
}

void StitchingModel::unmap_unused_ranges() {
  for (auto it = ranges_.begin(); it != ranges_.end();) {
    Range& range = (it++)->second;
    if (range.held > 0) continue;
    stitched_ -= range.count * kChunk;
    unmap(&range);
  }
}

// Gives the segments that are wholly free back to the device, and the ranges that use them.
void StitchingModel::release_cached() {
  small_.empty_cache();
  for (auto it = free_.begin(); it != free_.end();) {
    Block* block = *it;
    if (block->previous || block->next) {
      ++it;
      continue;
    }
    it = free_.erase(it);
    for (std::int64_t i = 0; i < block->count; ++i) {
      Chunk& chunk = at(block->first + i);
      for (Range* range : std::vector(chunk.ranges)) {
        if (range->held > 0) {
          range->goes = true;
        } else {
          unmap(range);
        }
      }
      chunk.block = nullptr;
    }
    large_ -= block->count * kChunk;
    unmaps_ += block->count;
    blocks_.erase(block->first);
  }
}

void StitchingModel::reset_peaks() {
  stats_.requested.reset_peak();
  stats_.allocated.reset_peak();
  stats_.reserved.reset_peak();
}

void StitchingModel::update_stats(Bytes requested, Bytes rounded) {
  const CachingStats& small = small_.stats();
  stats_.requested.add(requested);
  stats_.allocated.add(rounded);
  stats_.reserved.add(small.reserved.current + large_ - stats_.reserved.current);
  stats_.mallocs = small.mallocs;
  stats_.frees = small.frees;
  stats_.maps = maps_;
  stats_.unmaps = unmaps_;
}

std::vector<std::int64_t> StitchingModel::chunks(Id id) const {
  const Live& live = live_.at(static_cast<std::size_t>(id));
  if (live.range)
    return {live.range->chunks.begin(), live.range->chunks.begin() + live.range->held};
  std::vector<std::int64_t> found;
  for (std::int64_t i = 0; live.block && i < live.block->count; ++i) {
    found.push_back(live.block->first + i);
  }
  return found;
}

void StitchingModel::check() const {
  const auto fail = [](const std::string& what) { throw Error("stitching model: " + what); };
  small_.check();
  Bytes reserved = 0;
  std::size_t free_blocks = 0;
  for (std::size_t i = 0; i < chunks_.size(); ++i) {
    const Chunk& chunk = chunks_[i];
    if (!chunk.block) {
      if (chunk.used) fail("a chunk that is gone is in use");
      continue;
    }
    reserved += kChunk;
    const Block& block = *chunk.block;
    const auto place = static_cast<std::int64_t>(i) - block.first;
    if (place < 0 || place >= block.count) fail("a chunk lies outside of its block");
    if (chunk.used != block.live) fail("a block is in use in part");
    if (place > 0) continue;
    if (block.next && block.next->first != block.first + block.count) {
      fail("a segment is not tiled by its blocks");
    }
    if (block.next && !block.live && !block.next->live) {
      fail("two free neighbours were not merged");
    }
    if (free_.contains(chunk.block) == block.live) fail("a block is in the wrong set");
    free_blocks += !block.live;
  }
  if (reserved != large_ || free_blocks != free_.size()) fail("the counts of blocks are off");
  std::size_t idle = 0;
  for (const auto& [_, range] : ranges_) {
    const auto used =
        std::ranges::count_if(range.chunks, [&](std::int64_t chunk) { return at(chunk).used; });
    if (used != range.used || used < range.held) fail("the chunks in use are off");
    if (idle_.contains(const_cast<Range*>(&range)) != (used == 0)) {
      fail("a range is in the wrong set");
    }
    idle += used == 0;
  }
  if (idle != idle_.size()) fail("a set holds what is no range");
  if (reserved + small_.stats().reserved.current != stats_.reserved.current ||
      stats_.reserved.current > settings_.capacity) {
    fail("the counts of bytes are off");
  }
}

}  // namespace stalloc::replay
