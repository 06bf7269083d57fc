// Adds the pools to torch's own statistics: torch.cuda.memory_allocated, memory_stats,
// memory_snapshot and all that torch derives from them.
//
// A pool counts as one segment for large blocks. Peaks of the total are exact (JointGauges). Peaks
// of large blocks alone, which torch's summary lists, are the larger of the current sum and torch's
// own peak.
#include <cuda_runtime_api.h>

#include <algorithm>

#include "base/error.h"
#include "device/cuda_memory.h"
#include "torch/cuda/allocator.h"
#include "torch/cuda/runtimes.h"

namespace stalloc::torch_adapters {
namespace {

using c10::CachingAllocator::Stat;
using c10::CachingAllocator::StatArray;
using c10::CachingAllocator::StatType;
using c10::CachingDeviceAllocator::DeviceStats;

Stat& aggregate(StatArray& stats) { return stats[static_cast<std::size_t>(StatType::AGGREGATE)]; }
Stat& large(StatArray& stats) { return stats[static_cast<std::size_t>(StatType::LARGE_POOL)]; }

runtime::JointGauges::Values held_by(DeviceStats& stats) {
  runtime::JointGauges::Values values{};
  values[runtime::JointGauges::kBlocks] = aggregate(stats.allocation).current;
  values[runtime::JointGauges::kRequested] = aggregate(stats.requested_bytes).current;
  values[runtime::JointGauges::kRounded] = aggregate(stats.allocated_bytes).current;
  values[runtime::JointGauges::kActiveBlocks] = aggregate(stats.active).current;
  values[runtime::JointGauges::kActiveBytes] = aggregate(stats.active_bytes).current;
  values[runtime::JointGauges::kReserved] = aggregate(stats.reserved_bytes).current;
  values[runtime::JointGauges::kSegments] = aggregate(stats.segment).current;
  return values;
}

runtime::JointGauges::Values sum(const runtime::JointGauges::Values& a,
                                 const runtime::JointGauges::Values& b) {
  runtime::JointGauges::Values result{};
  for (std::size_t q = 0; q < result.size(); ++q) result[q] = a[q] + b[q];
  return result;
}

// The parts of DeviceStats that pools contribute to.
constexpr std::array<std::pair<StatArray DeviceStats::*, runtime::JointGauges::Quantity>, 7>
    kShared = {{
        {&DeviceStats::allocation, runtime::JointGauges::kBlocks},
        {&DeviceStats::requested_bytes, runtime::JointGauges::kRequested},
        {&DeviceStats::allocated_bytes, runtime::JointGauges::kRounded},
        {&DeviceStats::active, runtime::JointGauges::kActiveBlocks},
        {&DeviceStats::active_bytes, runtime::JointGauges::kActiveBytes},
        {&DeviceStats::reserved_bytes, runtime::JointGauges::kReserved},
        {&DeviceStats::segment, runtime::JointGauges::kSegments},
    }};

}  // namespace

void CudaAllocator::note(c10::DeviceIndex device) {
  runtime::DeviceRuntime* runtime = runtime::DeviceRuntime::find_gpu(device);
  if (!runtime || !to().initialized()) return;
  DeviceStats stats = to().getDeviceStats(device);
  runtime->allocator().figures().note_fallback(sum(held_by(stats), held_directly(device)));
}

runtime::JointGauges::Values CudaAllocator::held_directly(c10::DeviceIndex device) const {
  runtime::JointGauges::Values values{};
  if (directs_.load(std::memory_order_relaxed) == 0) return values;
  const runtime::DeviceRuntime* runtime = runtime::DeviceRuntime::find_gpu(device);
  const std::lock_guard lock(mutex_);
  for (const auto& [p, block] : direct_) {
    if (block.runtime != runtime) continue;
    for (const auto q : {runtime::JointGauges::kBlocks, runtime::JointGauges::kActiveBlocks,
                         runtime::JointGauges::kSegments}) {
      values[q] += 1;
    }
    for (const auto q : {runtime::JointGauges::kRequested, runtime::JointGauges::kRounded,
                         runtime::JointGauges::kActiveBytes, runtime::JointGauges::kReserved}) {
      values[q] += block.size;
    }
  }
  return values;
}

DeviceStats CudaAllocator::getDeviceStats(c10::DeviceIndex device) {
  DeviceStats stats = to().getDeviceStats(device);
  runtime::DeviceRuntime* runtime = runtime::DeviceRuntime::find_gpu(device);
  if (!runtime) return stats;
  const runtime::JointGauges::Values direct = held_directly(device);
  runtime->allocator().figures().note_fallback(sum(held_by(stats), direct));
  const runtime::JointGauges gauges = runtime->allocator().figures().joint_gauges();
  const runtime::JointGauges::Values peaks = gauges.all_time_peaks();
  runtime::JointGauges::Values before{};
  {
    const std::lock_guard lock(mutex_);
    if (const auto it = reset_totals_.find(device); it != reset_totals_.end()) before = it->second;
  }
  for (const auto& [member, quantity] : kShared) {
    const std::int64_t ours = gauges.ours()[quantity];
    const std::int64_t allocated = gauges.totals()[quantity] - before[quantity];
    for (Stat* stat : {&aggregate(stats.*member), &large(stats.*member)}) {
      stat->current += ours + direct[quantity];
      stat->allocated += allocated;
      stat->freed += allocated - ours;
      stat->peak = std::max(stat->peak, stat->current);
    }
    Stat& all = aggregate(stats.*member);
    all.peak = std::max(all.peak, peaks[quantity]);
  }
  const Bytes idle = gauges.ours()[runtime::JointGauges::kReserved] -
                     gauges.ours()[runtime::JointGauges::kActiveBytes];
  for (Stat* stat : {&aggregate(stats.inactive_split_bytes), &large(stats.inactive_split_bytes)}) {
    stat->current += idle;
    stat->peak = std::max(stat->peak, stat->current);
  }
  return stats;
}

void CudaAllocator::setMemoryFraction(double fraction, c10::DeviceIndex device) {
  to().setMemoryFraction(fraction, device);  // throws for an invalid fraction
  {
    const std::lock_guard lock(mutex_);
    fractions_[device] = fraction;
  }
  share_out(device);
}

double CudaAllocator::getMemoryFraction(c10::DeviceIndex device) {
  {
    const std::lock_guard lock(mutex_);
    if (const auto it = fractions_.find(device); it != fractions_.end()) return it->second;
  }
  return to().getMemoryFraction(device);
}

void CudaAllocator::share_out(c10::DeviceIndex device) {
  runtime::DeviceRuntime* runtime = runtime::DeviceRuntime::find_gpu(device);
  const double fraction = getMemoryFraction(device);
  if (!runtime) return;
  auto& memory = dynamic_cast<device::CudaMemory&>(runtime->memory());
  if (fraction >= 1) {
    memory.set_limit(0);
    return;
  }
  {
    const std::lock_guard lock(mutex_);
    fractions_.emplace(device, fraction);
  }
  const auto total = static_cast<double>(memory.total());
  DeviceStats stats = to().getDeviceStats(device);
  const auto theirs = static_cast<double>(aggregate(stats.reserved_bytes).current);
  memory.set_limit(std::max(static_cast<Bytes>(fraction * total - theirs), Bytes{1}));
  const auto ours = static_cast<double>(memory.held().all.bytes.current);
  to().setMemoryFraction(std::max(fraction - ours / total, 0.0), device);
}

void CudaAllocator::take_back_shares() {
  const std::lock_guard lock(mutex_);
  for (const auto& [device, fraction] : fractions_) {
    to().setMemoryFraction(fraction, static_cast<c10::DeviceIndex>(device));
    runtime::DeviceRuntime* runtime = runtime::DeviceRuntime::find_gpu(device);
    if (runtime) dynamic_cast<device::CudaMemory&>(runtime->memory()).set_limit(0);
  }
  fractions_.clear();
}

void CudaAllocator::resetAccumulatedStats(c10::DeviceIndex device) {
  to().resetAccumulatedStats(device);
  runtime::DeviceRuntime* runtime = runtime::DeviceRuntime::find_gpu(device);
  if (!runtime) return;
  const runtime::JointGauges::Values totals =
      runtime->allocator().figures().joint_gauges().totals();
  const std::lock_guard lock(mutex_);
  reset_totals_[device] = totals;
}

void CudaAllocator::resetPeakStats(c10::DeviceIndex device) {
  to().resetPeakStats(device);
  note(device);
  if (runtime::DeviceRuntime* runtime = runtime::DeviceRuntime::find_gpu(device)) {
    runtime->allocator().figures().reset_peaks();
  }
}

allocator_api::SnapshotInfo CudaAllocator::snapshot(c10::MempoolId_t pool, bool include_traces) {
  allocator_api::SnapshotInfo info = to().snapshot(pool, include_traces);
  if (pool != c10::MempoolId_t{0, 0}) return info;
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
  return info;
}

// torch's handle is a few bytes of type, which depend on the version of torch, followed by CUDA's
// handle of the whole segment. The type is copied from a handle that torch makes.
allocator_api::ShareableHandle CudaAllocator::shareIpcHandle(void* p) {
  runtime::Inspection::Piece piece;
  for (runtime::DeviceRuntime* runtime : gpu_runtimes()) {
    if (runtime->allocator().may_own(p)) piece = runtime->allocator().inspect().pool_of(p);
    if (piece.begin) break;
  }
  if (!piece.begin) return to().shareIpcHandle(p);
  void* probe = to().raw_alloc(1);
  allocator_api::ShareableHandle handle = to().shareIpcHandle(probe);
  to().raw_delete(probe);
  cudaIpcMemHandle_t whole;
  const bool is_shareable = handle.handle.size() >= sizeof(whole) &&
                            cudaIpcGetMemHandle(&whole, piece.begin) == cudaSuccess;
  if (!is_shareable) static_cast<void>(cudaGetLastError());  // else the next kernel reports it
  TORCH_CHECK(
      is_shareable,
      "a tensor in stalloc's pool cannot be shared with another process here: neither the "
      "pool nor torch's allocator may use virtual memory (expandable_segments) for that. "
      "Clone the tensor under stalloc.hooks.unplanned(), or disable stalloc, and share that");
  handle.offset = static_cast<char*>(p) - static_cast<char*>(piece.begin);
  handle.handle.replace(handle.handle.size() - sizeof(whole), sizeof(whole),
                        reinterpret_cast<const char*>(&whole), sizeof(whole));
  return handle;
}

}  // namespace stalloc::torch_adapters
