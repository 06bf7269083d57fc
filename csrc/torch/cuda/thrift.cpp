#include "torch/cuda/thrift.h"

#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGraphsC10Utils.h>

#include <memory>

#include "device/cuda_memory.h"

namespace stalloc::torch_adapters {
namespace {

constexpr auto kAll = static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE);

class Callback final : public c10::FreeMemoryCallback {
 public:
  explicit Callback(Thrift& thrift) : thrift_(thrift) {}
  // True would let torch look for a cached block again.
  bool Execute() override {
    thrift_.give_back();
    return false;
  }

 private:
  Thrift& thrift_;
};

}  // namespace

Thrift::Thrift(allocator_api::CUDAAllocator& native) : native_(native) {
  for (c10::DeviceIndex device = 0; device < c10::cuda::device_count(); ++device) {
    if (native_.initialized() && has_served(device)) note_use(device);
  }
  c10::FreeCudaMemoryCallbacksRegistry()->Register(
      "stalloc", [this] { return std::unique_ptr<c10::FreeMemoryCallback>(new Callback(*this)); });
}

void Thrift::end_capture() {
  int begun = captures_.load(std::memory_order_relaxed);
  while (begun > 0 && !captures_.compare_exchange_weak(begun, begun - 1)) {
  }
}

void Thrift::give_back() {
  if (!is_on() || native_.isHistoryEnabled()) return;
  const c10::DeviceIndex device = c10::cuda::current_device();
  runtime::ThriftPolicy& policy = policies_[static_cast<std::size_t>(device)];
  if (!policy.wants(held_on(device), asked_)) return;
  if (captures_.load(std::memory_order_relaxed) > 0 || has_other_device(device)) return;
  if (c10::cuda::currentStreamCaptureStatusMayInitCtx() != c10::cuda::CaptureStatus::None) return;
  native_.emptyCache();
  policy.done(held_on(device));
}

bool Thrift::has_served(c10::DeviceIndex device) {
  return native_.getDeviceStats(device).reserved_bytes[kAll].peak > 0;
}

runtime::ThriftPolicy::Held Thrift::held_on(c10::DeviceIndex device) {
  const auto stats = native_.getDeviceStats(device);
  const Bytes reserved = stats.reserved_bytes[kAll].current;
  runtime::DeviceRuntime* const runtime = runtime::DeviceRuntime::find_gpu(device);
  const Bytes pools =
      runtime ? dynamic_cast<device::CudaMemory&>(runtime->memory()).held().all.bytes.current : 0;
  return {.reserved = reserved + pools, .idle = reserved - stats.active_bytes[kAll].current};
}

}  // namespace stalloc::torch_adapters
