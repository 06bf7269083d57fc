// Lets torch's allocator give back what it caches before it takes more of a device than ever.
//
// torch takes more memory where no cached block fits, and gives back what is idle only once the
// device has none left. So a run's peak is what was live, and what was idle beside it. With thrift
// the idle pages of expandable segments go first.
//
// It costs driver calls and a wait for the streams whose pages go, but only where a run comes to a
// new peak, pools included: in its first iterations, or where batches become larger.
//
// torch asks for help by a registered callback, with the lock of one device held, which is
// recursive. To give back its caches it takes the locks of all devices. So nothing goes once memory
// of a second device was requested: its thread may wait for the lock of the first. A context on
// another device does not count: a rank over gloo may have one on the first GPU.
//
// While torch records its memory history nothing goes: it would gather the Python stack for each
// page, which takes the GIL under that lock.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>

#include "base/types.h"
#include "runtime/device_runtime.h"
#include "runtime/thrift_policy.h"
#include "torch/cuda/delegate.h"

namespace stalloc::torch_adapters {

// The only one; never destroyed. Thread-safe.
class Thrift {
 public:
  explicit Thrift(allocator_api::CUDAAllocator& native);
  Thrift(const Thrift&) = delete;
  Thrift& operator=(const Thrift&) = delete;

  // On while stalloc has turned expandable segments on.
  void set(bool on) { on_.store(on, std::memory_order_relaxed); }
  bool is_on() const { return on_.load(std::memory_order_relaxed); }
  // The calling thread asks torch's allocator for `size` bytes of `device` next.
  void note_request(c10::DeviceIndex device, Bytes size) {
    asked_ = size;
    note_use(device);
  }
  // No memory may go while a graph is captured.
  void begin_capture() { captures_.fetch_add(1, std::memory_order_relaxed); }
  // Without effect for a capture whose begin this has not seen.
  void end_capture();

  // No cached block of torch's allocator fits a request on the current device.
  void give_back();

 private:
  static std::uint64_t bit(c10::DeviceIndex device) { return std::uint64_t{1} << device; }
  void note_use(c10::DeviceIndex device) {
    if (!(used_.load(std::memory_order_relaxed) & bit(device))) used_.fetch_or(bit(device));
  }
  bool has_other_device(c10::DeviceIndex device) const {
    return (used_.load() & ~bit(device)) != 0;
  }
  bool has_served(c10::DeviceIndex device);
  runtime::ThriftPolicy::Held held_on(c10::DeviceIndex device);

  static inline thread_local Bytes asked_ = 0;
  allocator_api::CUDAAllocator& native_;
  std::atomic<bool> on_{false};
  std::atomic<int> captures_{0};
  // Devices of which torch's allocator was asked for memory. A thread sets its bit before it takes
  // the lock of its device: of two threads that find no cached block, at least one sees both bits.
  std::atomic<std::uint64_t> used_{0};
  // By device, each guarded by the lock of torch's allocator for it.
  std::array<runtime::ThriftPolicy, runtime::DeviceRuntime::kGpus> policies_{};
};

}  // namespace stalloc::torch_adapters
