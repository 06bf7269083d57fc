#include "torch/cuda/adapter.h"

#include <c10/core/Allocator.h>
#include <c10/cuda/CUDAFunctions.h>

#include <algorithm>
#include <array>
#include <mutex>

#include "torch/cuda/allocator.h"

namespace stalloc::torch_adapters {
namespace {

// Lower priorities than the registered allocator's change nothing, and say nothing.
constexpr std::uint8_t kHighest = 255;

// Written once, by the thread that installs first, before any block of ours exists.
CudaAllocator* ours = nullptr;
c10::Allocator* registered = nullptr;  // for the device type, before ours was
// Those below the count never change.
std::array<runtime::DeviceRuntime*, runtime::DeviceRuntime::kGpus> runtimes;
std::atomic<std::size_t> count{0};

}  // namespace

CudaAllocator& installed() { return *ours; }

std::span<runtime::DeviceRuntime* const> gpu_runtimes() {
  return {runtimes.data(), count.load(std::memory_order_acquire)};
}

void install_cuda(int device) {
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  allocator_api::CUDAAllocator* current = allocator_api::allocator.load();
  TORCH_CHECK(!ours || current == ours || current == &ours->to(),
              "another library has replaced torch's CUDA allocator since stalloc was first used; "
              "stalloc cannot serve CUDA tensors beside it");
  TORCH_CHECK(current->name() != "pluggable",
              "torch's CUDA allocator has been replaced by a pluggable one, which stalloc cannot "
              "have for its fallback; do not replace it, or use stalloc's own pluggable allocator");
  TORCH_CHECK(device >= 0 && device < c10::cuda::device_count(), "there is no device cuda:", device,
              "; there are ", static_cast<int>(c10::cuda::device_count()));
  const auto made = gpu_runtimes();
  runtime::DeviceRuntime* runtime =
      &runtime::DeviceRuntime::gpu(device, runtime::PlannedAllocator::Fallback::kCallers);
  if (std::ranges::find(made, runtime) == made.end()) {
    runtimes[made.size()] = runtime;
    count.store(made.size() + 1, std::memory_order_release);
  }
  if (!ours) ours = new CudaAllocator(*current);
  ours->share_out(static_cast<c10::DeviceIndex>(device));
  if (current == ours) return;
  registered = c10::GetAllocator(c10::DeviceType::CUDA);
  allocator_api::allocator.store(ours);
  c10::SetAllocator(c10::DeviceType::CUDA, ours, kHighest);
}

bool uninstall_cuda() {
  if (!ours || allocator_api::allocator.load() != ours) return true;
  if (ours->has_blocks()) return false;
  ours->take_back_shares();
  allocator_api::allocator.store(&ours->to());
  c10::SetAllocator(c10::DeviceType::CUDA, registered, kHighest);
  return true;
}

}  // namespace stalloc::torch_adapters
