// A GPU that only pretends. Autograd asks the guard of a tensor's device for its stream; without a
// GPU there is no guard to ask. torch has a guard for such tensors, and sets it in CUDA builds
// only.
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <cstddef>

#include "torch/adapters.h"

namespace stalloc::torch_adapters {
namespace {

const c10::impl::DeviceGuardImplInterface* pretended_guard() {
  static const auto* guard = new c10::impl::NoOpDeviceGuardImpl<c10::DeviceType::CUDA>();
  return guard;
}

auto& cuda_guard() {
  return c10::impl::device_guard_impl_registry[static_cast<std::size_t>(c10::DeviceType::CUDA)];
}

}  // namespace

void pretend_gpu() {
  const c10::impl::DeviceGuardImplInterface* none = nullptr;
  if (!cuda_guard().compare_exchange_strong(none, pretended_guard())) {
    c10::impl::ensureCUDADeviceGuardSet();
  }
}

void pretend_no_gpu() {
  const c10::impl::DeviceGuardImplInterface* pretended = pretended_guard();
  cuda_guard().compare_exchange_strong(pretended, nullptr);
}

}  // namespace stalloc::torch_adapters
