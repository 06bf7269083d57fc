#include "runtime/device_runtime.h"

#include <pthread.h>

#include <string>

#include "base/error.h"
#include "device/host.h"

namespace stalloc {
namespace {

DeviceMemory& host_memory() {
  static auto* memory = new HostMemory();
  return *memory;
}

void before_fork() {
  for (DeviceRuntime* r : {&DeviceRuntime::cpu(), &DeviceRuntime::meta()}) {
    r->allocator().lock_for_fork();
    r->recorder().lock_for_fork();
  }
}

void after_fork_in_parent() {
  for (DeviceRuntime* r : {&DeviceRuntime::cpu(), &DeviceRuntime::meta()}) {
    r->recorder().unlock_after_fork();
    r->allocator().unlock_after_fork();
  }
}

void after_fork_in_child() {
  after_fork_in_parent();
  for (DeviceRuntime* r : {&DeviceRuntime::cpu(), &DeviceRuntime::meta()}) {
    r->recorder().abandon();
    r->allocator().disable();
  }
}

}  // namespace

DeviceRuntime& DeviceRuntime::make(DeviceMemory& memory) {
  [[maybe_unused]] static const int registered =
      pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
  return *new DeviceRuntime(memory);
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
  throw Error("stalloc has no runtime for device '" + std::string(device) +
              "'; there are 'cpu' and, to profile only, 'meta'");
}

void DeviceRuntime::enter_phase(PhaseKind kind, std::int32_t microbatch, std::int32_t chunk) {
  recorder_.enter_phase(kind, microbatch, chunk);
  allocator_.enter_phase(kind, microbatch, chunk);
}

void DeviceRuntime::enter_unplanned() {
  recorder_.enter_unplanned();
  allocator_.enter_unplanned();
}

void DeviceRuntime::leave_unplanned() {
  recorder_.leave_unplanned();
  allocator_.leave_unplanned();
}

void DeviceRuntime::end_iteration() {
  recorder_.end_iteration();
  allocator_.end_iteration();
}

void DeviceRuntime::enter_layer(LayerIndex layer, bool recompute) {
  recorder_.enter_layer(layer, recompute);
  allocator_.enter_dynamic();
}

void DeviceRuntime::leave_layer() {
  recorder_.leave_layer();
  allocator_.leave_dynamic();
}

void DeviceRuntime::tag_sequence(LayerIndex layer, std::uint64_t first, std::uint64_t last) {
  recorder_.tag_sequence(layer, first, last);
  allocator_.tag_dynamic_nodes(first, last);
}

}  // namespace stalloc
