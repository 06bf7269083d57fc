// Tensors on the CPU. torch asks its CPU allocator for every storage, with no cache between, so an
// allocator in front of it sees all storages. (It does not see scratch memory of oneDNN and OpenMP,
// nor memory from numpy.)
//
// torch requires of an allocator with a raw_deleter() that each block's context is its address and
// its deleter is that function. So blocks carry no mark of their allocator: the deleter asks the
// planned allocator, which knows its blocks by address; all others are torch's. Like torch's
// allocator, this one reports its blocks to torch.profiler.
#include <c10/core/CPUAllocator.h>
#include <c10/util/Exception.h>

#include <atomic>
#include <cstddef>
#include <limits>

#include "base/error.h"
#include "runtime/device_runtime.h"
#include "torch/adapters.h"
#include "torch/autograd.h"

namespace stalloc::torch_adapters {
namespace {

c10::Allocator* base = nullptr;  // torch's own, saved before ours replaces it

// Rounding up a size of at most this does not overflow. torch refuses larger requests itself.
constexpr auto kLargest = static_cast<std::size_t>(std::numeric_limits<Bytes>::max() / 2);

// Requests of fewer bytes are left to torch while a plan is in force.
std::atomic<std::size_t> least_planned{0};

void delete_block(void* p) {
  if (!p) return;
  runtime::DeviceRuntime& runtime = runtime::DeviceRuntime::cpu();
  if (c10::memoryProfilingEnabled() && runtime.allocator().inspect().pool_of(p).begin) {
    // Reported before the free, after which another thread may get the block.
    c10::profiledCPUMemoryReporter().Delete(p);
  }
  if (runtime.recorder().active()) runtime.recorder().on_free(p, running_node());
  if (runtime.allocator().deallocate(p, in_backward())) return;
  base->raw_deallocate(p);
}

class CpuAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t n) override {
    runtime::DeviceRuntime& runtime = runtime::DeviceRuntime::cpu();
    if (n == 0 || n > kLargest) return base->allocate(n);
    if (runtime.allocator().enabled() && n >= least_planned.load(std::memory_order_relaxed)) {
      if (void* p = allocate_planned(runtime, static_cast<Bytes>(n))) {
        record(runtime, p, n);
        if (c10::memoryProfilingEnabled()) c10::profiledCPUMemoryReporter().New(p, n);
        return wrap(p);
      }
    }
    if (!runtime.recorder().active()) return base->allocate(n);
    c10::DataPtr block = base->allocate(n);
    record(runtime, block.get(), n);
    return wrap(block.release_context());
  }

  c10::DeleterFnPtr raw_deleter() const override { return &delete_block; }

  void copy_data(void* dest, const void* src, std::size_t count) const override {
    default_copy_data(dest, src, count);
  }

 private:
  static void record(runtime::DeviceRuntime& runtime, const void* p, size_t n) {
    if (!runtime.recorder().active() || is_left_out(n)) return;
    runtime.recorder().on_allocate(p, static_cast<Bytes>(n), /*stream=*/0, in_backward(),
                                   running_node());
  }

  static c10::DataPtr wrap(void* p) { return {p, p, &delete_block, c10::DeviceType::CPU}; }

  static void* allocate_planned(runtime::DeviceRuntime& runtime, Bytes size) {
    try {
      runtime::PlannedAllocator& allocator = runtime.allocator();
      return allocator.allocate(size, /*stream=*/0, in_backward(),
                                allocator.loop().follows_nodes() ? running_node() : std::nullopt);
    } catch (const OutOfMemory& e) {
      TORCH_CHECK_WITH(OutOfMemoryError, false, e.what());
    }
  }
};

CpuAllocator& instance() {
  static auto* allocator = new CpuAllocator();
  return *allocator;
}

}  // namespace

void install_cpu() {
  c10::Allocator* current = c10::GetCPUAllocator();
  if (current == &instance()) return;
  // Live blocks of ours return to the base they came from, so there can be only one base; and an
  // allocator that was since put in front of ours may call ours.
  TORCH_CHECK(!base || base == current,
              "another library has replaced torch's CPU allocator since stalloc was first used; "
              "stalloc cannot serve CPU tensors beside it");
  base = current;
  c10::SetCPUAllocator(&instance());
  TORCH_CHECK(c10::GetCPUAllocator() == &instance(),
              "another library has set torch's CPU allocator with a priority above ours; stalloc "
              "cannot serve CPU tensors beside it");
}

void uninstall_cpu() {
  if (base && c10::GetCPUAllocator() == &instance()) c10::SetCPUAllocator(base);
}

void leave_small_cpu(std::size_t bytes) { least_planned = bytes; }

}  // namespace stalloc::torch_adapters
