// Memory of CUDA graphs: every replay of a graph uses the memory requested during its capture, so
// nobody else may have that memory until the graph is gone.
//
// torch names such a pool by an id, opens it for the streams that a filter accepts, closes it, and
// finally releases it; it may open the same id again, for graphs that share their memory. Each id
// has segments of its own. A freed block may serve the same stream of the same pool again, because
// a graph keeps the stream's order; a block named by record_stream() is kept until the pool goes.
// A pool goes, with all its segments, when it has been released and no block in it is live.
//
// Thread-safe.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "device/streams.h"
#include "runtime/caching_pool.h"

namespace stalloc::compat {

class GraphPools {
 public:
  using Id = std::pair<std::uint64_t, std::uint64_t>;
  using Filter = std::function<bool(device::StreamHandle)>;

  explicit GraphPools(device::DeviceMemory& device) : device_(device) {}

  void open(Id id, Filter filter);
  void close(Id id);
  void release(Id id);

  // Cheap: called at every request.
  bool any_open() const { return open_.load(std::memory_order_acquire) > 0; }
  bool any() const { return any_.load(std::memory_order_acquire); }

  // `taken` is true if an open pool accepts this stream. Then `block` is null if the device lacks
  // the memory.
  struct Served {
    bool taken = false;
    void* block = nullptr;
  };
  Served allocate(Bytes size, device::StreamHandle stream, StreamId id);

  // Returns false if no pool has the block.
  bool deallocate(void* p);
  bool record_stream(void* p);
  runtime::CachingPool::Segment segment_of(const void* p) const;

  // Returns all blocks with their pool's id, for snapshots.
  std::vector<std::pair<Id, runtime::CachingPool::BlockInfo>> blocks() const;

 private:
  struct Pool {
    explicit Pool(device::DeviceMemory& device) : memory(device) {}

    runtime::CachingPool memory;
    std::vector<Filter> filters;  // while open, innermost last
    int needed = 0;
    std::unordered_set<void*> recorded;  // live, and named by record_stream()
    std::size_t held = 0;                // freed, but kept
  };
  using Pools = std::map<Id, std::unique_ptr<Pool>>;

  void drop_if_done(Pools::iterator pool);

  device::DeviceMemory& device_;
  mutable std::mutex mutex_;
  std::atomic<int> open_{0};
  std::atomic<bool> any_{false};
  Pools pools_;
  std::unordered_map<void*, Id> live_;
};

}  // namespace stalloc::compat
