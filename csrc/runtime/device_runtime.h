// What the process keeps for one device: its allocator and its recorder, found by every adapter.
//
// The objects are made on first use and never destroyed, since tensors die after static destructors
// have run. After a fork the child's new requests go unplanned (data loading workers are forked all
// the time); blocks it inherited can still be freed there.
#pragma once

#include <string_view>

#include "runtime/planned_allocator.h"
#include "runtime/recorder.h"

namespace stalloc {

class DeviceRuntime {
 public:
  static DeviceRuntime& cpu();
  static DeviceRuntime& meta();  // profiling only: there is no memory to serve

  // "cpu" or "meta"; throws Error for any other.
  static DeviceRuntime& of(std::string_view device);

  PlannedAllocator& allocator() { return allocator_; }
  Recorder& recorder() { return recorder_; }

  // The training loop's events, for whichever of the two is at work.
  void enter_phase(PhaseKind kind, std::int32_t microbatch, std::int32_t chunk);
  void enter_unplanned();
  void leave_unplanned();
  void end_iteration();
  // Layers, for the recorder; under a plan only those with dynamic requests are reported.
  void enter_layer(LayerIndex layer, bool recompute);
  void leave_layer();
  void tag_sequence(LayerIndex layer, std::uint64_t first, std::uint64_t last);

 private:
  explicit DeviceRuntime(DeviceMemory& memory) : allocator_(memory) {}
  static DeviceRuntime& make(DeviceMemory& memory);

  PlannedAllocator allocator_;
  Recorder recorder_;
};

}  // namespace stalloc
