// Native mode: puts stalloc in front of torch's CUDA allocator, and takes it out again, at any
// time.
#pragma once

#include <span>

#include "runtime/device_runtime.h"

namespace stalloc::torch_adapters {

class CudaAllocator;

// Makes the runtime of a GPU, and puts ours in place, before all GPUs' requests: those of a GPU
// without a runtime it passes on. Throws when torch's allocator is of a kind that cannot be the
// fallback.
void install_cuda(int device);
// Takes it out when no block is left that needs it; whether it is out.
bool uninstall_cuda();
// The one that is in place, or was.
CudaAllocator& installed();
// The runtimes that were made here. Takes no lock.
std::span<runtime::DeviceRuntime* const> gpu_runtimes();

}  // namespace stalloc::torch_adapters
