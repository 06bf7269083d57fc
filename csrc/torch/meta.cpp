// Tensors on the meta device. Their storages have a size and a lifetime but no memory: a block's
// context is only a number, and torch calls the deleter when the storage dies.
#include <c10/core/Allocator.h>

#include <atomic>

#include "runtime/device_runtime.h"
#include "torch/adapters.h"
#include "torch/autograd.h"

namespace stalloc::torch_adapters {
namespace {

c10::Allocator* meta_base = nullptr;
thread_local bool muted = false;

void delete_meta_block(void* context) {
  if (!context) return;
  runtime::Recorder& recorder = runtime::DeviceRuntime::meta().recorder();
  if (recorder.active()) recorder.on_free(context, running_node());
}

class MetaAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t n) override {
    runtime::Recorder& recorder = runtime::DeviceRuntime::meta().recorder();
    if (n == 0 || muted || !recorder.active()) return meta_base->allocate(n);
    static std::atomic<std::uintptr_t> next{1};
    auto* context = reinterpret_cast<void*>(next.fetch_add(1, std::memory_order_relaxed));
    recorder.on_allocate(context, static_cast<Bytes>(n), /*stream=*/0, in_backward(),
                         running_node());
    return {nullptr, context, &delete_meta_block, c10::DeviceType::Meta};
  }

  c10::DeleterFnPtr raw_deleter() const override { return &delete_meta_block; }
  void copy_data(void*, const void*, std::size_t) const override {}
};

MetaAllocator& meta_allocator() {
  static auto* allocator = new MetaAllocator();
  return *allocator;
}

}  // namespace

void install_meta() {
  c10::Allocator* current = c10::GetAllocator(c10::DeviceType::Meta);
  if (current == &meta_allocator()) return;
  meta_base = current;
  c10::SetAllocator(c10::DeviceType::Meta, &meta_allocator());
}

void uninstall_meta() {
  if (meta_base && c10::GetAllocator(c10::DeviceType::Meta) == &meta_allocator()) {
    c10::SetAllocator(c10::DeviceType::Meta, meta_base);
  }
}

void mute_meta(bool mute) { muted = mute; }

}  // namespace stalloc::torch_adapters
