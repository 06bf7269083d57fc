// The functions of torch's documented pluggable allocator interface,
// torch.cuda.memory.CUDAPluggableAllocator: for any torch, with CUDA or HIP, since nothing of torch
// is needed to build them. The hooks' types are torch's, which passes C++ objects; they are of the
// standard library's.
//
// Note [Running out]
// torch takes a null pointer for a tensor's memory, so a request that cannot be served must throw,
// and does so through these functions although they have C linkage: that concerns their names
// only, and torch, the only caller, is C++ and unwinds. The exception becomes
// torch.OutOfMemoryError where torch's adapter says how to throw one (CompatTorch), and else
// RuntimeError. Nothing else throws: frees come from destructors.
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
// The piece of the device's memory that `p` lies in, `p` itself where that is unknown.
void* stalloc_base_allocation(void* p, std::size_t* size) noexcept;
void stalloc_memory_fraction(double fraction, int device);
// Of CUDA graphs; see GraphPools.
void stalloc_begin_allocate_to_pool(int device, std::pair<std::uint64_t, std::uint64_t> id,
                                    std::function<bool(void*)> filter);
void stalloc_end_allocate_to_pool(int device, std::pair<std::uint64_t, std::uint64_t> id) noexcept;
void stalloc_release_pool(int device, std::pair<std::uint64_t, std::uint64_t> id) noexcept;

// What torch's adapter provides; to be called before the first request.
void stalloc_set_torch(const stalloc::compat::CompatTorch* torch) noexcept;
}
