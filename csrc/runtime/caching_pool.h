// A small caching allocator: the fallback of devices without an allocator of their own.
//
// Follows the policy of torch's CUDA caching allocator, which is the paper's fallback
// (section 6.2): sizes rounded to 512 B; requests up to 1 MiB cut from segments of 2 MiB, those
// under 10 MiB from segments of 20 MiB, larger ones get a segment rounded up to 2 MiB; best fit per
// stream by size, then address; a block is split when what remains is worth keeping, and merged
// with its neighbours when freed. Segments stay until release_cached(), or until the device runs
// out. deallocate() with `keep` false returns an empty segment at once; release_unused() returns
// the empty segments that nobody used since its last call.
//
// Beyond torch's policy, memory may go between live blocks, and comes back with the next request
// for its addresses:
//
//   segment   | live |   free    | live | free      |
//   memory    | there       | absent    | there     |      give_back() takes whole chunks
//
// Not thread-safe: PlannedAllocator locks.
#pragma once

#include <map>
#include <set>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "base/align.h"
#include "base/range_set.h"
#include "base/types.h"
#include "device/memory.h"

namespace stalloc::runtime {

class CachingPool {
 public:
  explicit CachingPool(device::DeviceMemory& device) : device_(device), unit_(device.unit()) {}
  CachingPool(const CachingPool&) = delete;
  CachingPool& operator=(const CachingPool&) = delete;
  ~CachingPool();

  // Returns `size` > 0 bytes, aligned to kDefaultAlignment; null if the device lacks the memory
  // even after all cached segments have been returned. deallocate() returns `marked` with the
  // block.
  void* allocate(Bytes size, StreamId stream, bool marked = false);

  // True if a free block, all of which has memory, can serve such a request.
  bool holds(Bytes size, StreamId stream) const;
  // The bytes that such a request takes of the device else: of a segment, or those that a free
  // block lacks.
  Bytes growth(Bytes size, StreamId stream) const;
  // True if the live block `p` can serve it once it is free. False for any other pointer.
  bool would_serve(const void* p, Bytes size, StreamId stream) const;

  // A thrifty pool makes segments as large as the request needs. If it also `returns`, it gives
  // empty segments back before it adds one, for which a GPU waits until all streams are idle.
  void set_thrifty(bool thrifty, bool returns) {
    thrifty_ = thrifty;
    returns_ = returns;
  }

  // While set, new large segments are movable if the device has such, and blocks may get memory
  // before a segment is added.
  void set_moves(bool moves) { moves_ = moves; }
  // A captured graph cannot wait for the device: movable segments lose and get no memory.
  void set_capturing(bool capturing) { capturing_ = capturing; }

  static constexpr Bytes kNotOurs = -1;
  struct Freed {
    Bytes size = kNotOurs;  // as it was asked for
    bool marked = false;
  };

  // Frees a block. For any other pointer the result has the size kNotOurs. Unless `keep`, the
  // segment goes back to the device if no live block is left in it.
  Freed deallocate(void* p, bool keep = true);

  // Returns what deallocate() would, and the stream of a live block.
  Freed find(const void* p) const;
  StreamId stream_of(const void* p) const;  // of a live block

  // The segment that holds `p`, or its part between addresses without memory; null if none does.
  struct Segment {
    void* begin = nullptr;
    Bytes size = 0;
  };
  Segment segment_of(const void* p) const;
  // All of them, ascending.
  std::vector<Segment> segments() const;

  // All blocks, live and free, by address.
  struct BlockInfo {
    void* begin = nullptr;
    Bytes size = 0;       // rounded
    Bytes requested = 0;  // 0 while free
    StreamId stream = 0;
    void* segment = nullptr;
  };
  std::vector<BlockInfo> blocks() const;

  // Returns segments without a live block to the device. Returns their bytes.
  Bytes release_cached();

  // The same for the segments that have served no request since the last call.
  Bytes release_unused();

  // Returns about `size` bytes of free blocks in movable segments to the device, of the largest
  // first. The block that a request of `next` bytes would get keeps its memory. Waits for the
  // device. Returns the bytes.
  Bytes give_back(Bytes size, Bytes next, StreamId stream);

  Bytes reserved() const { return reserved_; }
  std::size_t live_blocks() const { return live_; }
  Bytes largest_hole() const;

  // Throws Error unless segments are tiled by their blocks, no two free neighbours are left
  // unmerged, and the counts are right. For tests.
  void check() const;

 private:
  using Address = std::uintptr_t;

  struct Block {
    Bytes size = 0;       // rounded
    Bytes requested = 0;  // 0 while free
    StreamId stream = 0;
    bool small = false;
    bool marked = false;
    Address segment = 0;
    Bytes absent = 0;  // of a free block: the bytes without memory
  };
  struct Held {  // a segment
    Bytes size = 0;
    bool used = true;      // since release_unused()
    Bytes chunk = 0;       // in which its memory moves; 0: it does not
    Bytes missing = 0;     // the bytes without memory
    RangeSet absent = {};  // their offsets
  };
  struct Shelf {  // free blocks are only exchanged within one
    StreamId stream = 0;
    bool small = false;
    bool lacks = false;  // memory
    auto operator<=>(const Shelf&) const = default;
  };
  using FreeKey = std::tuple<Shelf, Bytes, Address>;
  using Blocks = std::map<Address, Block>;

  std::set<FreeKey>::const_iterator find_free(Bytes rounded, const Shelf& shelf) const;
  bool is_small(Bytes rounded) const { return rounded <= unit_ / 2; }
  Bytes segment_size(Bytes rounded) const;
  bool worth_splitting(Bytes rest, bool small) const;
  Blocks::iterator add_segment(Bytes size, const Shelf& shelf);
  static FreeKey key_of(Blocks::const_iterator block);

  // caching_pool_memory.cpp has these: blocks may lack memory.
  static Range offsets_of(Blocks::const_iterator block);
  Bytes absent_in(Blocks::const_iterator block) const;
  std::vector<Range> lacking_units(Blocks::const_iterator block, Offset at, Bytes rounded) const;
  struct Fit {  // a place in a block that lacks memory
    Blocks::const_iterator block;
    Offset at = 0;      // in the segment
    Bytes lacking = 0;  // what the request needs
  };
  Fit best_place(Blocks::const_iterator block, Bytes rounded) const;
  Fit find_lacking(Bytes rounded, const Shelf& shelf, bool moves) const;
  Blocks::iterator fill(Bytes rounded, const Shelf& shelf, bool moves);
  Blocks::iterator split_front(Blocks::iterator block, Offset at);
  bool may_release(Address segment) const;
  Bytes detach(Blocks::iterator block, Bytes size);

  Blocks::iterator make_free(Blocks::iterator block);
  void forget_free(Blocks::iterator block);
  bool is_whole_segment(Blocks::const_iterator block) const;
  void release_segment(Blocks::iterator block);

  device::DeviceMemory& device_;
  const Bytes unit_;
  bool thrifty_ = false;
  bool returns_ = false;
  bool moves_ = false;
  bool capturing_ = false;
  Blocks blocks_;           // all blocks, live and free, of all segments
  std::set<FreeKey> free_;  // the free ones
  std::unordered_map<Address, Held> segments_;
  Bytes reserved_ = 0;
  std::size_t live_ = 0;
};

}  // namespace stalloc::runtime
