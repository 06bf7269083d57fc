#include "torch/cuda/cached_blocks.h"

#include <algorithm>

namespace stalloc::torch_adapters {

bool CachedBlocks::fit(Bytes size, c10::DeviceIndex device, const void* stream) {
  std::size_t found = 1;  // torch takes 0 for a question about free memory
  native_.cacheInfo(device, &found);
  const auto largest = static_cast<Bytes>(found);
  if (largest < size) return false;
  if (largest > of(device).load(std::memory_order_relaxed)) return true;
  Bytes here = 0, elsewhere = 0;
  for (const auto& segment : native_.snapshot({0, 0}, /*include_traces=*/false).segments) {
    if (segment.device != device) continue;
    const bool serves =
        segment.stream == stream && segment.owner_private_pool_id == c10::MempoolId_t{0, 0};
    Bytes& most = serves ? here : elsewhere;
    for (const auto& block : segment.blocks) {
      if (!block.active) most = std::max(most, static_cast<Bytes>(block.size));
    }
  }
  of(device).store(elsewhere, std::memory_order_relaxed);
  return here >= size;
}

Bytes CachedBlocks::reserved(c10::DeviceIndex device) {
  constexpr auto kAll = static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE);
  return native_.getDeviceStats(device).reserved_bytes[kAll].current;
}

}  // namespace stalloc::torch_adapters
