#include "compat/pluggable.h"

#include "base/error.h"

namespace {

using stalloc::compat::CompatGpu;

template <typename Function>
void for_each_gpu(Function&& function) {
  for (int device = 0; device < stalloc::runtime::DeviceRuntime::kGpus; ++device) {
    if (CompatGpu* gpu = CompatGpu::known(device)) {
      if (function(*gpu)) return;
    }
  }
}

}  // namespace

extern "C" {

void* stalloc_malloc(ssize_t size, int device, void* stream) {
  if (size <= 0) return nullptr;
  try {
    return CompatGpu::of(device).allocate(size, stream);
  } catch (const stalloc::OutOfMemory& e) {
    if (const auto out_of_memory = CompatGpu::torch().throw_out_of_memory) out_of_memory(e.what());
    throw;
  }
}

void stalloc_free(void* p, ssize_t size, int device, void*) noexcept {
  if (!p) return;
  if (CompatGpu* gpu = CompatGpu::known(device)) gpu->deallocate(p, size);
}

void stalloc_reset() noexcept {
  for_each_gpu([](CompatGpu& gpu) {
    gpu.release_cached();
    return false;
  });
}

void stalloc_record_stream(void* p, void* stream) noexcept {
  if (!p) return;
  for_each_gpu([&](CompatGpu& gpu) { return gpu.record_stream(p, stream); });
}

void* stalloc_base_allocation(void* p, std::size_t* size) noexcept {
  void* base = p;
  for_each_gpu([&](CompatGpu& gpu) {
    const auto piece = gpu.piece_of(p);
    if (!piece.begin) return false;
    base = piece.begin;
    if (size) *size = static_cast<std::size_t>(piece.size);
    return true;
  });
  return base;
}

void stalloc_memory_fraction(double fraction, int device) {
  CompatGpu::of(device).set_fraction(fraction);
}

void stalloc_begin_allocate_to_pool(int device, std::pair<std::uint64_t, std::uint64_t> id,
                                    std::function<bool(void*)> filter) {
  CompatGpu::of(device).begin_graph_pool(id, std::move(filter));
}

void stalloc_end_allocate_to_pool(int device, std::pair<std::uint64_t, std::uint64_t> id) noexcept {
  if (CompatGpu* gpu = CompatGpu::known(device)) gpu->end_graph_pool(id);
}

void stalloc_release_pool(int device, std::pair<std::uint64_t, std::uint64_t> id) noexcept {
  if (CompatGpu* gpu = CompatGpu::known(device)) gpu->release_graph_pool(id);
}

void stalloc_set_torch(const stalloc::compat::CompatTorch* torch) noexcept {
  CompatGpu::set_torch(*torch);
}

}  // extern "C"
