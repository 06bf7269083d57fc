// The functions of torch's documented pluggable allocator interface,
// torch.cuda.memory.CUDAPluggableAllocator. They serve any torch, with CUDA or HIP, because
// building them needs nothing of torch: the C++ objects that torch passes are the standard
// library's.
//
// Note [Running out]
// torch takes a null pointer for a tensor's memory, so a request that cannot be served must throw.
// It throws through these functions although they have C linkage: that concerns their names only,
// and torch, the only caller, is C++ and unwinds. The exception becomes torch.OutOfMemoryError if
// torch's adapter provides a way to throw one (CompatTorch), else RuntimeError. Nothing else
// throws, because frees come from destructors.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <utility>

#include "compat/gpu.h"

extern "C" {

// `size` bytes of device `device` for work on `stream`; null only for none.
void* stalloc_malloc(ssize_t size, int device, void* stream);
void stalloc_free(void* p, ssize_t size, int device, void* stream) noexcept;

// torch.cuda.empty_cache().
void stalloc_reset() noexcept;
void stalloc_record_stream(void* p, void* stream) noexcept;
// Returns the beginning of the device's memory that contains `p`; `p` itself if that is unknown.
void* stalloc_base_allocation(void* p, std::size_t* size) noexcept;
void stalloc_memory_fraction(double fraction, int device);
// For CUDA graphs; see GraphPools.
void stalloc_begin_allocate_to_pool(int device, std::pair<std::uint64_t, std::uint64_t> id,
                                    std::function<bool(void*)> filter);
void stalloc_end_allocate_to_pool(int device, std::pair<std::uint64_t, std::uint64_t> id) noexcept;
void stalloc_release_pool(int device, std::pair<std::uint64_t, std::uint64_t> id) noexcept;

// Sets the services of torch's adapter. Must be called before the first request.
void stalloc_set_torch(const stalloc::compat::CompatTorch* torch) noexcept;
}
