// One GPU as torch's pluggable allocator interface sees it: the planned allocator with a fallback
// of its own, the memory of CUDA graphs, and the figures that torch's statistics are made of.
//
// Thread-safe. Made on first use and never destroyed, since tensors die after static destructors
// have run.
#pragma once

#include <array>
#include <atomic>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "compat/graph_pools.h"
#include "device/cuda_memory.h"
#include "device/tally.h"
#include "runtime/device_runtime.h"

namespace stalloc::compat {

// What only torch can tell, or do; any of them may be null.
struct CompatTorch {
  // Throws the exception that torch turns into torch.OutOfMemoryError.
  void (*throw_out_of_memory)(const char* message) = nullptr;
  // Whether the calling thread runs a backward pass; the node it runs, if any.
  bool (*in_backward)() = nullptr;
  bool (*running_node)(std::uint64_t* sequence) = nullptr;
};

class CompatGpu {
 public:
  // Throws Error when there is no such GPU.
  static CompatGpu& of(int device);
  // Null when it has not been used.
  static CompatGpu* known(int device) noexcept;

  // Set once, before the first request.
  static void set_torch(const CompatTorch& torch) { torch_ = torch; }
  static const CompatTorch& torch() { return torch_; }

  runtime::DeviceRuntime& runtime() { return runtime_; }

  // `size` > 0 bytes. Throws OutOfMemory, and Error when the device fails.
  void* allocate(Bytes size, device::StreamHandle stream);
  void deallocate(void* p, Bytes size) noexcept;

  // False when `p` is no live block of this GPU.
  bool record_stream(void* p, device::StreamHandle stream);

  // The pool or segment that holds `p`; null beginning when none does.
  runtime::PlannedAllocator::Piece piece_of(const void* p) const;

  void begin_graph_pool(GraphPools::Id id, GraphPools::Filter filter);
  void end_graph_pool(GraphPools::Id id);
  void release_graph_pool(GraphPools::Id id) { graphs_.release(id); }

  // Requests that are recorded bypass the caches: each has a piece of its own from the device.
  void record_exactly(bool exact) { exact_.store(exact, std::memory_order_relaxed); }

  // At most this share of the device's memory is held from now on.
  void set_fraction(double fraction);
  double fraction() const { return fraction_.load(std::memory_order_relaxed); }
  void release_cached() { runtime_.allocator().release_cached(); }

  // Of live blocks; all of them, those of at most kSmall bytes, as torch divides them, and the
  // larger ones.
  static constexpr Bytes kSmall = Bytes{1} << 20;
  struct Counts {
    device::Tally blocks;
    device::Tally requested;  // bytes
    device::Tally rounded;    // bytes, of what a block takes
  };
  struct Figures {
    Counts all;
    Counts small;
    Counts large;
    device::CudaMemory::HeldBySize held;
    std::int64_t out_of_memory = 0;  // requests that could not be served
  };
  Figures figures() const;
  void reset_peaks();
  void reset_totals();

  // Everything held, for snapshots; the blocks are the live ones, ascending.
  struct Segment {
    runtime::PlannedAllocator::LivePool content;
    GraphPools::Id graph{0, 0};
  };
  std::vector<Segment> segments() const;

 private:
  explicit CompatGpu(int device);

  bool for_training() const;
  runtime::NodeSequence node() const;
  void* allocate_directly(Bytes size);
  bool free_directly(void* p) noexcept;
  void count(Bytes size, bool is_new);
  [[noreturn]] void run_out(const std::string& message);

  static inline CompatTorch torch_;

  runtime::DeviceRuntime& runtime_;
  device::CudaMemory& memory_;
  GraphPools graphs_;
  std::atomic<double> fraction_{1.0};
  std::atomic<bool> exact_{false};
  std::atomic<std::size_t> directs_{0};
  mutable std::mutex mutex_;  // of what follows
  Figures figures_;
  std::map<void*, Bytes> direct_;  // blocks straight from the device, as asked for
};

}  // namespace stalloc::compat
