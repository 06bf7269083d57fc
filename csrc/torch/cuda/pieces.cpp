// Shows the memory held here: pools, and blocks that are pieces of their own while a profile is
// recorded.
#include <c10/cuda/CUDAGuard.h>

#include <iterator>
#include <string>
#include <utility>

#include "torch/cuda/allocator.h"
#include "torch/cuda/runtimes.h"

namespace stalloc::torch_adapters {
runtime::Inspection::Piece CudaAllocator::piece_of(void* p, c10::DeviceIndex* device) const {
  for (c10::DeviceIndex i = 0; i < runtime::DeviceRuntime::kGpus; ++i) {
    runtime::DeviceRuntime* runtime = runtime::DeviceRuntime::find_gpu(i);
    if (!runtime || !runtime->allocator().may_own(p)) continue;
    const auto piece = runtime->allocator().inspect().pool_of(p);
    if (!piece.begin) continue;
    if (device) *device = i;
    return piece;
  }
  if (directs_.load(std::memory_order_relaxed) == 0) return {};
  const std::lock_guard lock(mutex_);
  const auto after = direct_.upper_bound(p);
  if (after == direct_.begin()) return {};
  const auto& [begin, block] = *std::prev(after);
  if (p >= static_cast<std::byte*>(begin) + block.size) return {};
  if (device) *device = block.device;
  return {begin, block.size};
}

void* CudaAllocator::getBaseAllocation(void* p, size_t* size) {
  const runtime::Inspection::Piece piece = piece_of(p, nullptr);
  if (!piece.begin) return to().getBaseAllocation(p, size);
  if (size) *size = static_cast<size_t>(piece.size);
  return piece.begin;
}

allocator_api::SnapshotInfo CudaAllocator::snapshot(c10::MempoolId_t pool, bool include_traces) {
  if (history_.follows()) history_.finish_frees();
  allocator_api::SnapshotInfo info = to().snapshot(pool, include_traces);
  if (include_traces) history_.add_to(info.device_traces);
  if (pool != c10::MempoolId_t{0, 0} || hidden_.load()) return info;
  add_pools(info);
  add_directs(info);
  return info;
}

void CudaAllocator::add_pools(allocator_api::SnapshotInfo& info) const {
  for (int i = 0; i < runtime::DeviceRuntime::kGpus; ++i) {
    runtime::DeviceRuntime* runtime = runtime::DeviceRuntime::find_gpu(i);
    if (!runtime) continue;
    for (const auto& live : runtime->allocator().inspect().pools()) {
      allocator_api::SegmentInfo segment;
      const auto begin = reinterpret_cast<std::size_t>(live.piece.begin);
      segment.device = static_cast<c10::DeviceIndex>(i);
      segment.address = begin;
      segment.total_size = static_cast<std::size_t>(live.piece.size);
      segment.is_large = true;
      std::size_t at = begin;
      const auto add_idle = [&](std::size_t end) {
        if (at == end) return;
        allocator_api::BlockInfo idle;
        idle.size = end - at;
        segment.blocks.push_back(std::move(idle));
      };
      for (const auto& block : live.blocks) {
        add_idle(reinterpret_cast<std::size_t>(block.begin));
        allocator_api::BlockInfo used;
        used.size = static_cast<std::size_t>(block.rounded);
        used.requested_size = static_cast<std::size_t>(block.size);
        used.allocated = !block.waiting;
        used.active = true;
        used.context_when_allocated = history_.context_of(block.begin);
        segment.requested_size += used.requested_size;
        segment.active_size += used.size;
        if (used.allocated) segment.allocated_size += used.size;
        at = reinterpret_cast<std::size_t>(block.begin) + used.size;
        segment.blocks.push_back(std::move(used));
      }
      add_idle(begin + segment.total_size);
      info.segments.push_back(std::move(segment));
    }
  }
}

void CudaAllocator::add_directs(allocator_api::SnapshotInfo& info) const {
  const std::lock_guard lock(mutex_);
  for (const auto& [begin, block] : direct_) {
    allocator_api::SegmentInfo segment;
    segment.device = block.device;
    segment.address = reinterpret_cast<std::size_t>(begin);
    segment.total_size = segment.requested_size = segment.allocated_size = segment.active_size =
        static_cast<std::size_t>(block.size);
    segment.stream = block.stream;
    segment.is_large = true;
    segment.context_when_allocated = history_.context_of(begin);
    allocator_api::BlockInfo used;
    used.size = used.requested_size = segment.total_size;
    used.allocated = used.active = true;
    used.context_when_allocated = segment.context_when_allocated;
    segment.blocks.push_back(std::move(used));
    info.segments.push_back(std::move(segment));
  }
}

#if TORCH_VERSION_MINOR >= 13
c10::DataPtr CudaAllocator::allocateWithAddress(size_t size, void* address) {
  TORCH_CHECK(!piece_of(address, nullptr).begin, "the address ", address,
              " lies in memory that stalloc has planned, where a block of ", size,
              " bytes cannot be placed by address; disable stalloc first, or request the block "
              "that is to be restored in a torch.cuda.MemPool");
  c10::DataPtr block = to().allocateWithAddress(size, address);
  if (of_private_pool() == Record::kNoticed) adopt(block);
  return block;
}
#endif

}  // namespace stalloc::torch_adapters
