// The interface of memory sources. No other folder takes memory from the machine.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/align.h"
#include "base/range.h"
#include "base/types.h"

namespace stalloc::device {

// The pools that are virtual memory: addresses with memory mapped to them. Such a pool keeps its
// addresses when it is suspended, and grows in place. Another process cannot share it.
enum class VirtualPools : std::uint8_t { kNone, kGrowing, kAll };

// A pool that grows consists of chunks of this size, some 4,000 of them, so that its memory can
// move. `granularity`: the device's.
inline Bytes chunk_of(Bytes pool, Bytes granularity) {
  constexpr Bytes kChunks = 4096, kLargest = Bytes{32} << 20;
  return align_up(std::clamp<Bytes>(pool / kChunks, 1, std::max(kLargest, granularity)),
                  granularity);
}

// The addresses of a pool that can grow, as a multiple of the device's memory: memory that moves
// leaves addresses behind.
inline constexpr Bytes kRoomPerMemory = 4;

// A source of large, rarely requested pieces. Thread-safe.
class DeviceMemory {
 public:
  virtual ~DeviceMemory() = default;

  virtual std::string_view name() const = 0;

  // The smallest sensible request: the cost of a call and the granularity of memory differ widely
  // between devices.
  virtual Bytes unit() const { return Bytes{2} << 20; }

  // The alignment of every piece: a multiple of kDefaultAlignment.
  virtual Bytes alignment() const { return kDefaultAlignment; }

  // True for page-locked host memory. Streams of any device use its blocks, and the host cannot be
  // made to wait for them. A piece is so expensive to take and to return that unused ones are kept.
  virtual bool is_pinned() const { return false; }

  // Returns a piece of at least `size` (> 0) bytes; null if the device has not that much left.
  virtual void* allocate(Bytes size) = 0;

  // Sets the pools that are virtual memory from now on. Returns false, without effect, if all shall
  // be and the device has no virtual memory.
  virtual bool use_virtual(VirtualPools pools) { return pools != VirtualPools::kAll; }

  // Like allocate(), for a plan's pool. `grows`: the pool may need more memory later.
  virtual void* allocate_pool(Bytes size, bool /*grows*/) { return allocate(size); }

  // Like allocate_pool() of a pool that grows, but addresses from `memory` (> 0, whole units) on
  // have none until attach(). Null if the device has no such pools, or has not that much left.
  virtual void* allocate_addresses(Bytes /*size*/, Bytes /*memory*/) { return nullptr; }

  // Like allocate(), but detach() and attach() move its memory, in chunks of at least `chunk` (> 0)
  // bytes. Addresses from `memory` on (> 0, whole chunks, or all of `size`) have none until
  // attach(). Null if the device has no such pieces, or has not that much left.
  virtual void* allocate_movable(Bytes /*size*/, Bytes /*memory*/, Bytes /*chunk*/) {
    return nullptr;
  }

  // True if grow() can add memory to the pool.
  virtual bool can_grow(const void* /*pool*/) const { return false; }
  // The bytes for which a pool that can grow has addresses; 0 for others.
  virtual Bytes room(const void* /*pool*/) const { return 0; }

  // Adds memory behind a pool of `before` bytes, which has `size` then. Returns false, without
  // effect, if the device has not that much left.
  virtual bool grow(void* /*pool*/, Bytes /*before*/, Bytes /*size*/) { return false; }

  // Adds addresses without memory behind a pool of `before` bytes, a whole unit: attach() gives
  // them memory. Returns false, without effect, if there are not so many.
  virtual bool extend(void* /*pool*/, Bytes /*before*/, Bytes /*size*/) { return false; }

  // The next five move memory within a pool that can grow, or within a movable piece. Ranges are
  // offsets in it.

  // Takes the memory away from whole chunks of `range`, whose content is lost, and keeps it for
  // attach() and grow(). Returns the range of these chunks; empty if there are none. A device waits
  // for all work that uses the range.
  virtual Range detach(void* /*pool*/, Range /*range*/) { return {}; }

  // The begin of the chunk that `offset` lies in, where it is larger than others; else `offset`.
  virtual Offset large_chunk_at(const void* /*pool*/, Offset offset) const { return offset; }

  // Gives memory to `range`, a part in whole units of addresses without: at first
  // memory that is kept. Returns false, without effect, if the device has not that much left.
  virtual bool attach(void* /*pool*/, Range /*range*/) { return false; }

  // Like attach(), for memory that detach() and drop_detached() have given to the device.
  virtual bool attach_again(void* pool, Range range) { return attach(pool, range); }

  // The pool ends at `size` from now on. There is no memory behind it.
  virtual void shrink(void* /*pool*/, Bytes /*size*/) noexcept {}

  // Takes back the memory that is kept.
  virtual void drop_detached(void* /*pool*/) noexcept {}

  // Takes back a piece or pool, with the size it was allocated with or has grown to.
  virtual void release(void* piece, Bytes size) noexcept = 0;

  // Gives back a pool's memory with its content and keeps its addresses. Returns false, without
  // effect, if that is not possible.
  virtual bool suspend(void* /*piece*/, Bytes /*size*/) { return false; }

  // Maps other memory to the addresses of a suspended pool. Returns false if the device has not
  // that much left.
  virtual bool resume(void* /*piece*/, Bytes /*size*/) { return false; }

  // Estimates the bytes that allocate() can still give; for messages and early refusals.
  virtual Bytes available() const = 0;
};

}  // namespace stalloc::device
