#include "torch/cuda/hidden_requests.h"

#include <algorithm>
#include <cstddef>
#include <utility>

namespace stalloc::torch_adapters {
namespace {

using c10::CachingAllocator::Stat;
using c10::CachingAllocator::StatArray;
using DeviceStats = HiddenRequests::DeviceStats;

// A block that is freed at once adds to these, beside peaks and totals of segments, which stay.
constexpr std::array kOfBlocks = {&DeviceStats::allocation, &DeviceStats::active};
constexpr std::array kOfBytes = {&DeviceStats::allocated_bytes, &DeviceStats::active_bytes,
                                 &DeviceStats::requested_bytes};
constexpr std::array kOthers = {&DeviceStats::segment, &DeviceStats::reserved_bytes,
                                &DeviceStats::inactive_split, &DeviceStats::inactive_split_bytes};

void raise_peaks(StatArray& stats, const StatArray& others) {
  for (std::size_t i = 0; i < stats.size(); ++i) {
    stats[i].peak = std::max(stats[i].peak, others[i].peak);
  }
}

void raise_peaks(DeviceStats& stats, const DeviceStats& others) {
  for (const auto member : kOfBlocks) raise_peaks(stats.*member, others.*member);
  for (const auto member : kOfBytes) raise_peaks(stats.*member, others.*member);
  for (const auto member : kOthers) raise_peaks(stats.*member, others.*member);
  for (const auto member : {&DeviceStats::oversize_allocations, &DeviceStats::oversize_segments}) {
    (stats.*member).peak = std::max((stats.*member).peak, (others.*member).peak);
  }
}

void take_from_totals(StatArray& stats, std::int64_t value) {
  using c10::CachingAllocator::StatType;
  for (const StatType type : {StatType::AGGREGATE, StatType::LARGE_POOL}) {
    Stat& stat = stats[static_cast<std::size_t>(type)];
    stat.allocated -= value;
    stat.freed -= value;
  }
}

}  // namespace

void HiddenRequests::hide(allocator_api::CUDAAllocator& torchs, c10::DeviceIndex device,
                          const DeviceStats& before, Bytes size) {
  const DeviceStats after = torchs.getDeviceStats(device);
  torchs.resetPeakStats(device);
  DeviceStats peaks = before;
  for (const auto member : kOthers) peaks.*member = after.*member;
  const std::lock_guard lock(mutex_);
  Hidden& hidden = hidden_[static_cast<std::size_t>(device)];
  if (hidden.peaks) raise_peaks(peaks, *hidden.peaks);
  hidden.peaks = std::move(peaks);
  hidden.requests += 1;
  hidden.bytes += size;
}

void HiddenRequests::correct(c10::DeviceIndex device, DeviceStats& stats) const {
  const std::lock_guard lock(mutex_);
  const Hidden& hidden = hidden_[static_cast<std::size_t>(device)];
  if (hidden.peaks) raise_peaks(stats, *hidden.peaks);
  for (const auto member : kOfBlocks) take_from_totals(stats.*member, hidden.requests);
  for (const auto member : kOfBytes) take_from_totals(stats.*member, hidden.bytes);
}

void HiddenRequests::forget_peaks(c10::DeviceIndex device) {
  const std::lock_guard lock(mutex_);
  hidden_[static_cast<std::size_t>(device)].peaks.reset();
}

void HiddenRequests::forget_totals(c10::DeviceIndex device) {
  const std::lock_guard lock(mutex_);
  Hidden& hidden = hidden_[static_cast<std::size_t>(device)];
  hidden.requests = hidden.bytes = 0;
}

}  // namespace stalloc::torch_adapters
