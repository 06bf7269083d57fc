// A GPU that only pretends. Autograd asks the guard of a tensor's device for its stream; without a
// GPU there is no guard to ask. torch has a guard for such tensors, and sets it in CUDA builds
// only.
//
// In CUDA builds the autograd engine also looks up the streams of each tensor on a GPU, even if
// there is none. It does so for the process's accelerator alone, and a registered backend of a
// third party is preferred to CUDA. So one without devices is registered.
#include <ATen/DeviceAccelerator.h>
#include <c10/core/DeviceType.h>
#include <c10/core/TensorImpl.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <cstddef>
#include <cstdint>

#include "torch/adapters.h"

namespace stalloc::torch_adapters {
namespace {

constexpr auto kThirdParty = c10::DeviceType::PrivateUse1;

struct NoDevices final : c10::impl::NoOpDeviceGuardImpl<kThirdParty> {
  c10::DeviceIndex deviceCount() const noexcept override { return 0; }
};

const c10::impl::DeviceGuardImplInterface* pretended_guard() {
  static const auto* guard = new c10::impl::NoOpDeviceGuardImpl<c10::DeviceType::CUDA>();
  return guard;
}

auto& guard_of(c10::DeviceType type) {
  return c10::impl::device_guard_impl_registry[static_cast<std::size_t>(type)];
}

bool is_cuda_sought() {
  return at::accelerator::getAccelerator(/*checked=*/false) == c10::DeviceType::CUDA;
}

}  // namespace

void pretend_gpu() {
  const c10::impl::DeviceGuardImplInterface* none = nullptr;
  if (!guard_of(c10::DeviceType::CUDA).compare_exchange_strong(none, pretended_guard())) {
    c10::impl::ensureCUDADeviceGuardSet();
  }
}

bool seek_no_gpu() {
  if (!is_cuda_sought() || c10::is_privateuse1_backend_registered()) return !is_cuda_sought();
  static const auto* guard = new NoDevices();
  const c10::impl::DeviceGuardImplInterface* none = nullptr;
  guard_of(kThirdParty).compare_exchange_strong(none, guard);
  c10::register_privateuse1_backend("stalloc_no_devices");  // torch cannot take the name back
  return !is_cuda_sought();
}

void ask_for_device(std::uintptr_t tensor) {
  reinterpret_cast<c10::TensorImpl*>(tensor)->set_python_custom_device(true);
}

void pretend_no_gpu() {
  const c10::impl::DeviceGuardImplInterface* pretended = pretended_guard();
  guard_of(c10::DeviceType::CUDA).compare_exchange_strong(pretended, nullptr);
}

}  // namespace stalloc::torch_adapters
