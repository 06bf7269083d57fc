// Addresses on a GPU, and the chunks of its memory that are mapped to them.
//
//   addresses   | chunk | chunk | chunk |       | chunk |             room
//               +-------+-------+-------+-------+-------+--------------+
//   memory        mapped  mapped  mapped  (none)  mapped    (none)
//
// unmap() takes whole chunks away and keeps them; map() puts kept chunks, and new ones, elsewhere.
// The calls belong to CUDA's virtual memory management. All throw Error if the device fails, and
// need it to be the current one. Not thread-safe.
//
// Note [Large chunks]
//
// The driver takes four calls for a chunk that goes and comes back. Memory that has not moved since
// it came back the last time is not expected to: it comes back in some kFewParts chunks, or in some
// kManyParts until it has been quiet for kQuietTurns. A block holds the whole of its chunk, so they
// have at most kLargest. The first one, which never goes by itself, is small. A large one that is
// in the way of memory that moves costs other memory, so the first kFirstTurns have small ones:
// they show whether it moves. After a turn in which memory moves or is shared, the next one has
// small chunks. Where a large one is in the way of either, so have the next 2, 4, 8 turns; and all
// turns where a block has held one while the rest went.
#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>
#include <optional>
#include <vector>

#include "base/range.h"
#include "device/cuda_runtime.h"

namespace stalloc::device {

// Memory of a device, for CudaRuntime::memory_create.
CudaRuntime::AllocationProperties memory_of(int device);
// Access for the device and those that can reach it: torch lets them copy from each other.
std::vector<CudaRuntime::Access> accesses_of(const CudaRuntime& runtime, int device);

class CudaVirtualRange {
 public:
  // Reserves `room` bytes of addresses.
  CudaVirtualRange(const CudaRuntime& runtime, int device, Bytes room, Bytes chunk);
  ~CudaVirtualRange();
  CudaVirtualRange(const CudaVirtualRange&) = delete;
  CudaVirtualRange& operator=(const CudaVirtualRange&) = delete;

  // `size` in whole units of the device's virtual memory.
  static Bytes whole_units(const CudaRuntime& runtime, int device, Bytes size);

  std::uintptr_t begin() const { return begin_; }
  Bytes room() const { return room_; }
  Bytes end() const { return end_; }  // of the memory
  bool is_mapped() const { return !chunks_.empty(); }
  bool is_mapped_at(Bytes offset) const {
    const auto next = chunks_.upper_bound(offset);
    if (next == chunks_.begin()) return false;
    const auto& [at, chunk] = *std::prev(next);
    return offset < at + chunk.size;
  }

  // Maps memory to `r`, which has none: kept chunks first. False, without effect, if the device
  // lacks the memory.
  bool map(Range r) {
    holds_back_ = false;
    return map_in(r, chunk_);
  }
  // The same for memory that comes back: see Note [Large chunks].
  bool map_again(Range r);
  // Unmaps the whole chunks in `r`, all of which is mapped, and keeps them; large ones go to the
  // device. Waits for the device. Returns their range. The first chunk of all is never among them.
  Range unmap(Range r);
  // The begin of the large chunk that `offset` lies in; `offset` if there is none.
  Offset large_chunk_at(Offset offset) const;
  // Chunks of one size, one behind the other, and a file of each by which another process can map
  // them. The files are the range's.
  struct Shared {
    std::uintptr_t begin = 0;
    Bytes chunk = 0;
    std::vector<int> files;
  };
  // Shares the chunks that hold `r`. None if the device cannot do so, their sizes differ, or more
  // than kMostFiles files would be open.
  static constexpr std::size_t kMostFiles = 256;  // a process may often have 1,024
  std::optional<Shared> share(Range r);
  // Returns the kept chunks to the device.
  void drop_kept() noexcept;
  // Returns all memory to the device, after its work.
  void clear() noexcept;

 private:
  struct Chunk {
    Bytes size = 0;
    std::uint64_t handle = 0;
    int file = -1;  // for other processes; none yet
  };

  static constexpr Bytes kFewParts = 16, kManyParts = 64;
  static constexpr Bytes kLargest = Bytes{256} << 20;
  static constexpr int kFirstTurns = 4, kQuietTurns = 16;
  static constexpr int kMostSmallTurns = 64, kAllTurns = 1 << 30;

  bool map_in(Range r, Bytes chunk_size);
  Bytes large_chunk(Range r) const;
  void begin_turn();
  bool hides_small_chunk(Range r, Offset border) const;
  void be_in_the_way();
  bool take_chunk(Bytes size, Bytes at_most, Chunk* chunk);
  CudaRuntime::Error create(Chunk* chunk);
  void release(const Chunk& chunk) noexcept;
  void undo(const std::map<Bytes, Chunk>& added) noexcept;

  const CudaRuntime& runtime_;
  const int device_;
  const Bytes room_;
  const Bytes chunk_;  // the size of a small chunk, but for the last one of a mapping
  std::uintptr_t begin_ = 0;
  Bytes end_ = 0;
  bool is_shareable_ = true;       // until the device refuses
  bool came_back_ = false;         // and nothing has happened to it since
  bool is_shared_ = false;         // some of it, at some time
  bool shared_ = false;            // the same, before it came back
  bool in_the_way_ = false;        // a large chunk, since it came back
  bool holds_back_ = false;        // a large chunk, since memory was mapped
  int quiet_turns_ = kQuietTurns;  // since memory moved
  bool small_ = false;             // it came back in small chunks
  int small_turns_ = kFirstTurns;  // that are to come
  int next_small_turns_ = 1;       // where a large chunk is in the way again
  std::size_t files_ = 0;          // open ones
  std::map<Bytes, Chunk> chunks_;  // by offset
  std::vector<Chunk> kept_;
};

}  // namespace stalloc::device
