#include "torch/cuda/program_order.h"

#include <c10/core/impl/GPUTrace.h>
#include <c10/core/impl/PyInterpreter.h>
#include <c10/cuda/CUDAFunctions.h>

#include <atomic>
#include <cstdint>
#include <stdexcept>
#include <string>

namespace stalloc::torch_adapters {
namespace {

using c10::DeviceType;
using c10::TensorImpl;
using c10::impl::GPUTrace;
using c10::impl::PyInterpreter;
using runtime::DeviceRuntime;
using runtime::Recorder;

// The runtime and the number of the device that is recorded.
std::atomic<DeviceRuntime*> followed = nullptr;
std::atomic<int> followed_device = -1;
// The listener that was there before.
std::atomic<const PyInterpreter*> before = nullptr;

// The recorder of the current device, to which streams, events and synchronisations belong: each
// device has a default stream 0.
Recorder* recorder_here() {
  DeviceRuntime* const runtime = followed.load(std::memory_order_acquire);
  if (!runtime || c10::cuda::current_device() != followed_device.load(std::memory_order_relaxed)) {
    return nullptr;
  }
  return &runtime->recorder();
}

template <typename Function>
void pass_on(Function function) {
  if (const PyInterpreter* interpreter = before.load(std::memory_order_acquire)) {
    function(**interpreter);
  }
}

[[noreturn]] void never() { throw std::logic_error("stalloc listens to torch, and that is all"); }

class Listener final : public c10::impl::PyInterpreterVTable {
 public:
  void trace_gpu_event_creation(DeviceType type, std::uintptr_t event) const override {
    pass_on([&](auto& other) { other.trace_gpu_event_creation(type, event); });
  }
  void trace_gpu_event_deletion(DeviceType type, std::uintptr_t event) const override {
    // An event may be destroyed while any device is the current one.
    if (DeviceRuntime* const runtime = followed.load(std::memory_order_acquire)) {
      runtime->recorder().on_event(Recorder::Event::kGone, event, 0);
    }
    pass_on([&](auto& other) { other.trace_gpu_event_deletion(type, event); });
  }
  void trace_gpu_event_record(DeviceType type, std::uintptr_t event,
                              std::uintptr_t stream) const override {
    if (auto* r = recorder_here()) r->on_event(Recorder::Event::kRecorded, event, stream);
    pass_on([&](auto& other) { other.trace_gpu_event_record(type, event, stream); });
  }
  void trace_gpu_event_wait(DeviceType type, std::uintptr_t event,
                            std::uintptr_t stream) const override {
    if (auto* r = recorder_here()) r->on_event(Recorder::Event::kAwaited, event, stream);
    pass_on([&](auto& other) { other.trace_gpu_event_wait(type, event, stream); });
  }
  void trace_gpu_memory_allocation(DeviceType type, std::uintptr_t address) const override {
    pass_on([&](auto& other) { other.trace_gpu_memory_allocation(type, address); });
  }
  void trace_gpu_memory_deallocation(DeviceType type, std::uintptr_t address) const override {
    pass_on([&](auto& other) { other.trace_gpu_memory_deallocation(type, address); });
  }
  void trace_gpu_stream_creation(DeviceType type, std::uintptr_t stream) const override {
    pass_on([&](auto& other) { other.trace_gpu_stream_creation(type, stream); });
  }
  void trace_gpu_device_synchronization(DeviceType type) const override {
    if (auto* r = recorder_here()) r->on_synchronize(Recorder::Awaited::kDevice, 0);
    pass_on([&](auto& other) { other.trace_gpu_device_synchronization(type); });
  }
  void trace_gpu_stream_synchronization(DeviceType type, std::uintptr_t stream) const override {
    if (auto* r = recorder_here()) r->on_synchronize(Recorder::Awaited::kStream, stream);
    pass_on([&](auto& other) { other.trace_gpu_stream_synchronization(type, stream); });
  }
  void trace_gpu_event_synchronization(DeviceType type, std::uintptr_t event) const override {
    if (auto* r = recorder_here()) r->on_synchronize(Recorder::Awaited::kEvent, event);
    pass_on([&](auto& other) { other.trace_gpu_event_synchronization(type, event); });
  }

  // Torch asks a listener for nothing else than its reports.
  std::string name() const override { return "stalloc"; }
  void incref(PyObject*) const override { never(); }
  void decref(PyObject*) const override { never(); }
  bool try_incref(const c10::impl::PyObjectSlot&) const override { never(); }
  std::size_t refcnt(PyObject*) const override { never(); }
  c10::intrusive_ptr<TensorImpl> detach(const TensorImpl*) const override { never(); }
  void dispatch(const c10::OperatorHandle&, torch::jit::Stack*) const override { never(); }
  void reportErrorCallback(PyObject*, c10::DispatchKey) const override { never(); }
  void python_op_registration_trampoline(const c10::OperatorHandle&, c10::DispatchKey,
                                         c10::DispatchKeySet, torch::jit::Stack*, bool,
                                         bool) const override {
    never();
  }
  void throw_abstract_impl_not_imported_error(std::string, const char*,
                                              const char*) const override {
    never();
  }
  void python_dispatcher(const c10::OperatorHandle&, c10::DispatchKeySet,
                         torch::jit::Stack*) const override {
    never();
  }
  bool is_contiguous(const TensorImpl*, at::MemoryFormat) const override { never(); }
  c10::SymBool sym_is_contiguous(const TensorImpl*, at::MemoryFormat) const override { never(); }
  bool is_strides_like(const TensorImpl*, at::MemoryFormat) const override { never(); }
  bool is_non_overlapping_and_dense(const TensorImpl*) const override { never(); }
  c10::Device device(const TensorImpl*) const override { never(); }
  int64_t dim(const TensorImpl*) const override { never(); }
  c10::IntArrayRef strides(const TensorImpl*) const override { never(); }
  c10::IntArrayRef sizes(const TensorImpl*) const override { never(); }
  c10::SymIntArrayRef sym_sizes(const TensorImpl*) const override { never(); }
  c10::Layout layout(const TensorImpl*) const override { never(); }
  int64_t numel(const TensorImpl*) const override { never(); }
  c10::SymInt sym_numel(const TensorImpl*) const override { never(); }
  c10::SymIntArrayRef sym_strides(const TensorImpl*) const override { never(); }
  c10::SymInt sym_storage_offset(const TensorImpl*) const override { never(); }
  void reset_backward_hooks(const TensorImpl*) const override { never(); }
};

// Never destroyed: torch may hold the pointer in another thread.
const PyInterpreter* listener() {
  static const PyInterpreter* const interpreter = new PyInterpreter(new Listener);
  return interpreter;
}

}  // namespace

void follow_program_order(DeviceRuntime* runtime, int device) {
  followed_device.store(device, std::memory_order_relaxed);
  followed.store(runtime, std::memory_order_release);
  const bool listens = GPUTrace::get_trace() == listener();
  if (runtime && !listens) {
    before.store(GPUTrace::get_trace(), std::memory_order_release);
    GPUTrace::gpuTraceState.store(listener(), std::memory_order_release);
    GPUTrace::haveState = true;
  } else if (!runtime && listens) {
    const PyInterpreter* const previous = before.load(std::memory_order_acquire);
    GPUTrace::haveState = previous != nullptr;
    GPUTrace::gpuTraceState.store(previous, std::memory_order_release);
  }
}

}  // namespace stalloc::torch_adapters
