// Memory of captured CUDA graphs that are replayed one after another.
//
// A graph has the addresses of its capture at each replay. Blocks that live on after the capture
// carry values: to the next replay, to another graph, to the program. The others need memory only
// while the graph runs, so different graphs have the same chunks behind these addresses:
//
//   graph A   | own | shared 0 | shared 1 | own |
//   graph B   | shared 0 | own | shared 1 | shared 2 |
//
// During a capture nothing runs, and one blank chunk is behind all addresses. settle() then gives
// chunks of their own to what stays, which they keep, and shared ones to the rest. Within a graph,
// too, two addresses have one chunk if their blocks do not live at once: so the order of requests
// counts, and not the place that the allocator found.
//
// Addresses are requested in segments, which belong to a pool. A second graph that is captured into
// a pool may have the addresses of the first one: then they have one chunk if they may in both.
//
// Thread-safe. Never destroyed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
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
  // A block that was requested and freed during a capture: when, and by which stream's requests.
  struct Use {
    Addresses block;
    std::int64_t from = 0;
    std::int64_t to = 0;
    std::uint64_t stream = 0;
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
  // Waits for the device. While a graph is captured, the segment stays until the capture's end.
  void release(void* p) noexcept;

  // A capture into `pool` has ended, and the blocks at `kept` live. `uses`: all others; none if
  // they are not known. Waits for the device. Throws OutOfMemory if it lacks the memory; then the
  // graph must not be replayed.
  void settle(Pool pool, std::span<const Addresses> kept,
              std::optional<std::span<const Use>> uses = std::nullopt);

  Figures figures() const;

 private:
  static constexpr std::size_t kOwn = static_cast<std::size_t>(-1);
  static constexpr std::size_t kBlank = static_cast<std::size_t>(-2);

  struct Chunk {
    std::size_t shared = kBlank;  // index of the shared chunk
    std::uint64_t handle = 0;     // of its own one
  };
  struct Segment {
    Pool pool;
    std::size_t room = 0;  // bytes of addresses
    std::vector<Chunk> chunks;
  };
  struct Shared {  // no memory while there are no users
    std::uint64_t handle = 0;
    std::size_t users = 0;  // addresses
  };
  struct Page {  // of a pool, to which a shared chunk is to be given
    std::uintptr_t at = 0;
    Chunk* chunk = nullptr;
    bool alone = true;  // shares with no other of its pool
    std::uint64_t stream = 0;
    std::vector<std::pair<std::int64_t, std::int64_t>> times = {};  // ascending
  };
  class Colors;
  struct Record {  // of the captures into a pool
    bool is_complete = true;
    std::int64_t captures = 0;
    std::vector<Use> uses = {};
  };
  using Segments = std::map<std::uintptr_t, Segment>;

  bool map(std::uintptr_t at, std::uint64_t handle) noexcept;
  // Puts another chunk behind mapped addresses. Throws Error.
  void replace(std::uintptr_t at, std::uint64_t handle);
  std::uint64_t create() noexcept;  // 0: the device lacks the memory
  std::uint64_t create_or_throw();
  bool map_new(std::uintptr_t at, bool is_blank, Chunk* chunk) noexcept;
  void make_own(std::uintptr_t at, Chunk& chunk);
  void share(std::uintptr_t at, Chunk& chunk, std::size_t index);
  // The addresses have left their chunk.
  void leave(const Chunk& chunk) noexcept;
  // Calls `visit(at, chunk)` for the chunks of a pool behind the addresses.
  template <typename Visit>
  void for_each_chunk(Pool pool, Addresses addresses, Visit visit);
  std::vector<Page> pages_to_share(Pool pool, const Record& record);
  void drop(Segments::iterator segment) noexcept;
  void drop_retired() noexcept;
  std::size_t in_bytes(std::size_t chunks) const { return chunks * unit_; }

  const CudaRuntime& runtime_;
  const int device_;
  std::size_t unit_ = 0;  // bytes of a chunk
  std::vector<CudaRuntime::Access> accesses_;
  mutable std::mutex mutex_;
  Pool current_{};
  bool captures_ = false;
  Segments segments_;
  std::map<Pool, Record> records_;
  std::vector<Shared> shared_;
  std::uint64_t blank_ = 0;
  std::size_t blanks_ = 0;  // addresses that have the blank chunk
  std::size_t own_ = 0;     // chunks
  std::vector<std::uintptr_t> retired_;
};

}  // namespace stalloc::device
