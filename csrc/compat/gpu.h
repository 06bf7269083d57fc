// One GPU behind torch's pluggable allocator interface: the planned allocator with its own
// fallback, the memory of CUDA graphs, and the figures for torch's statistics.
//
// Thread-safe. Made on first use and never destroyed, because tensors outlive static objects.
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

// Services that only torch can provide; any of them may be null.
struct CompatTorch {
  // Throws the exception that torch turns into torch.OutOfMemoryError.
  void (*throw_out_of_memory)(const char* message) = nullptr;
  // True if the calling thread runs a backward pass; the node it runs, if any.
  bool (*in_backward)() = nullptr;
  bool (*running_node)(std::uint64_t* sequence) = nullptr;
  // True if `stream`, the thread's current one on `device`, is not torch's own.
  bool (*is_foreign)(int device, device::StreamHandle stream) = nullptr;
};

class CompatGpu {
 public:
  // Throws Error if there is no such GPU.
  static CompatGpu& of(int device);
  // Null if it has not been used.
  static CompatGpu* known(int device) noexcept;

  // Set once, before the first request.
  static void set_torch(const CompatTorch& torch) { torch_ = torch; }
  static const CompatTorch& torch() { return torch_; }

  runtime::DeviceRuntime& runtime() { return runtime_; }

  // `size` > 0 bytes. Throws OutOfMemory, or Error if the device fails.
  void* allocate(Bytes size, device::StreamHandle stream);
  void deallocate(void* p, Bytes size) noexcept;

  // Returns false if `p` is no live block of this GPU.
  bool record_stream(void* p, device::StreamHandle stream);

  // Returns the pool or segment that contains `p`; its beginning is null if there is none.
  runtime::Inspection::Piece piece_of(const void* p) const;

  void begin_graph_pool(GraphPools::Id id, GraphPools::Filter filter);
  void end_graph_pool(GraphPools::Id id);
  void release_graph_pool(GraphPools::Id id) { graphs_.release(id); }

  // With `exact`, recorded requests bypass the caches: each gets a piece of its own from the
  // device.
  void record_exactly(bool exact) { exact_.store(exact, std::memory_order_relaxed); }

  // Limits the share of the device's memory that is held from now on.
  void set_fraction(double fraction);
  double fraction() const { return fraction_.load(std::memory_order_relaxed); }
  void release_cached() { runtime_.allocator().release_cached(); }

  // Counts live blocks: all, those of at most kSmall bytes (torch's division), and the larger ones.
  static constexpr Bytes kSmall = Bytes{1} << 20;
  struct Counts {
    device::Tally blocks;
    device::Tally requested;  // bytes
    device::Tally rounded;    // bytes that blocks occupy
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

  // Returns all memory held, for snapshots, with the live blocks in ascending order.
  struct Segment {
    runtime::Inspection::LivePool content;
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
  mutable std::mutex mutex_;  // guards the members below
  Figures figures_;
  std::map<void*, Bytes> direct_;  // blocks straight from the device, by requested size
};

}  // namespace stalloc::compat
