// Requests that stalloc makes of torch's allocator for itself: torch's statistics do not show them.
//
// Each is freed at once, so only peaks and totals have it. After one, torch's peaks are reset, and
// those from before are added to what torch counts from then on.
//
// Thread-safe. What other threads request meanwhile may be missing in peaks.
#pragma once

#include <array>
#include <cstdint>
#include <mutex>
#include <optional>

#include "base/types.h"
#include "runtime/device_runtime.h"
#include "torch/cuda/delegate.h"

namespace stalloc::torch_adapters {

class HiddenRequests {
 public:
  using DeviceStats = c10::CachingDeviceAllocator::DeviceStats;

  // A large block was requested of `torchs`, and freed; `before` is from before that.
  void hide(allocator_api::CUDAAllocator& torchs, c10::DeviceIndex device,
            const DeviceStats& before, Bytes size);
  // Corrects what torch's allocator says.
  void correct(c10::DeviceIndex device, DeviceStats& stats) const;
  void forget_peaks(c10::DeviceIndex device);
  void forget_totals(c10::DeviceIndex device);

 private:
  struct Hidden {
    std::optional<DeviceStats> peaks;  // only these
    std::int64_t requests = 0;
    std::int64_t bytes = 0;
  };

  mutable std::mutex mutex_;
  std::array<Hidden, runtime::DeviceRuntime::kGpus> hidden_;  // by device
};

}  // namespace stalloc::torch_adapters
