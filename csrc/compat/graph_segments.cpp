#include "compat/graph_segments.h"

#include "device/graph_memory.h"

extern "C" {

void* stalloc_graph_malloc(ssize_t size, int device, void*) noexcept {
  auto* memory = stalloc::device::GraphMemory::known(device);
  return memory ? memory->allocate(size) : nullptr;
}

void stalloc_graph_free(void* p, ssize_t, int device, void*) noexcept {
  if (auto* memory = stalloc::device::GraphMemory::known(device)) memory->release(p);
}
}
