// The eager blocks that lie in the memory of captured graphs: where there is room for another one,
// and which requests had better lie elsewhere.
//
// Between two replays, which is a round here, the memory is free. A block that is still needed at
// the next replay keeps its memory and costs a wait for the device, so no further request of its
// size gets such memory. Nor does one of a size that record_stream() was called for: torch gives
// such a block's memory back at a time that is not known here. After some such surprises only sizes
// get it whose blocks were all freed within their round before.
//
// Addresses are those of blocks that torch places: it splits free memory, and joins it again. A
// block may have up to 1 MiB more than was asked for.
//
// Not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <unordered_map>
#include <vector>

#include "base/types.h"
#include "device/graph_memory.h"

namespace stalloc::device {

class LoanBook {
 public:
  using Addresses = GraphMemory::Addresses;
  static constexpr Bytes kLeast = Bytes{2} << 20;    // smaller requests are not worth it
  static constexpr std::size_t kMostBlocks = 256;    // at once: fits() looks at each
  static constexpr std::size_t kMostSizes = 4096;    // that are remembered
  static constexpr std::size_t kMostSurprises = 16;  // before unknown sizes are no longer tried

  // True if a request of this size may lie in the memory.
  bool suits(Bytes size) const;
  // True if torch finds a place for it in these addresses, all of which are free but for blocks
  // that are known here.
  bool fits(Addresses memory, Bytes size) const;

  void lend(std::uintptr_t begin, Bytes size);
  bool knows(std::uintptr_t begin) const { return blocks_.contains(begin); }
  // record_stream() is called for a known block.
  void record(std::uintptr_t begin);
  // A known block is freed.
  void take_back(std::uintptr_t begin);

  bool any_live() const;
  // No block's memory is in use, nor may be: of freed ones that were recorded, too.
  bool is_idle() const { return blocks_.empty(); }
  // The memory is no longer used for other blocks.
  void clear() { blocks_.clear(); }
  std::vector<Addresses> live() const;

  // A graph is about to be replayed: judges the sizes of this round, and forgets the blocks that
  // still live.
  void end_round();
  // Forgets the blocks that still live, and learns nothing: a program may request tensors that a
  // graph will read which it is about to capture.
  void interrupt_round();

 private:
  struct Block {
    Bytes size = 0;
    bool is_recorded = false;
    bool is_freed = false;  // but recorded
  };
  static Bytes rounded(Bytes size);
  void forget_live();

  std::map<std::uintptr_t, Block> blocks_;
  std::unordered_map<Bytes, bool> sizes_;  // whether it suits
  std::set<Bytes> round_;                  // sizes of blocks in it
  std::size_t surprises_ = 0;
};

}  // namespace stalloc::device
