// The process's objects for one device: its allocator, its recorder and the numbers of its streams.
// Every adapter finds them here.
//
// The objects are made on first use and never destroyed, since tensors die after static destructors
// have run. After a fork the child's new requests are not planned (data loading workers are forked
// all the time); the child can still free the blocks that it inherited.
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

  // The runtime of a GPU, made by the first call. Throws Error if the process has no GPU runtime
  // loaded. `fallback` serves requests outside the pool; the first call decides.
  static DeviceRuntime& gpu(int device, Fallback fallback);
  // The same if it has been made, else null. Takes no lock.
  static DeviceRuntime* find_gpu(int device) {
    return device >= 0 && device < kGpus
               ? gpus_[static_cast<std::size_t>(device)].load(std::memory_order_acquire)
               : nullptr;
  }
  static constexpr int kGpus = 64;

  // The runtime of page-locked host memory, of which there is one for all GPUs, made by the first
  // call. `device`: a GPU that the process uses, for the calls that take memory. `streams` tells
  // the handles of its streams, and is never destroyed. Throws Error if no GPU runtime is loaded.
  static DeviceRuntime& pinned(int device, device::DeviceStreams& streams);
  // The same if it has been made, else null. Takes no lock.
  static DeviceRuntime* find_pinned() { return pinned_.load(std::memory_order_acquire); }

  // The runtime of "cpu", "meta", or "cuda:0" or "pinned" if that has been made; throws Error for
  // any other.
  static DeviceRuntime& of(std::string_view device);
  // All runtimes that have been made.
  static std::vector<DeviceRuntime*> all();

  PlannedAllocator& allocator() { return allocator_; }
  Recorder& recorder() { return recorder_; }
  StreamTable& streams() { return streams_; }
  device::DeviceMemory& memory() { return memory_; }

  // Forwards the training loop's events to the recorder and the allocator.
  void enter_phase(trace::PhaseKind kind, std::int32_t microbatch, std::int32_t chunk);
  void set_extents(std::span<const std::string> names, std::span<const std::int64_t> values);
  void enter_unplanned();
  void begin_evaluation();
  void end_evaluation_forward();
  void leave_unplanned();
  void end_iteration();
  // Merges the recorded iterations into the current one; see Recorder.
  void join_iterations();
  // Forwards the events above to `other`, too, from now on; null: to none. `other` serves requests
  // of the same training loop for another kind of memory.
  void lead(DeviceRuntime* other) { led_.store(other, std::memory_order_release); }
  // Forwards layers to the recorder. Under a plan only those with dynamic requests are reported.
  void enter_layer(LayerIndex layer, bool recompute);
  void leave_layer();
  // `first` and `last` are the calling thread's own sequence numbers.
  void tag_sequence(LayerIndex layer, std::uint64_t first, std::uint64_t last);

  // Sets the function that returns autograd's number of the calling thread. Until it is set, all
  // threads have the same number.
  static void set_autograd_thread(std::uint64_t (*number)());

  // Sets the function that is called when a phase has begun and when its extents are set, on the
  // thread that reports it: for queries that are too expensive for each request.
  static void set_phase_listener(void (*listener)(DeviceRuntime&));

 private:
  explicit DeviceRuntime(device::DeviceMemory& memory) : memory_(memory), allocator_(memory) {}
  DeviceRuntime(device::DeviceMemory& memory, device::DeviceStreams& streams, Fallback fallback)
      : memory_(memory), allocator_(memory, streams, streams_, fallback) {}
  static DeviceRuntime& make(device::DeviceMemory& memory);
  void tell_listener();
  DeviceRuntime* led() const { return led_.load(std::memory_order_acquire); }

  static std::array<std::atomic<DeviceRuntime*>, kGpus> gpus_;
  static std::atomic<DeviceRuntime*> pinned_;
  static std::atomic<std::uint64_t (*)()> autograd_thread_;
  static std::atomic<void (*)(DeviceRuntime&)> phase_listener_;

  device::DeviceMemory& memory_;
  StreamTable streams_;
  PlannedAllocator allocator_;
  Recorder recorder_;
  std::atomic<DeviceRuntime*> led_{nullptr};
};

}  // namespace stalloc::runtime
