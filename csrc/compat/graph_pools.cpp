#include "compat/graph_pools.h"

#include <algorithm>

namespace stalloc::compat {

void GraphPools::open(Id id, Filter filter) {
  const std::lock_guard lock(mutex_);
  auto& pool = pools_[id];
  if (!pool) pool = std::make_unique<Pool>(device_);
  pool->filters.push_back(std::move(filter));
  ++pool->needed;
  any_.store(true, std::memory_order_release);
  open_.fetch_add(1, std::memory_order_release);
}

void GraphPools::close(Id id) {
  const std::lock_guard lock(mutex_);
  const auto pool = pools_.find(id);
  if (pool == pools_.end() || pool->second->filters.empty()) return;
  pool->second->filters.pop_back();
  open_.fetch_sub(1, std::memory_order_release);
}

void GraphPools::release(Id id) {
  const std::lock_guard lock(mutex_);
  const auto pool = pools_.find(id);
  if (pool == pools_.end()) return;
  --pool->second->needed;
  drop_if_done(pool);
}

void GraphPools::drop_if_done(Pools::iterator pool) {
  const Pool& p = *pool->second;
  if (p.needed > 0 || p.memory.live_blocks() > p.held) return;
  pools_.erase(pool);
  any_.store(!pools_.empty(), std::memory_order_release);
}

GraphPools::Served GraphPools::allocate(Bytes size, device::StreamHandle stream, StreamId id) {
  const std::lock_guard lock(mutex_);
  for (const auto& [pool_id, pool] : pools_) {
    const bool taken =
        std::ranges::any_of(pool->filters, [&](const Filter& f) { return f(stream); });
    if (!taken) continue;
    void* block = pool->memory.allocate(size, id);
    if (block) live_.emplace(block, pool_id);
    return {true, block};
  }
  return {};
}

bool GraphPools::deallocate(void* p) {
  const std::lock_guard lock(mutex_);
  const auto it = live_.find(p);
  if (it == live_.end()) return false;
  const auto pool = pools_.find(it->second);
  live_.erase(it);
  if (pool->second->recorded.erase(p) > 0) {
    ++pool->second->held;
  } else {
    pool->second->memory.deallocate(p);
  }
  drop_if_done(pool);
  return true;
}

bool GraphPools::record_stream(void* p) {
  const std::lock_guard lock(mutex_);
  const auto it = live_.find(p);
  if (it == live_.end()) return false;
  pools_.at(it->second)->recorded.insert(p);
  return true;
}

runtime::CachingPool::Segment GraphPools::segment_of(const void* p) const {
  const std::lock_guard lock(mutex_);
  for (const auto& [id, pool] : pools_) {
    if (const auto segment = pool->memory.segment_of(p); segment.begin) return segment;
  }
  return {};
}

std::vector<std::pair<GraphPools::Id, runtime::CachingPool::BlockInfo>> GraphPools::blocks() const {
  const std::lock_guard lock(mutex_);
  std::vector<std::pair<Id, runtime::CachingPool::BlockInfo>> result;
  for (const auto& [id, pool] : pools_) {
    for (const auto& block : pool->memory.blocks()) result.emplace_back(id, block);
  }
  return result;
}

}  // namespace stalloc::compat
