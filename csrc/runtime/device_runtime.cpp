#include "runtime/device_runtime.h"

#include <pthread.h>

#include <mutex>
#include <string>

#include "base/error.h"
#include "device/cuda_memory.h"
#include "device/cuda_streams.h"
#include "device/host.h"
#include "device/pinned_memory.h"

namespace stalloc::runtime {
namespace {

device::DeviceMemory& host_memory() {
  static auto* memory = new device::HostMemory();
  return *memory;
}

// Those that before_fork() has locked: another thread may make one meanwhile.
std::vector<DeviceRuntime*>& locked() {
  static auto* runtimes = new std::vector<DeviceRuntime*>();
  return *runtimes;
}

void before_fork() {
  locked() = DeviceRuntime::all();
  for (DeviceRuntime* r : locked()) {
    r->allocator().lock_for_fork();
    r->recorder().lock_for_fork();
  }
}

void after_fork_in_parent() {
  for (DeviceRuntime* r : locked()) {
    r->recorder().unlock_after_fork();
    r->allocator().unlock_after_fork();
  }
}

void after_fork_in_child() {
  after_fork_in_parent();
  for (DeviceRuntime* r : DeviceRuntime::all()) r->recorder().abandon();
  for (DeviceRuntime* r : {&DeviceRuntime::cpu(), &DeviceRuntime::meta()}) r->allocator().disable();
  for (int i = 0; i < DeviceRuntime::kGpus; ++i) {
    if (DeviceRuntime* r = DeviceRuntime::find_gpu(i)) r->allocator().abandon();
  }
  if (DeviceRuntime* r = DeviceRuntime::find_pinned()) r->allocator().abandon();
}

// Before the first runtime comes alive: what a fork would find locked has to be known to it.
void register_fork_handlers() {
  [[maybe_unused]] static const int registered =
      pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
}

}  // namespace

DeviceRuntime& DeviceRuntime::make(device::DeviceMemory& memory) {
  register_fork_handlers();
  return *new DeviceRuntime(memory);
}

std::array<std::atomic<DeviceRuntime*>, DeviceRuntime::kGpus> DeviceRuntime::gpus_;
std::atomic<DeviceRuntime*> DeviceRuntime::pinned_{nullptr};
std::atomic<std::uint64_t (*)()> DeviceRuntime::autograd_thread_{nullptr};
std::atomic<void (*)(DeviceRuntime&)> DeviceRuntime::phase_listener_{nullptr};

DeviceRuntime& DeviceRuntime::gpu(int device, Fallback fallback) {
  if (device < 0 || device >= kGpus) {
    throw Error("stalloc serves GPUs 0 to " + std::to_string(kGpus - 1) + ", not " +
                std::to_string(device));
  }
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  if (DeviceRuntime* made = find_gpu(device)) return *made;
  register_fork_handlers();
  auto* memory = new device::CudaMemory(device);
  auto* streams = new device::CudaStreams(device);
  auto* runtime = new DeviceRuntime(*memory, *streams, fallback);
  gpus_[static_cast<std::size_t>(device)].store(runtime, std::memory_order_release);
  return *runtime;
}

DeviceRuntime& DeviceRuntime::pinned(int device, device::DeviceStreams& streams) {
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  if (DeviceRuntime* made = find_pinned()) return *made;
  register_fork_handlers();
  auto* memory = new device::PinnedMemory(device);
  // The own fallback: torch's allocator would take a power of two for each request.
  auto* runtime = new DeviceRuntime(*memory, streams, Fallback::kOwn);
  pinned_.store(runtime, std::memory_order_release);
  return *runtime;
}

std::vector<DeviceRuntime*> DeviceRuntime::all() {
  std::vector<DeviceRuntime*> result = {&cpu(), &meta()};
  for (int i = 0; i < kGpus; ++i) {
    if (DeviceRuntime* r = find_gpu(i)) result.push_back(r);
  }
  if (DeviceRuntime* r = find_pinned()) result.push_back(r);
  return result;
}

DeviceRuntime& DeviceRuntime::cpu() {
  static DeviceRuntime& runtime = make(host_memory());
  return runtime;
}

DeviceRuntime& DeviceRuntime::meta() {
  static DeviceRuntime& runtime = make(host_memory());
  return runtime;
}

DeviceRuntime& DeviceRuntime::of(std::string_view device) {
  if (device == "cpu") return cpu();
  if (device == "meta") return meta();
  for (DeviceRuntime* r : all()) {
    if (r->memory_.name() == device) return *r;
  }
  throw Error("stalloc has no runtime for device '" + std::string(device) +
              "'; there are 'cpu', to profile only 'meta', and GPUs once stalloc has been used on "
              "them");
}

void DeviceRuntime::enter_phase(trace::PhaseKind kind, std::int32_t microbatch,
                                std::int32_t chunk) {
  recorder_.enter_phase(kind, microbatch, chunk);
  allocator_.loop().enter_phase(kind, microbatch, chunk);
  tell_listener();
  if (DeviceRuntime* other = led()) other->enter_phase(kind, microbatch, chunk);
}

void DeviceRuntime::set_extents(std::span<const std::string> names,
                                std::span<const std::int64_t> values) {
  recorder_.set_extents(names, values);
  allocator_.loop().set_extents(names, values);
  tell_listener();
  if (DeviceRuntime* other = led()) other->set_extents(names, values);
}

void DeviceRuntime::enter_unplanned() {
  recorder_.enter_unplanned();
  allocator_.loop().enter_unplanned();
  if (DeviceRuntime* other = led()) other->enter_unplanned();
}

void DeviceRuntime::begin_evaluation() {
  recorder_.begin_evaluation();
  allocator_.loop().begin_evaluation();
  if (DeviceRuntime* other = led()) other->begin_evaluation();
}

void DeviceRuntime::end_evaluation_forward() {
  allocator_.loop().end_evaluation_forward();
  if (DeviceRuntime* other = led()) other->end_evaluation_forward();
}

void DeviceRuntime::leave_unplanned() {
  recorder_.leave_unplanned();
  allocator_.loop().leave_unplanned();
  if (DeviceRuntime* other = led()) other->leave_unplanned();
}

void DeviceRuntime::end_iteration() {
  recorder_.end_iteration();
  allocator_.loop().end_iteration();
  if (DeviceRuntime* other = led()) other->end_iteration();
}

void DeviceRuntime::join_iterations() {
  recorder_.join_iterations();
  if (DeviceRuntime* other = led()) other->join_iterations();
}

void DeviceRuntime::enter_layer(LayerIndex layer, bool recompute) {
  recorder_.enter_layer(layer, recompute);
  allocator_.loop().enter_dynamic();
}

void DeviceRuntime::leave_layer() {
  recorder_.leave_layer();
  allocator_.loop().leave_dynamic();
}

void DeviceRuntime::tag_sequence(LayerIndex layer, std::uint64_t first, std::uint64_t last) {
  if (first >= last) return;
  const auto number = autograd_thread_.load(std::memory_order_relaxed);
  const std::uint64_t thread = number ? number() : 0;
  const std::uint64_t from = node_of_thread(thread, first);
  recorder_.tag_sequence(layer, from, from + (last - first));
  allocator_.loop().tag_dynamic_nodes(from, from + (last - first));
}

void DeviceRuntime::set_autograd_thread(std::uint64_t (*number)()) {
  autograd_thread_.store(number, std::memory_order_relaxed);
}

void DeviceRuntime::set_phase_listener(void (*listener)(DeviceRuntime&)) {
  phase_listener_.store(listener, std::memory_order_relaxed);
}

void DeviceRuntime::tell_listener() {
  if (const auto listener = phase_listener_.load(std::memory_order_relaxed)) listener(*this);
}

}  // namespace stalloc::runtime
