// torch's C++ allocator interface for the tests: what libraries such as NCCL's bindings call.
#include <c10/cuda/CUDACachingAllocator.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <mutex>
#include <tuple>
#include <vector>

namespace py = pybind11;
namespace allocator = c10::cuda::CUDACachingAllocator;

namespace {

using Event = std::tuple<int, int, std::uintptr_t, std::size_t>;  // action, device, address, size

std::mutex mutex;
std::vector<Event>& events() {
  static auto& all = *new std::vector<Event>();
  return all;
}

void track(const allocator::TraceEntry& entry) {
  const std::lock_guard lock(mutex);
  events().emplace_back(static_cast<int>(entry.action_), entry.device_, entry.addr_, entry.size_);
}

}  // namespace

PYBIND11_MODULE(cuda_probe, m) {
  using Action = allocator::TraceEntry::Action;
  m.attr("ALLOC") = static_cast<int>(Action::ALLOC);
  m.attr("FREE_REQUESTED") = static_cast<int>(Action::FREE_REQUESTED);
  m.attr("FREE_COMPLETED") = static_cast<int>(Action::FREE_COMPLETED);
  m.attr("SEGMENT_ALLOC") = static_cast<int>(Action::SEGMENT_ALLOC);
  m.attr("SEGMENT_FREE") = static_cast<int>(Action::SEGMENT_FREE);
  m.attr("SEGMENT_MAP") = static_cast<int>(Action::SEGMENT_MAP);
  m.attr("SEGMENT_UNMAP") = static_cast<int>(Action::SEGMENT_UNMAP);
  m.def("attach_tracker", [] { allocator::attachAllocatorTraceTracker(&track); });
  m.def("take_events", [] {
    const std::lock_guard lock(mutex);
    return std::exchange(events(), {});
  });
  m.def("base_allocation", [](std::uintptr_t p) {
    std::size_t size = 0;
    void* base = allocator::getBaseAllocation(reinterpret_cast<void*>(p), &size);
    return std::pair(reinterpret_cast<std::uintptr_t>(base), size);
  });
  m.def("share_handle", [](std::uintptr_t p) {
    return py::bytes(allocator::shareIpcHandle(reinterpret_cast<void*>(p)).handle);
  });
  m.def("allocate_with_address", [](std::size_t size, std::uintptr_t p) {
    return reinterpret_cast<std::uintptr_t>(
        allocator::allocateWithAddress(size, reinterpret_cast<void*>(p)).get());
  });
  m.def("raw_allocate", [](std::size_t size) {
    return reinterpret_cast<std::uintptr_t>(allocator::get()->raw_allocate(size));
  });
  m.def("raw_deallocate",
        [](std::uintptr_t p) { allocator::get()->raw_deallocate(reinterpret_cast<void*>(p)); });
  m.def("raw_delete", [](std::uintptr_t p) { allocator::raw_delete(reinterpret_cast<void*>(p)); });
  m.def("begin_pool", [](std::pair<c10::CaptureId_t, c10::CaptureId_t> pool) {
    allocator::beginAllocateToPool(0, pool, [](cudaStream_t) { return true; });
  });
  m.def("end_pool", [](std::pair<c10::CaptureId_t, c10::CaptureId_t> pool) {
    allocator::endAllocateToPool(0, pool);
  });
}
