#include "torch/cuda/adapter.h"

#include <c10/core/Allocator.h>
#include <c10/cuda/CUDAFunctions.h>

#include <mutex>
#include <string>

#include "base/error.h"
#include "torch/cuda/allocator.h"
#include "torch/cuda/runtimes.h"

namespace stalloc::torch_adapters {
namespace {

// Written once, by the thread that installs first, before any block of ours exists.
CudaAllocator* ours = nullptr;
c10::Allocator* registered = nullptr;  // for the device type, before ours

}  // namespace

void install_cuda(int device, bool hidden) {
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  allocator_api::CUDAAllocator* current = allocator_api::allocator.load();
  if (ours && current != ours && current != &ours->to()) {
    throw Error(
        "another library has replaced torch's CUDA allocator since stalloc was first used; stalloc "
        "cannot serve CUDA tensors beside it: use only one of them");
  }
  if (current->name() == "pluggable") {
    throw Error(
        "torch's CUDA allocator has been replaced by a pluggable one, which stalloc cannot have "
        "for its fallback; do not replace it, or use stalloc's own: stalloc.install_compat()");
  }
  if (device < 0 || device >= c10::cuda::device_count()) {
    throw Error("there is no device cuda:" + std::to_string(device) + "; there are " +
                std::to_string(c10::cuda::device_count()));
  }
  runtime::DeviceRuntime& runtime =
      runtime::DeviceRuntime::gpu(device, runtime::Fallback::kCallers);
  add_gpu_runtime(runtime);
  if (!ours) ours = new CudaAllocator(*current);
  ours->watch(dynamic_cast<device::CudaMemory&>(runtime.memory()));
  const auto index = static_cast<c10::DeviceIndex>(device);
  ours->share_out(index);
  if (current == ours) return;
  ours->catch_up(index, hidden);
  registered = c10::GetAllocator(c10::DeviceType::CUDA);
  allocator_api::allocator.store(ours);
  c10::SetAllocator(c10::DeviceType::CUDA, ours, kHighest);
}

bool uninstall_cuda() {
  if (!ours || allocator_api::allocator.load() != ours) return true;
  if (ours->is_needed()) return false;
  ours->take_back_shares();
  allocator_api::allocator.store(&ours->to());
  c10::SetAllocator(c10::DeviceType::CUDA, registered, kHighest);
  return true;
}

}  // namespace stalloc::torch_adapters
