// Native mode: puts stalloc in front of torch's CUDA allocator, or removes it, at any time.
#pragma once

namespace stalloc::torch_adapters {

// Makes the runtime of a GPU and installs the CudaAllocator, which all GPUs' requests pass: those
// of a GPU without a runtime go on to torch's allocator. Throws Error if torch's allocator is of a
// kind that cannot be the fallback. `hidden`: see CudaAllocator::catch_up().
void install_cuda(int device, bool hidden);
// Removes the CudaAllocator unless a block is left that needs it. Returns true if it is out.
bool uninstall_cuda();

}  // namespace stalloc::torch_adapters
