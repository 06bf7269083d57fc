// A model of torch's CUDA caching allocator: computes without a device which device memory a
// sequence of requests would take.
//
// The model follows c10/cuda/CUDACachingAllocator.cpp step by step, with the same sets in the same
// order, so that it makes the same choices:
//
//   - Sizes are rounded up to 512 B, or to a division of a power of two if that is set.
//   - A request of up to 1 MiB is small: it is cut from a segment of 2 MiB. Below 10 MiB it is cut
//     from a segment of 20 MiB. A larger one has a segment of its own, rounded up to 2 MiB.
//   - Best fit among the free blocks of the same stream and pool, by size, then address.
//   - A block is split if the rest is at least 512 B (small, or expandable) or over 1 MiB (large).
//   - If the device has no memory left, all wholly cached segments go back to it. Then the request
//     is tried once more.
//
//   segments       [####|..|##]  [#####.....]            each from one cudaMalloc
//   expandable     [####|..|##|.......~~~~~~~~~~~~~~]    address space; # live . free ~ not mapped
//
// With expandable segments, each stream and pool has one range of addresses that is larger than the
// device. It is mapped in steps of 2 MiB (small) or 20 MiB (large), at its end or in its holes.
//
// The model has no private pools of CUDA graphs and no events: a free counts as completed, at the
// tick that the trace says. Addresses ascend in the order of the device's allocations.
//
// Cost: O(log n) a request. Not thread-safe.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <limits>
#include <set>
#include <utility>
#include <vector>

#include "base/types.h"
#include "replay/placements.h"
#include "runtime/statistics.h"

namespace stalloc::replay {

// The settings of PYTORCH_CUDA_ALLOC_CONF, with torch's defaults.
struct CachingSettings {
  static constexpr Bytes kUnlimited = std::numeric_limits<Bytes>::max();
  // Sizes from 2^20 to 2^35 have a number of divisions each. Smaller sizes have that of the first,
  // larger ones that of the last.
  static constexpr std::size_t kRoundupIntervals = 16;

  bool expandable_segments = false;
  Bytes max_split_size = kUnlimited;
  // A block above `max_split_size` serves requests that are smaller by less than this.
  Bytes max_non_split_rounding = Bytes{20} << 20;
  double garbage_collection_threshold = 0;  // of the capacity; 0: off
  std::array<std::int64_t, kRoundupIntervals> roundup_power2_divisions = {};
  Bytes capacity = kUnlimited;  // of the device
};

struct CachingStats {
  runtime::Gauge requested;  // as asked
  runtime::Gauge allocated;  // rounded
  runtime::Gauge reserved;   // of the device
  std::int64_t mallocs = 0;  // cudaMalloc that succeeded
  std::int64_t frees = 0;    // cudaFree
  std::int64_t maps = 0;     // chunks created and mapped
  std::int64_t unmaps = 0;   // chunks unmapped
  std::int64_t retries = 0;  // how often everything cached was given back
  std::int64_t ooms = 0;     // requests that failed

  std::int64_t native_calls() const { return mallocs + frees + maps + unmaps; }
};

class CachingModel {
 public:
  using Id = std::int32_t;  // of a live block; numbers of freed ones are used again
  static constexpr Id kOutOfMemory = -1;

  explicit CachingModel(const CachingSettings& settings = {});
  CachingModel(const CachingModel&) = delete;
  CachingModel& operator=(const CachingModel&) = delete;

  // Allocates `size` > 0 bytes. Returns kOutOfMemory if the capacity does not suffice even with
  // nothing cached. Throws OverflowError for a size that cannot be rounded up.
  Id malloc(Bytes size, StreamId stream);

  // Frees a live block; throws Error for any other number.
  void free(Id id);

  // Calls `help` where no cached block fits, before more of the device is taken: it may empty the
  // cache. torch calls such callbacks there.
  void when_short(std::function<void(Bytes size)> help) { when_short_ = std::move(help); }

  // Another allocator holds so many bytes of the device from now on.
  void set_withheld(Bytes bytes) { withheld_ = bytes; }

  // Gives all wholly cached segments back to the device, as torch.cuda.empty_cache() does.
  void empty_cache();

  const CachingStats& stats() const { return stats_; }
  const CachingSettings& settings() const { return settings_; }

  // The bytes of the largest cached block, as torch's cacheInfo() tells them; 0 if there is none.
  Bytes largest_cached() const;

  // The address of a live block.
  Offset address(Id id) const { return blocks_[static_cast<std::size_t>(id)].address; }

  // Records in `placements` all memory taken from the device or given back from now on. May be
  // null.
  void note_in(Placements* placements) { placements_ = placements; }
  void reset_peaks();

  // Throws Error unless blocks tile the segments, free neighbours are merged, the sets hold exactly
  // the free blocks, and the counts are right. For tests.
  void check() const;

 private:
  struct Block {
    Id id = kNone;
    Offset address = 0;
    Bytes size = 0;
    Bytes requested = 0;
    StreamId stream = 0;
    bool small = false;
    bool in_use = false;  // the object, not the memory
    bool live = false;
    bool mapped = true;
    std::int32_t range = kNone;  // of expandable segments: index into ranges_
    std::int64_t age = 0;        // searches of its pool before it was cached
    Block* previous = nullptr;
    Block* next = nullptr;

    bool is_split() const { return previous != nullptr || next != nullptr; }
  };
  struct BySize {
    bool operator()(const Block* a, const Block* b) const;
  };
  struct ByAddress {
    bool operator()(const Block* a, const Block* b) const;
  };
  struct Pool {
    std::set<Block*, BySize> free;
    std::set<Block*, ByAddress> unmapped;
    std::int64_t searches = 0;
  };
  struct Range {  // the address space of an expandable segment
    Offset address = 0;
    Bytes size = 0;
    Bytes chunk = 0;
  };
  struct Search {
    Bytes size = 0;  // rounded
    StreamId stream = 0;
    bool small = false;
  };

  Bytes round(Bytes size) const;
  static Bytes segment_size(Bytes size);
  bool worth_splitting(const Block& block, Bytes size) const;
  Pool& pool(bool small) { return small ? small_ : large_; }
  bool collects_garbage() const;

  Block* new_block(const Search& search, Offset address, Bytes size);
  void forget(Block* block);
  void cache(Block* block);
  bool merge(Block* block, Block* neighbour);
  static void insert_before(Block* block, Block* next);
  static void insert_after(Block* block, Block* previous);

  Block* find_free(const Search& search);
  Block* allocate_segment(const Search& search);
  Block* allocate_expandable(const Search& search);
  Block* find_expandable(const Search& search);
  bool map(Block* block, Bytes size);
  void unmap(Block* block);
  bool release_oversize(const Search& search);
  void release_segment(Block* block);
  void release_cached(Pool& pool);
  void collect_garbage();
  Id hand_out(Block* block, const Search& search, Bytes requested);

  // The bytes that the device has left.
  Bytes available() const { return settings_.capacity - withheld_ - stats_.reserved.current; }

  const CachingSettings settings_;
  Bytes withheld_ = 0;
  std::function<void(Bytes)> when_short_;
  std::deque<Block> blocks_;  // by id; addresses of its elements are stable
  std::vector<Id> unused_;    // ids
  Pool large_;
  Pool small_;
  std::vector<Range> ranges_;
  Offset next_address_;
  CachingStats stats_;
  Placements* placements_ = nullptr;
};

}  // namespace stalloc::replay
