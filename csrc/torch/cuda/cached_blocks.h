// Tells if torch's allocator has a cached block for a request, or will take more of the device.
//
// torch tells cheaply the largest block that it caches, wherever that lies. One in a private pool,
// such as that of an optimizer's states, or on another stream serves no other request. So a
// snapshot tells those apart, but only if the largest block may be one of them. If more memory was
// taken although a block seemed to fit, the next question is answered by a snapshot, too.
//
// Cost: O(cached blocks), a snapshot O(blocks). Thread-safe.
#pragma once

#include <array>
#include <atomic>
#include <limits>

#include "base/types.h"
#include "runtime/device_runtime.h"
#include "torch/cuda/delegate.h"

namespace stalloc::torch_adapters {

class CachedBlocks {
 public:
  explicit CachedBlocks(allocator_api::CUDAAllocator& native) : native_(native) {
    for (std::atomic<Bytes>& largest : elsewhere_) largest.store(kUnknown);
  }

  // True if a block fits a request of `size` bytes outside of private pools.
  bool fit(Bytes size, c10::DeviceIndex device, const void* stream);
  // The bytes of the device that torch's allocator has.
  Bytes reserved(c10::DeviceIndex device);
  // A block seemed to fit, and torch has taken more of the device.
  void forget(c10::DeviceIndex device) { of(device).store(kUnknown, std::memory_order_relaxed); }

 private:
  static constexpr Bytes kUnknown = std::numeric_limits<Bytes>::max();

  std::atomic<Bytes>& of(c10::DeviceIndex device) {
    return elsewhere_[static_cast<std::size_t>(device)];
  }

  allocator_api::CUDAAllocator& native_;
  // By device: the largest block that serves no request like the last one.
  std::array<std::atomic<Bytes>, runtime::DeviceRuntime::kGpus> elsewhere_;
};

}  // namespace stalloc::torch_adapters
