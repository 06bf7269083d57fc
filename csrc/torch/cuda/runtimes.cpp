#include "torch/cuda/runtimes.h"

#include <algorithm>
#include <array>
#include <atomic>

namespace stalloc::torch_adapters {
namespace {

// Those below the count never change.
std::array<runtime::DeviceRuntime*, runtime::DeviceRuntime::kGpus> runtimes;
std::atomic<std::size_t> count{0};

}  // namespace

std::span<runtime::DeviceRuntime* const> gpu_runtimes() {
  return {runtimes.data(), count.load(std::memory_order_acquire)};
}

void add_gpu_runtime(runtime::DeviceRuntime& runtime) {
  const auto known = gpu_runtimes();
  if (std::ranges::find(known, &runtime) != known.end()) return;
  runtimes[known.size()] = &runtime;
  count.store(known.size() + 1, std::memory_order_release);
}

}  // namespace stalloc::torch_adapters
