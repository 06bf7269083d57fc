// Tensors on the meta device. Their storages have a size and a lifetime but no memory: a block's
// context is only a number, and torch calls the deleter when the storage dies.
#include <c10/core/Allocator.h>
#include <c10/core/StorageImpl.h>

#include <atomic>
#include <cstdint>
#include <utility>

#include "runtime/device_runtime.h"
#include "torch/adapters.h"
#include "torch/autograd.h"

namespace stalloc::torch_adapters {
namespace {

c10::Allocator* meta_base = nullptr;
thread_local bool muted = false;
// The stream of a pretended GPU that requests belong to; 0 is the default stream.
thread_local device::StreamHandle stream_now = nullptr;
// The CPU's runtime records the requests of at least so many bytes, among its own; 0: it does not.
std::atomic<std::size_t> least_on_cpu{0};

runtime::DeviceRuntime& meta_runtime() {
  return least_on_cpu.load(std::memory_order_relaxed) > 0 ? runtime::DeviceRuntime::cpu()
                                                          : runtime::DeviceRuntime::meta();
}

runtime::Recorder& meta_recorder() { return meta_runtime().recorder(); }

void delete_meta_block(void* context) {
  if (!context) return;
  runtime::Recorder& recorder = meta_recorder();
  if (recorder.active()) recorder.on_free(context, running_node());
}

class MetaAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t n) override {
    runtime::DeviceRuntime& runtime = meta_runtime();
    runtime::Recorder& recorder = runtime.recorder();
    if (n == 0 || muted || !recorder.active()) return meta_base->allocate(n);
    if (n < least_on_cpu.load(std::memory_order_relaxed)) return meta_base->allocate(n);
    static std::atomic<std::uintptr_t> next{1};
    auto* context = reinterpret_cast<void*>(next.fetch_add(1, std::memory_order_relaxed));
    recorder.on_allocate(context, static_cast<Bytes>(n), runtime.streams().id_of(stream_now),
                         in_backward(), running_node());
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

void record_meta_on_cpu(std::size_t least) { least_on_cpu = least; }

bool is_left_out(std::size_t n) {
  const std::size_t least = least_on_cpu.load(std::memory_order_relaxed);
  return least > 0 && (muted || n < least);
}

void resize_meta(std::uintptr_t storage, std::size_t n) {
  auto* impl = reinterpret_cast<c10::StorageImpl*>(storage);
  // A GPU's storage gets the new memory while it has the old one, except for none.
  if (n == 0) impl->set_data_ptr({nullptr, c10::DeviceType::Meta});
  impl->set_data_ptr(meta_allocator().allocate(n));
  impl->set_nbytes(n);
}

void enter_meta_stream(std::uintptr_t stream) {
  stream_now = reinterpret_cast<device::StreamHandle>(stream);
}

void note_meta_event(bool awaited, std::uintptr_t event, std::uintptr_t stream) {
  using Event = runtime::Recorder::Event;
  meta_recorder().on_event(awaited ? Event::kAwaited : Event::kRecorded, event, stream);
}

void forget_meta_event(std::uintptr_t event) {
  meta_recorder().on_event(runtime::Recorder::Event::kGone, event, 0);
}

void synchronize_meta(std::uintptr_t event) {
  using Awaited = runtime::Recorder::Awaited;
  meta_recorder().on_synchronize(event ? Awaited::kEvent : Awaited::kDevice, event);
}

}  // namespace stalloc::torch_adapters
