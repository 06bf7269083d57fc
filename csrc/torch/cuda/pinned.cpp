#include "torch/cuda/pinned.h"

#include <c10/cuda/CUDAStream.h>
#include <pthread.h>

#include <iterator>
#include <limits>
#include <optional>
#include <utility>

#include "base/error.h"
#include "torch/autograd.h"

namespace stalloc::torch_adapters {
namespace {

constexpr auto kLargestPinned = static_cast<std::size_t>(std::numeric_limits<Bytes>::max() / 2);

// torch silently ignores a lower priority than that of the registered allocator.
constexpr std::uint8_t kFirst = 255;

// Written once, before any block of ours exists.
PinnedAllocator* pinned = nullptr;

}  // namespace

PinnedAllocator::PinnedAllocator(at::HostAllocator& native, runtime::DeviceRuntime& runtime,
                                 device::PinnedStreams& streams)
    : to_(native), runtime_(runtime), streams_(streams), held_(streams, runtime.streams()) {}

c10::DataPtr PinnedAllocator::allocate(size_t n) {
  if (waits_.load(std::memory_order_relaxed)) collect();
  if (n == 0 || n > kLargestPinned || open_pools_.load() > 0) return to_.allocate(n);
  const auto size = static_cast<Bytes>(n);
  if (runtime_.allocator().enabled()) {
    void* p = serve(size);
    return p ? c10::DataPtr{p, p, &delete_planned, c10::DeviceType::CPU} : to_.allocate(n);
  }
  runtime::Recorder& recorder = runtime_.recorder();
  c10::DataPtr block = to_.allocate(n);
  void* context = block.get_context();
  if (!recorder.active() || !context) return block;
  const c10::DeleterFnPtr native = block.get_deleter();
  recorder.on_allocate(context, size, /*stream=*/0, in_backward(), std::nullopt);
  {
    const std::lock_guard lock(mutex_);
    recorded_[context] = native;
  }
  [[maybe_unused]] const bool replaced = block.compare_exchange_deleter(native, &delete_recorded);
  return block;
}

void* PinnedAllocator::serve(Bytes size) {
  void* p = nullptr;
  try {
    p = runtime_.allocator().allocate(size, /*stream=*/0, in_backward());
  } catch (const OutOfMemory&) {
    return nullptr;  // torch gives back what it has cached, tries again, and says what is wrong
  }
  if (!p) return nullptr;
  const std::lock_guard lock(mutex_);
  planned_[reinterpret_cast<std::uintptr_t>(p)] = {size};
  return p;
}

void PinnedAllocator::delete_planned(void* p) {
  {
    const std::lock_guard lock(pinned->mutex_);
    const auto block = pinned->planned_.find(reinterpret_cast<std::uintptr_t>(p));
    if (block == pinned->planned_.end() || block->second.captured) return;
    // Before the free, after which another thread may get the address.
    pinned->planned_.erase(block);
  }
  pinned->runtime_.allocator().deallocate(p, in_backward());
}

void PinnedAllocator::delete_recorded(void* context) {
  bool waits = false;
  {
    const std::lock_guard lock(pinned->mutex_);
    waits = pinned->held_.holds(context);
    if (waits) pinned->held_.wait(context);
  }
  if (waits) {
    pinned->collect();
  } else {
    pinned->free_recorded({context});
  }
}

void PinnedAllocator::collect() {
  std::vector<void*> done;
  {
    const std::lock_guard lock(mutex_);
    while (void* context = held_.next_done()) done.push_back(context);
    waits_.store(held_.any_waiting(), std::memory_order_relaxed);
  }
  free_recorded(done);
}

void PinnedAllocator::free_recorded(const std::vector<void*>& contexts) {
  for (void* context : contexts) {
    c10::DeleterFnPtr native = nullptr;
    {
      const std::lock_guard lock(mutex_);
      const auto block = recorded_.find(context);
      native = block->second;
      recorded_.erase(block);
    }
    if (runtime_.recorder().active()) runtime_.recorder().on_free(context, std::nullopt);
    native(context);
  }
}

// Without the mutex during the wait: work that is waited for may need what other threads are about
// to submit.
void PinnedAllocator::settle() {
  std::unique_lock lock(mutex_);
  if (!held_.any_waiting()) return;
  const std::vector<runtime::DelayedFrees::Lost> lost = held_.lost();
  lock.unlock();
  if (!streams_.synchronize(/*everywhere=*/true)) return;
  lock.lock();
  held_.found(lost);
  lock.unlock();
  collect();
}

PinnedAllocator::Blocks::iterator PinnedAllocator::find(const void* p, const void* context) {
  const auto address = reinterpret_cast<std::uintptr_t>(p);
  const auto next = planned_.upper_bound(address);
  if (next != planned_.begin()) {
    const auto block = std::prev(next);
    if (address < block->first + static_cast<std::uintptr_t>(block->second.size)) return block;
  }
  return planned_.find(reinterpret_cast<std::uintptr_t>(context));
}

StreamId PinnedAllocator::number_of(device::StreamHandle handle) {
  return handle ? runtime_.streams().user_of(handle) : kNone;
}

// See Note [Copies]. Numpy and others make tensors of a part of a block, with another context.
bool PinnedAllocator::record_event(void* ptr, void* ctx, c10::Stream stream) {
  const c10::cuda::CUDAStream cuda(stream);
  const device::StreamHandle handle = streams_.handle_of(cuda.stream(), cuda.device_index());
  void* ours = nullptr;
  {
    const std::lock_guard lock(mutex_);
    if (const auto block = find(ptr, ctx); block != planned_.end()) {
      ours = reinterpret_cast<void*>(block->first);
      block->second.captured = block->second.captured || streams_.is_capturing(handle);
    } else if (recorded_.contains(ctx)) {
      held_.use(ctx, number_of(handle));
    }
  }
  if (!ours) return to_.record_event(ptr, ctx, stream);
  return runtime_.allocator().record_stream(ours, number_of(handle));
}

at::HostStats PinnedAllocator::get_stats() {
  at::HostStats stats = to_.get_stats();
  const runtime::Statistics ours = runtime_.allocator().figures().statistics();
  stats.allocated_bytes.current += ours.reserved.current;
  stats.allocated_bytes.peak += ours.reserved.peak;
  stats.active_bytes.current += ours.allocated.current;
  stats.active_bytes.peak += ours.allocated.peak;
  return stats;
}

void PinnedAllocator::begin_allocate_to_pool(c10::MempoolId_t pool,
                                             std::function<bool(c10::Stream)> filter) {
  open_pools_.fetch_add(1);
  to_.begin_allocate_to_pool(pool, std::move(filter));
}

void PinnedAllocator::end_allocate_to_pool(c10::MempoolId_t pool) {
  to_.end_allocate_to_pool(pool);
  open_pools_.fetch_sub(1);
}

void install_pinned(int device) {
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  at::HostAllocator* current = at::getHostAllocator(c10::DeviceType::CUDA);
  if (pinned && current == pinned) return;
  if (pinned) {
    throw Error(
        "another library has replaced torch's allocator of pinned memory since stalloc was first "
        "used; stalloc cannot serve pinned memory beside it: use only one of them");
  }
  static auto* streams = new device::PinnedStreams(device);
  pinned =
      new PinnedAllocator(*current, runtime::DeviceRuntime::pinned(device, *streams), *streams);
  pthread_atfork([] { pinned->lock_for_fork(); }, [] { pinned->unlock_after_fork(); },
                 [] { pinned->unlock_after_fork(); });
  at::setHostAllocator(c10::DeviceType::CUDA, pinned, kFirst);
}

void settle_pinned() {
  if (pinned) pinned->settle();
}

void give_back_pinned() {
  if (pinned) pinned->to().empty_cache();
}

}  // namespace stalloc::torch_adapters
