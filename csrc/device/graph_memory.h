// Memory of captured CUDA graphs that are replayed one after another.
//
// A graph has the addresses of its capture at each replay. Blocks that live on after the capture
// carry values: to the next replay, to another graph, to the program. The others need memory only
// while the graph runs, so different graphs have the same chunks behind these addresses:
//
//   graph A   | own | shared 0 | shared 1 | own |
//   graph B   | shared 0 | own | shared 1 | shared 2 |
//
// During a capture nothing runs, and all addresses have shared chunks. settle() then gives chunks
// of their own to what stays, which they keep. The caller orders the replays.
//
// Addresses are requested in segments. Those of one pool never share with each other: the segments
// of a graph, and those of graphs that torch's private pools let share addresses.
//
// Thread-safe. Never destroyed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "base/types.h"
#include "device/cuda_runtime.h"

namespace stalloc::device {

class GraphMemory {
 public:
  using Pool = std::pair<std::uint64_t, std::uint64_t>;  // torch's id of a private pool
  struct Addresses {
    std::uintptr_t begin = 0;
    std::uintptr_t end = 0;
  };
  struct Figures {
    Bytes addresses = 0;
    Bytes shared = 0;  // memory
    Bytes own = 0;     // memory
    std::size_t pools = 0;
  };

  // The only one of a device. Throws Error without a GPU runtime or virtual memory.
  static GraphMemory& of(int device);
  // The same if of() has made it, else null.
  static GraphMemory* known(int device) noexcept;

  GraphMemory(const CudaRuntime& runtime, int device);
  ~GraphMemory();
  GraphMemory(const GraphMemory&) = delete;
  GraphMemory& operator=(const GraphMemory&) = delete;

  // The capture of a graph begins: segments that are requested from now on belong to `pool`.
  void begin(Pool pool);
  // It has ended, or failed.
  void end() noexcept;
  // A segment of at least `size` bytes; null if the device lacks the memory.
  void* allocate(Bytes size) noexcept;
  // Waits for the device. A segment that cannot go while a graph is captured goes with a later
  // call.
  void release(void* p) noexcept;

  // A capture into `pool` has ended, and the blocks at `kept` live. Waits for the device. Throws
  // OutOfMemory if it lacks the memory; then the graph must not be replayed.
  void settle(Pool pool, std::span<const Addresses> kept);

  Figures figures() const;

 private:
  static constexpr std::size_t kOwn = static_cast<std::size_t>(-1);

  struct Chunk {
    std::size_t shared = kOwn;  // index of the shared chunk
    std::uint64_t handle = 0;   // of its own one
  };
  struct Segment {
    Pool pool;
    std::size_t room = 0;  // bytes of addresses
    std::vector<Chunk> chunks;
  };
  struct Shared {  // no memory while there are no users
    std::uint64_t handle = 0;
    std::size_t users = 0;  // pools
  };
  using Segments = std::map<std::uintptr_t, Segment>;

  // The first shared chunk from `index` on that the pool does not use.
  std::size_t unused_from(std::size_t index, const std::set<std::size_t>& used) const;
  bool use(std::size_t index, std::set<std::size_t>& used) noexcept;
  void leave(std::size_t index, std::set<std::size_t>& used) noexcept;
  void trim() noexcept;
  bool map(std::uintptr_t at, std::uint64_t handle) noexcept;
  // Puts another chunk behind mapped addresses. Throws Error.
  void replace(std::uintptr_t at, std::uint64_t handle);
  std::uint64_t create() noexcept;  // 0: the device lacks the memory
  void make_own(std::uintptr_t at, Chunk& chunk, std::set<std::size_t>& used);
  void compact(Pool pool, std::set<std::size_t>& used);
  void drop(Segments::iterator segment) noexcept;
  void drop_retired() noexcept;
  std::size_t in_bytes(std::size_t chunks) const { return chunks * unit_; }

  const CudaRuntime& runtime_;
  const int device_;
  std::size_t unit_ = 0;  // bytes of a chunk
  mutable std::mutex mutex_;
  Pool current_{};
  bool captures_ = false;
  Segments segments_;
  std::map<Pool, std::set<std::size_t>> used_;  // shared chunks of a pool
  std::vector<Shared> shared_;
  std::size_t own_ = 0;  // chunks
  std::vector<std::uintptr_t> retired_;
};

}  // namespace stalloc::device
