// A model of GMLake's allocator: computes without a device which device memory a sequence of
// requests would take under it.
//
// GMLake (Guo et al., ASPLOS '24) is torch 2.0's caching allocator with stitching: it maps idle
// pieces of several segments to one more range of addresses, where they serve a request that fits
// in none of them. The model follows the allocator's published source and its defaults
// (intelligent-machine-learning/glake, GMLake/src/CUDACachingAllocator.cpp):
//
//   - A request of up to 1 MiB is served as by torch. A larger one has whole chunks of 2 MiB; its
//     segment has 20 MiB if it is below 10 MiB, else its own size.
//   - First the smallest free block that fits; what is left of it is free.
//   - Else the smallest idle stitched range of at least the size and at most `reuse_limit` times
//     it. Its first chunks are taken, and the blocks that they belong to are divided there.
//   - Else, from `fragment_limit` on, a new stitched range: of free blocks of the stream, the
//     largest first, until they suffice; the last one is divided.
//   - Else a new segment, if need be after all wholly free segments have gone back. There, at the
//     end of memory, the model is not exact: it is only compared where memory suffices.
//   - A stitched range stays, and is idle again once none of its chunks is in use. When all ranges
//     together exceed `stitched_limit`, those that serve no request are unmapped.
//
//   segments    [A A|. .|B B B]   [. . .|C]          # chunks, in use or free
//   stitched          \ /          \ /
//               [ . . . . ]                          the same chunks at other addresses
//
// The model has neither private pools of CUDA graphs nor events, as CachingModel.
//
// Cost: O(log n) a request, and O(c + m) for its c chunks and the m places of these in stitched
// ranges. Not thread-safe.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <set>
#include <vector>

#include "base/types.h"
#include "replay/caching_model.h"

namespace stalloc::replay {

// GMLake's environment variables, with its defaults.
struct StitchingSettings {
  Bytes fragment_limit = Bytes{512} << 20;   // fragLimit
  double reuse_limit = 10;                   // reuseLimit
  Bytes stitched_limit = Bytes{1000} << 30;  // autoGC
  Bytes capacity = CachingSettings::kUnlimited;
};

class StitchingModel {
 public:
  using Id = std::int32_t;  // of a live block; numbers of freed ones are used again
  static constexpr Id kOutOfMemory = -1;

  explicit StitchingModel(const StitchingSettings& settings = {});
  StitchingModel(const StitchingModel&) = delete;
  StitchingModel& operator=(const StitchingModel&) = delete;

  // As CachingModel's.
  Id malloc(Bytes size, StreamId stream);
  void free(Id id);
  void reset_peaks();

  // `maps` and `unmaps` count chunks, whether of segments or of stitched ranges.
  const CachingStats& stats() const { return stats_; }

  // The chunks that serve a live block, in the order of its addresses; none for a small one. For
  // tests.
  std::vector<std::int64_t> chunks(Id id) const;

  // Throws Error unless blocks tile the segments, free neighbours are merged, and the sets and
  // counts are right. For tests.
  void check() const;

 private:
  struct Block {  // consecutive chunks of a segment: all in use, or all free
    std::int64_t first = 0;
    std::int64_t count = 0;
    StreamId stream = 0;
    bool live = false;
    Block* previous = nullptr;
    Block* next = nullptr;
  };
  struct Range {             // a stitched one
    std::int64_t order = 0;  // of the ranges' addresses
    StreamId stream = 0;
    std::int64_t count = 0;
    std::vector<std::int64_t> chunks = {};  // so many
    std::int64_t used = 0;                  // chunks in use, by whomever
    std::int64_t held = 0;                  // the first chunks, which serve a request as this range
    bool goes = false;  // some of its chunks are gone, and so is the range once it is free
  };
  struct Chunk {
    bool used = false;
    Block* block = nullptr;  // null once its segment is gone
    std::vector<Range*> ranges;
  };
  struct BySize {
    bool operator()(const Block* a, const Block* b) const;
    bool operator()(const Range* a, const Range* b) const;
  };
  struct Live {
    Bytes requested = 0;  // 0: no live block
    Bytes rounded = 0;
    CachingModel::Id small = CachingModel::kOutOfMemory;
    Block* block = nullptr;
    Range* range = nullptr;
  };

  bool allocate_small(Live& live, StreamId stream);
  bool allocate_large(Live& live, StreamId stream);
  Block* best_fit(StreamId stream, std::int64_t count) const;
  Range* best_range(StreamId stream, std::int64_t count) const;
  Range* stitch(StreamId stream, std::int64_t count);
  Block* grow(StreamId stream, std::int64_t count);
  Block* new_block(const Block& block);

  void take(Block* block, std::int64_t count);
  void take(Range* range, std::int64_t count);
  void give_back(Block* block);
  void give_back(Range* range);
  void cut(Block* block, std::int64_t count);
  void divide(Block* block);
  void merge(Block* block, Block* next);
  void use(std::int64_t chunk);
  void leave(std::int64_t chunk);
  Chunk& at(std::int64_t chunk) { return chunks_[static_cast<std::size_t>(chunk)]; }
  const Chunk& at(std::int64_t chunk) const { return chunks_[static_cast<std::size_t>(chunk)]; }

  void unmap(Range* range);
  void unmap_unused_ranges();
  void release_cached();
  void update_stats(Bytes requested, Bytes rounded);

  const StitchingSettings settings_;
  CachingModel small_;
  std::deque<Chunk> chunks_;              // of all segments, also of those that are gone
  std::map<std::int64_t, Block> blocks_;  // by their first chunk
  std::map<std::int64_t, Range> ranges_;  // by their order
  std::set<Block*, BySize> free_;
  std::set<Range*, BySize> idle_;  // without a chunk in use
  std::vector<Live> live_;         // by id
  std::vector<Id> unused_;         // ids
  std::int64_t made_ = 0;          // ranges
  Bytes stitched_ = 0;
  Bytes large_ = 0;  // reserved
  std::int64_t maps_ = 0;
  std::int64_t unmaps_ = 0;
  CachingStats stats_;
};

}  // namespace stalloc::replay
