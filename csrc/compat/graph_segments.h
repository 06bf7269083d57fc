// Segments of torch's private pools for captured graphs, by the functions of torch's pluggable
// allocator interface: torch asks for whole segments and places blocks in them itself. They work
// beside native mode, compat mode and none of them.
#pragma once

#include <sys/types.h>

extern "C" {

// Null if the device lacks the memory, or GraphMemory::of(device) was never called.
void* stalloc_graph_malloc(ssize_t size, int device, void* stream) noexcept;
void stalloc_graph_free(void* p, ssize_t size, int device, void* stream) noexcept;
}
