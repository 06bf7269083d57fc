// Torch's services for compat mode: its exception for memory that has run out, and the state of
// autograd on a thread. Works with CUDA and HIP; uses neither.
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>

#include "compat/pluggable.h"
#include "torch/adapters.h"
#include "torch/autograd.h"

namespace stalloc::torch_adapters {

void connect_compat() {
  compat::CompatTorch torch;
  torch.throw_out_of_memory = [](const char* message) {
    TORCH_CHECK_WITH(OutOfMemoryError, false, message);
  };
  torch.in_backward = [] { return in_backward(); };
  torch.running_node = [](std::uint64_t* sequence) {
    const runtime::NodeSequence node = running_node();
    if (node) *sequence = *node;
    return node.has_value();
  };
  // The number of a stream that torch has not made is its handle.
  torch.is_foreign = [](int device, device::StreamHandle stream) {
    const c10::impl::VirtualGuardImpl guard(c10::DeviceType::CUDA);
    const c10::Device of(c10::DeviceType::CUDA, static_cast<c10::DeviceIndex>(device));
    return guard.getStream(of).id() == reinterpret_cast<c10::StreamId>(stream);
  };
  stalloc_set_torch(&torch);
}

}  // namespace stalloc::torch_adapters
