// Adds the pools to torch's own statistics: torch.cuda.memory_allocated, memory_stats and all that
// torch derives from them.
//
// A pool counts as one segment for large blocks. Peaks of the total are exact (JointGauges). Peaks
// of large blocks alone, which torch's summary lists, are the larger of the current sum and torch's
// own peak.
#include <algorithm>

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

struct Idle {
  std::int64_t count = 0, bytes = 0;
};

// The idle blocks beside live ones. A piece that is idle as a whole is not split, as torch counts.
Idle split_idle(const runtime::Inspection& inspection) {
  Idle idle;
  for (const auto& [piece, blocks] : inspection.pools()) {
    if (blocks.empty()) continue;
    const auto* at = static_cast<const std::byte*>(piece.begin);
    const auto* const end = at + piece.size;
    const auto add_until = [&](const std::byte* next) {
      idle.count += at != next;
      idle.bytes += next - at;
    };
    for (const auto& block : blocks) {
      const auto* const begin = static_cast<const std::byte*>(block.begin);
      add_until(begin);
      at = begin + block.rounded;
    }
    add_until(end);
  }
  return idle;
}

}  // namespace

void CudaAllocator::note(c10::DeviceIndex device) {
  runtime::DeviceRuntime* runtime = runtime::DeviceRuntime::find_gpu(device);
  if (!runtime || !to().initialized()) return;
  DeviceStats stats = to().getDeviceStats(device);
  loans_.hidden().correct(device, stats);
  runtime->allocator().figures().note_fallback(sum(held_by(stats), held_directly(device)));
  limit_pools(*runtime, device, aggregate(stats.reserved_bytes).current);
}

runtime::JointGauges::Values CudaAllocator::held_directly(c10::DeviceIndex device) const {
  runtime::JointGauges::Values values{};
  if (directs_.load(std::memory_order_relaxed) == 0) return values;
  const std::lock_guard lock(mutex_);
  for (const auto& [p, block] : direct_) {
    if (block.device == device) add_direct(values, block.size);
  }
  return values;
}

DeviceStats CudaAllocator::getDeviceStats(c10::DeviceIndex device) {
  DeviceStats stats = to().getDeviceStats(device);
  loans_.hidden().correct(device, stats);
  runtime::DeviceRuntime* runtime = runtime::DeviceRuntime::find_gpu(device);
  if (!runtime) return stats;
  const runtime::JointGauges::Values direct = held_directly(device);
  runtime->allocator().figures().note_fallback(sum(held_by(stats), direct));
  const runtime::JointGauges gauges = runtime->allocator().figures().joint_gauges();
  const runtime::JointGauges::Values peaks = gauges.all_time_peaks();
  Totals before, now;
  {
    const std::lock_guard lock(mutex_);
    if (const auto it = reset_totals_.find(device); it != reset_totals_.end()) before = it->second;
    now = {sum(gauges.totals(), direct_totals_[device]), sum(gauges.ours(), direct)};
  }
  stats.num_ooms -= rescued_[static_cast<std::size_t>(device)].load();
  for (const auto& [member, quantity] : kShared) {
    const std::int64_t allocated = now.allocated[quantity] - before.allocated[quantity];
    for (Stat* stat : {&aggregate(stats.*member), &large(stats.*member)}) {
      stat->current += now.live[quantity];
      stat->allocated += allocated;
      stat->freed += allocated - (now.live[quantity] - before.live[quantity]);
      stat->peak = std::max(stat->peak, stat->current);
    }
    Stat& all = aggregate(stats.*member);
    all.peak = std::max(all.peak, peaks[quantity]);
  }
  const Idle idle = split_idle(runtime->allocator().inspect());
  for (const auto& [member, value] : {std::pair(&DeviceStats::inactive_split, idle.count),
                                      std::pair(&DeviceStats::inactive_split_bytes, idle.bytes)}) {
    for (Stat* stat : {&aggregate(stats.*member), &large(stats.*member)}) {
      stat->current += value;
      stat->peak = std::max(stat->peak, stat->current);
    }
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
  has_fractions_.store(true);
  const auto total = static_cast<double>(memory.total());
  DeviceStats stats = to().getDeviceStats(device);
  loans_.hidden().correct(device, stats);
  limit_pools(*runtime, device, aggregate(stats.reserved_bytes).current);
  const auto ours = static_cast<double>(memory.held().all.bytes.current);
  to().setMemoryFraction(std::max(fraction - ours / total, 0.0), device);
}

void CudaAllocator::follow_share(c10::DeviceIndex device) {
  std::atomic<bool>& changed = shares_changed_[static_cast<std::size_t>(device)];
  if (changed.load(std::memory_order_relaxed) && changed.exchange(false)) share_out(device);
}

void CudaAllocator::limit_pools(runtime::DeviceRuntime& runtime, c10::DeviceIndex device,
                                Bytes theirs) {
  if (!has_fractions_.load(std::memory_order_relaxed)) return;
  const double fraction = getMemoryFraction(device);
  if (fraction >= 1) return;
  auto& memory = dynamic_cast<device::CudaMemory&>(runtime.memory());
  const auto ours = static_cast<Bytes>(fraction * static_cast<double>(memory.total())) - theirs;
  memory.set_limit(std::max(ours, Bytes{1}));
}

void CudaAllocator::take_back_shares() {
  const std::lock_guard lock(mutex_);
  for (const auto& [device, fraction] : fractions_) {
    to().setMemoryFraction(fraction, static_cast<c10::DeviceIndex>(device));
    runtime::DeviceRuntime* runtime = runtime::DeviceRuntime::find_gpu(device);
    if (runtime) dynamic_cast<device::CudaMemory&>(runtime->memory()).set_limit(0);
  }
  fractions_.clear();
  has_fractions_.store(false);
}

void CudaAllocator::resetAccumulatedStats(c10::DeviceIndex device) {
  to().resetAccumulatedStats(device);
  loans_.hidden().forget_totals(device);
  runtime::DeviceRuntime* runtime = runtime::DeviceRuntime::find_gpu(device);
  if (!runtime) return;
  rescued_[static_cast<std::size_t>(device)].store(0);
  const runtime::JointGauges gauges = runtime->allocator().figures().joint_gauges();
  const runtime::JointGauges::Values direct = held_directly(device);
  const std::lock_guard lock(mutex_);
  reset_totals_[device] = {sum(gauges.totals(), direct_totals_[device]),
                           sum(gauges.ours(), direct)};
}

void CudaAllocator::resetPeakStats(c10::DeviceIndex device) {
  to().resetPeakStats(device);
  loans_.hidden().forget_peaks(device);
  note(device);
  if (runtime::DeviceRuntime* runtime = runtime::DeviceRuntime::find_gpu(device)) {
    runtime->allocator().figures().reset_peaks();
  }
}

}  // namespace stalloc::torch_adapters
