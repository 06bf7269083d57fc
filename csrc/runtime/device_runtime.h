// The process's objects for one device: its allocator, its recorder and the numbers of its streams.
// Every adapter finds them here.
//
// The objects are made on first use and never destroyed, since tensors die after static destructors
// have run. After a fork the child's new requests go unplanned (data loading workers are forked all
// the time); blocks it inherited can still be freed there.
#pragma once

#include <array>
#include <atomic>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/planned_allocator.h"
#include "runtime/recorder.h"
#include "runtime/stream_table.h"

namespace stalloc::runtime {

class DeviceRuntime {
 public:
  static DeviceRuntime& cpu();
  static DeviceRuntime& meta();  // profiling only: there is no memory to serve

  // A GPU's, made when it is first asked for: throws Error when the process has no GPU runtime
  // loaded. `fallback` is who serves what a pool does not; the first to ask decides.
  static DeviceRuntime& gpu(int device, PlannedAllocator::Fallback fallback);
  // The same where it has been made, else null. Takes no lock.
  static DeviceRuntime* find_gpu(int device) {
    return device >= 0 && device < kGpus
               ? gpus_[static_cast<std::size_t>(device)].load(std::memory_order_acquire)
               : nullptr;
  }
  static constexpr int kGpus = 64;

  // "cpu", "meta", or "cuda:0" when that has been made; throws Error for any other.
  static DeviceRuntime& of(std::string_view device);
  // All that have been made.
  static std::vector<DeviceRuntime*> all();

  PlannedAllocator& allocator() { return allocator_; }
  Recorder& recorder() { return recorder_; }
  StreamTable& streams() { return streams_; }
  device::DeviceMemory& memory() { return memory_; }

  // The training loop's events, for whichever of the two is at work.
  void enter_phase(trace::PhaseKind kind, std::int32_t microbatch, std::int32_t chunk);
  void set_extents(std::span<const std::string> names, std::span<const std::int64_t> values);
  void enter_unplanned();
  void leave_unplanned();
  void end_iteration();
  // Layers, for the recorder; under a plan only those with dynamic requests are reported.
  void enter_layer(LayerIndex layer, bool recompute);
  void leave_layer();
  // The calling thread's own numbers.
  void tag_sequence(LayerIndex layer, std::uint64_t first, std::uint64_t last);

  // Sets how to find the number by which autograd nodes know the calling thread; until it is set
  // all threads have the same.
  static void set_autograd_thread(std::uint64_t (*number)());

  // Called whenever a phase begins, on the thread that says so: for what is too dear to be asked at
  // every request.
  static void set_phase_listener(void (*listener)());

 private:
  explicit DeviceRuntime(device::DeviceMemory& memory) : memory_(memory), allocator_(memory) {}
  DeviceRuntime(device::DeviceMemory& memory, device::DeviceStreams& streams,
                PlannedAllocator::Fallback fallback)
      : memory_(memory), allocator_(memory, streams, streams_, fallback) {}
  static DeviceRuntime& make(device::DeviceMemory& memory);

  static std::array<std::atomic<DeviceRuntime*>, kGpus> gpus_;
  static std::atomic<std::uint64_t (*)()> autograd_thread_;
  static std::atomic<void (*)()> phase_listener_;

  device::DeviceMemory& memory_;
  StreamTable streams_;
  PlannedAllocator allocator_;
  Recorder recorder_;
};

}  // namespace stalloc::runtime
