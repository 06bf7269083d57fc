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
// a pool may have the addresses of the first one: then they have one chunk if they may in both. The
// graphs of a pool are replayed in the order of their captures, so what one leaves for the next is
// free from the time when that one freed it: activations, during the backward pass. Their chunks
// are then given to other blocks of the pool that live on, and lent to its temporaries while no
// block lives there:
//
//   a chunk of pool A   | activations | temporaries of the backward pass  |
//   another one         | activations     | gradients, which live on ...
//
// Between two replays nothing lies in the shared chunks. So eager blocks may have them, too: lend()
// gives them addresses, as if for one more graph. What of these blocks is still needed when a graph
// is replayed keeps its chunks, and the graphs get others for them: keep().
//
//   eager blocks | shared 0 | shared 1 | shared 2 |
//
// Several captures may go on at once on a device, in several threads. One of them at a time is into
// a pool that is known here; the segments that are requested meanwhile belong to that pool.
//
// Thread-safe. Never destroyed.
#pragma once

#include <atomic>
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
  // A block of a capture: when it lived, and which stream requested it.
  struct Use {
    static constexpr std::int64_t kAlways = std::int64_t{1} << 40;  // later than any capture's end

    Addresses block;
    std::int64_t from = 0;      // 0: before the capture
    std::int64_t to = kAlways;  // which is still
    std::uint64_t stream = 0;
  };
  struct Figures {
    Bytes addresses = 0;
    Bytes shared = 0;  // memory
    Bytes own = 0;     // memory
    Bytes eager = 0;   // memory that eager blocks have kept
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

  // The capture of a graph begins: segments that are requested from now on belong to `pool`. {0, 0}
  // is any pool whose segments come from elsewhere. Throws Error if another capture into a pool
  // goes on, unless this one is into {0, 0}.
  void begin(Pool pool);
  // The capture into `pool` has ended, or failed.
  void end(Pool pool) noexcept;
  // A segment of at least `size` bytes; null if the device lacks the memory.
  void* allocate(Bytes size) noexcept;
  // Waits for the device. While graphs are captured on it, the segment stays until the last has
  // ended.
  void release(void* p) noexcept;

  // A capture into `pool` has ended, and the blocks at `kept` live. `uses`: all that lived during
  // the capture; none if they are not known. Waits for the device if the pool has earlier graphs.
  // Throws OutOfMemory if the device lacks the memory, and Error if it has to be waited for while
  // another graph is captured on it; then the graph must not be replayed.
  void settle(Pool pool, std::span<const Addresses> kept,
              std::optional<std::span<const Use>> uses = std::nullopt);

  // Bytes of the shared chunks that graphs have: what lend() can give.
  Bytes lendable() const;
  // Addresses that have those chunks, one after another, for eager blocks; null unless `size` bytes
  // can be lent. Until release(). Whoever lends at several addresses lets no two blocks live at
  // once in one chunk.
  void* lend(Bytes size) noexcept;
  // True if `p` lies in lent addresses.
  bool lends(const void* p) const;
  // Grows whenever the chunks that can be lent may have changed.
  std::uint64_t changes() const { return changes_.load(std::memory_order_acquire); }
  // Eager blocks at lent addresses keep their chunks for as long as these addresses stay. The
  // graphs get new memory for them, without what they hold. Waits for the device. Throws
  // OutOfMemory if it lacks the memory, and Error if it cannot be waited for because a graph is
  // captured on it; then nothing has changed.
  void keep(std::span<const Addresses> blocks);

  Figures figures() const;

 private:
  static constexpr std::size_t kOwn = static_cast<std::size_t>(-1);
  static constexpr std::size_t kBlank = static_cast<std::size_t>(-2);

  struct Chunk {
    std::size_t shared = kBlank;  // index of the shared chunk
    std::uint64_t handle = 0;     // of one of its pool's own
    bool is_lent = false;         // that one is of other addresses, at other times
    bool lives = false;           // a block lived here when the last capture ended
  };
  // In place of the pool of segments that are lent: no pool of torch's.
  static constexpr Pool kEager{~std::uint64_t{0}, ~std::uint64_t{0}};
  struct Segment {
    Pool pool;
    std::size_t room = 0;  // bytes of addresses
    std::vector<Chunk> chunks;
  };
  struct Shared {  // no memory while there are no users
    std::uint64_t handle = 0;
    std::size_t users = 0;  // addresses
    std::size_t lent = 0;   // of these, those for eager blocks
  };
  struct Move {  // of addresses to another chunk
    std::uintptr_t at = 0;
    Chunk* chunk = nullptr;
    Chunk to;
  };
  struct Page {  // of a pool, to which a chunk is to be given
    std::uintptr_t at = 0;
    Chunk* chunk = nullptr;
    bool alone = true;  // shares with no other of its pool
    std::uint64_t stream = 0;
    std::vector<std::pair<std::int64_t, std::int64_t>> times = {};  // ascending
    bool lives = false;                                             // a block lives here now
  };
  class Colors;
  class OwnChunks;
  struct Search {  // for chunks: those before these indices do not fit the last page, nor its like
    const Page* last = nullptr;
    std::size_t own = 0;
    std::size_t shared = 0;

    void start(const Page& page) {
      if (!last || page.alone || page.stream != last->stream || page.times != last->times) {
        own = shared = 0;
      }
      last = &page;
    }
  };
  struct Record {  // of the captures into a pool
    bool is_complete = true;
    std::int64_t captures = 0;
    std::vector<Use> uses = {};
    std::map<std::uintptr_t, std::size_t> open = {};  // uses that last, by the block's begin
  };
  using Segments = std::map<std::uintptr_t, Segment>;

  bool map(std::uintptr_t at, std::uint64_t handle) noexcept;
  // Puts another chunk behind mapped addresses. Throws Error.
  void replace(std::uintptr_t at, std::uint64_t handle);
  std::uint64_t create() noexcept;  // 0: the device lacks the memory
  std::uint64_t create_or_throw();
  bool map_new(std::uintptr_t at, bool is_blank, Chunk* chunk) noexcept;
  // Addresses are to have the chunk, which may get its memory now, or have left it. Throws
  // OutOfMemory.
  void join(Chunk& chunk);
  void leave(const Chunk& chunk) noexcept;
  void leave_lent(const Chunk& chunk) noexcept;
  std::vector<std::size_t> lendable_chunks() const;
  // Calls `visit(at, chunk)` for the chunks of a pool behind the addresses.
  template <typename Visit>
  void for_each_chunk(Pool pool, Addresses addresses, Visit visit);
  static bool is_owner(const Chunk& chunk) { return chunk.shared == kOwn && !chunk.is_lent; }
  // The pages of a pool that have had blocks, in the order of time.
  std::vector<Page> pages_of(Pool pool, const Record& record, std::span<const Addresses> kept);
  // Pages of a pool whose blocks do not live at once may have one chunk.
  std::vector<Move> chunks_for(std::span<const Page> pages);
  // Throws OutOfMemory; then all pages have what they had.
  void apply(std::vector<Move> moves);
  // Earlier graphs of a pool, whose memory is to change, may run.
  void wait_for_graphs();
  static void note(Record& record, std::span<const Use> uses);
  void drop(Segments::iterator segment) noexcept;
  void drop_retired() noexcept;
  std::size_t in_bytes(std::size_t chunks) const { return chunks * unit_; }

  const CudaRuntime& runtime_;
  const int device_;
  std::size_t unit_ = 0;  // bytes of a chunk
  std::vector<CudaRuntime::Access> accesses_;
  mutable std::mutex mutex_;
  Pool current_{};            // of the capture into a pool; {0, 0} if there is none
  std::size_t captures_ = 0;  // that go on
  Segments segments_;
  std::map<Pool, Record> records_;
  std::vector<Shared> shared_;
  std::uint64_t blank_ = 0;
  std::size_t blanks_ = 0;                    // addresses that have the blank chunk
  std::map<std::uint64_t, std::size_t> own_;  // chunks of pools: the addresses that have each
  std::vector<std::uintptr_t> retired_;
  std::atomic<std::uint64_t> changes_{0};
};

}  // namespace stalloc::device
