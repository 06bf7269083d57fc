// The calls by which programs and libraries follow memory: history, trackers, observers.
#include <utility>

#include "torch/cuda/allocator.h"
#include "torch/cuda/runtimes.h"

namespace stalloc::torch_adapters {

History::Block CudaAllocator::block_at(const void* p, bool* waits) const {
  for (c10::DeviceIndex device = 0; device < runtime::DeviceRuntime::kGpus; ++device) {
    runtime::DeviceRuntime* runtime = runtime::DeviceRuntime::find_gpu(device);
    if (!runtime || !runtime->allocator().may_own(p)) continue;
    const auto block = runtime->allocator().inspect().block_of(p);
    if (!block || block->waiting) continue;
    if (waits) *waits = block->shared;
    return {device, block->begin, block->size, block->rounded,
            runtime->streams().handle_of(block->stream)};
  }
  const std::lock_guard lock(mutex_);
  const auto it = direct_.find(const_cast<void*>(p));
  if (it == direct_.end()) return {};
  const Direct& block = it->second;
  return {block.device, it->first, block.size, block.size, block.stream};
}

// Without the history, whose entries are recorded on any thread: torch's refuses first.
void CudaAllocator::recordHistory(bool enabled, allocator_api::CreateContextFn recorder,
                                  size_t entries, allocator_api::RecordContext when, bool clear,
                                  const std::vector<std::string>& skip) {
  to().recordHistory(enabled, recorder, entries, when, clear, skip);
  history_.configure({enabled, recorder, entries, when}, clear, skip);
}

void CudaAllocator::pushCompileContext(std::string& name) {
  to().pushCompileContext(name);
  History::push_compile_context(name);
}

void CudaAllocator::popCompileContext() {
  to().popCompileContext();
  History::pop_compile_context();
}

void CudaAllocator::attachAllocatorTraceTracker(allocator_api::AllocatorTraceTracker tracker) {
  to().attachAllocatorTraceTracker(tracker);
  history_.attach(std::move(tracker));
}

// See Note [Shortages].
void CudaAllocator::attachOutOfMemoryObserver(allocator_api::OutOfMemoryObserver observer) {
  const std::lock_guard lock(mutex_);
  if (observers_.empty()) {
    to().attachOutOfMemoryObserver(
        [this](std::int64_t device, size_t requested, size_t total, size_t free) {
          if (Shortage::withhold({device, requested, total, free})) return;
          for (const Shortage::Observer& known : observers()) known(device, requested, total, free);
        });
  }
  observers_.push_back(std::move(observer));
}

std::vector<Shortage::Observer> CudaAllocator::observers() const {
  const std::lock_guard lock(mutex_);
  return observers_;
}

void CudaAllocator::watch(device::CudaMemory& memory) { memory.set_watcher(&watch_piece); }

// Called under the runtime's lock: calls neither the runtime nor torch's allocator.
void CudaAllocator::watch_piece(device::CudaMemory::Step step, int device, void* begin,
                                Bytes size) noexcept {
  using Step = device::CudaMemory::Step;
  using Entry = History::Entry;
  CudaAllocator& allocator = instance();
  allocator.shares_changed_[static_cast<std::size_t>(device)].store(
      allocator.has_fractions_.load());
  Entry::Action action = Entry::SEGMENT_ALLOC;
  if (step == Step::kPartAdded) action = Entry::SEGMENT_MAP;
  if (step == Step::kPartGoes) action = Entry::SEGMENT_UNMAP;
  if (step == Step::kGoes) action = Entry::SEGMENT_FREE;
  allocator.history_.piece(action, static_cast<c10::DeviceIndex>(device), begin, size);
}

#if TORCH_VERSION_MINOR >= 13
std::shared_ptr<c10::GatheredContext> CudaAllocator::getContextForPointer(const void* p) {
  return block_at(p).begin ? history_.context_of(p) : to().getContextForPointer(p);
}
#endif

#if TORCH_VERSION_MINOR >= 14
void CudaAllocator::annotateMemory(const void* p, const std::string& metadata) {
  const History::Block block = block_at(p);
  if (!block.begin) {
    to().annotateMemory(p, metadata);
  } else if (history_.follows()) {
    history_.annotated(block, metadata);
  }
}
#endif

}  // namespace stalloc::torch_adapters
