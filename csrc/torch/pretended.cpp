// A GPU that only pretends. Autograd asks the guard of a tensor's device for its stream. Without a
// GPU there is no guard to ask, or, in a CUDA build, one that finds no device.
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <atomic>
#include <cstddef>

#include "torch/adapters.h"

namespace stalloc::torch_adapters {
namespace {

using Guard = c10::impl::DeviceGuardImplInterface;

// No device is there: torch would look for its context. Tensors need only a stream.
class PretendedGuard final : public c10::impl::NoOpDeviceGuardImpl<c10::DeviceType::CUDA> {
 public:
  c10::DeviceIndex deviceCount() const noexcept override { return 0; }
};

const Guard* pretended_guard() {
  static const auto* guard = new PretendedGuard;
  return guard;
}

std::atomic<const Guard*>& cuda_guard() {
  return c10::impl::device_guard_impl_registry[static_cast<std::size_t>(c10::DeviceType::CUDA)];
}

// The guard of a CUDA build that finds no GPU; null in other builds.
const Guard* replaced = nullptr;

}  // namespace

void pretend_gpu() {
  const Guard* there = cuda_guard().load();
  if (there == pretended_guard() || (there && there->deviceCount() > 0)) return;
  replaced = there;
  cuda_guard().store(pretended_guard());
}

void pretend_no_gpu() {
  if (cuda_guard().load() == pretended_guard()) cuda_guard().store(replaced);
}

}  // namespace stalloc::torch_adapters
