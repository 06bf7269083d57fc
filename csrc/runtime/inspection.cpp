#include "runtime/inspection.h"

#include <utility>

namespace stalloc::runtime {

Inspection::Piece Inspection::pool_of(const void* p) const {
  const std::lock_guard lock(parts_.mutex);
  if (const Pool* pool = parts_.pools.find(p)) {
    for (const Pool::Piece& piece : pool->pieces()) {
      if (p >= piece.memory && p < piece.memory + piece.size) return {piece.memory, piece.size};
    }
  }
  const auto [begin, size] = parts_.fallback.segment_of(p);
  return {begin, size};
}

Bytes Inspection::block_size(const void* p) const {
  const std::lock_guard lock(parts_.mutex);
  const Pool* pool = parts_.pools.find(p);
  if (!pool) return 0;
  const Bytes size = pool->space.at(pool->offset_of(p)).size;
  return size == StaticPool::kNotLive ? 0 : pool->space.round_up(size);
}

std::vector<Inspection::LivePool> Inspection::pools() const {
  const std::lock_guard lock(parts_.mutex);
  std::vector<LivePool> result;
  parts_.pools.visit([&](const Pool& pool) {
    const std::vector<Offset> offsets = pool.space.live();
    for (const Pool::Piece& piece : pool.pieces()) {
      LivePool live{{piece.memory, piece.size}, {}};
      for (const Offset offset : offsets) {
        if (offset < piece.begin || offset >= piece.begin + piece.size) continue;
        const StaticPool::Block block = pool.space.at(offset);
        std::byte* begin = pool.address(offset);
        live.blocks.push_back(
            {begin, block.size, pool.space.round_up(block.size), block.stream, is_waiting(begin)});
      }
      result.push_back(std::move(live));
    }
  });
  const CachingPool& fallback = parts_.fallback;
  const void* segment = nullptr;
  for (const CachingPool::BlockInfo& block : fallback.blocks()) {
    if (block.segment != segment) {
      segment = block.segment;
      result.push_back({{block.segment, fallback.segment_of(segment).size}, {}});
    }
    if (block.requested == 0) continue;
    result.back().blocks.push_back(
        {block.begin, block.requested, block.size, block.stream, is_waiting(block.begin)});
  }
  return result;
}

void Inspection::check() const {
  const std::lock_guard lock(parts_.mutex);
  parts_.pools.check();
  parts_.fallback.check();
}

}  // namespace stalloc::runtime
