#include "runtime/inspection.h"

#include <utility>

namespace stalloc::runtime {

Inspection::Piece Inspection::pool_of(const void* p) const {
  const std::lock_guard lock(parts_.mutex);
  if (const Pool* pool = parts_.pools.find(p)) {
    for (const Pool::Piece& piece : pool->mapped()) {
      if (p >= piece.memory && p < piece.memory + piece.size) return {piece.memory, piece.size};
    }
  }
  const auto [begin, size] = parts_.fallback.segment_of(p);
  return {begin, size};
}

Inspection::LiveBlock Inspection::describe(const Pool& pool, Offset offset) const {
  const StaticPool::Block block = pool.space.at(offset);
  std::byte* begin = pool.address(offset);
  return {begin,        block.size,        pool.space.round_up(block.size),
          block.stream, is_waiting(begin), parts_.delayed && parts_.delayed->holds(begin)};
}

std::optional<Inspection::LiveBlock> Inspection::block_of(const void* p) const {
  const std::lock_guard lock(parts_.mutex);
  const Pool* pool = parts_.pools.find(p);
  if (!pool || pool->space.at(pool->offset_of(p)).size == StaticPool::kNotLive) return std::nullopt;
  return describe(*pool, pool->offset_of(p));
}

std::vector<Inspection::LivePool> Inspection::pools() const {
  const std::lock_guard lock(parts_.mutex);
  std::vector<LivePool> result;
  parts_.pools.visit([&](const Pool& pool) {
    if (parts_.pools.is_gone(pool)) return;  // only addresses are left
    const std::vector<Offset> offsets = pool.space.live();
    for (const Pool::Piece& piece : pool.mapped()) {
      LivePool live{{piece.memory, piece.size}, {}};
      for (const Offset offset : offsets) {
        if (offset < piece.begin || offset >= piece.begin + piece.size) continue;
        live.blocks.push_back(describe(pool, offset));
      }
      result.push_back(std::move(live));
    }
  });
  const std::vector<CachingPool::BlockInfo> blocks = parts_.fallback.blocks();
  auto block = blocks.begin();
  for (const auto& [begin, size] : parts_.fallback.segments()) {
    LivePool& live = result.emplace_back(LivePool{{begin, size}, {}});
    const void* const end = static_cast<std::byte*>(begin) + size;
    for (; block != blocks.end() && block->begin < end; ++block) {
      if (block->requested == 0) continue;
      live.blocks.push_back(
          {block->begin, block->requested, block->size, block->stream, is_waiting(block->begin)});
    }
  }
  return result;
}

void Inspection::check() const {
  const std::lock_guard lock(parts_.mutex);
  parts_.pools.check();
  parts_.fallback.check();
}

}  // namespace stalloc::runtime
