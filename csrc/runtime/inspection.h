// The memory of the planned allocator as it lies: pools, segments and their live blocks, for
// snapshots and for tests. Thread-safe.
#pragma once

#include <optional>
#include <vector>

#include "base/types.h"
#include "runtime/allocator_parts.h"

namespace stalloc::runtime {

class Inspection {
 public:
  explicit Inspection(const AllocatorParts& parts) : parts_(parts) {}

  // The beginning and size of the pool, or segment of the own fallback, that holds `p`. The
  // beginning is null if none does.
  struct Piece {
    void* begin = nullptr;
    Bytes size = 0;
  };
  Piece pool_of(const void* p) const;

  // The pools, and the segments of the own fallback, with their live blocks, ascending.
  struct LiveBlock {
    void* begin = nullptr;
    Bytes size = 0;  // as asked for
    Bytes rounded = 0;
    StreamId stream = 0;
    bool waiting = false;  // freed; other streams still use it
    bool shared = false;   // other streams use it, so that its free waits
  };
  // The block of a pool that begins at `p`; none if none does.
  std::optional<LiveBlock> block_of(const void* p) const;
  struct LivePool {
    Piece piece;
    std::vector<LiveBlock> blocks;
  };
  std::vector<LivePool> pools() const;

  // Throws Error unless the pools' invariants hold. For tests.
  void check() const;

 private:
  bool is_waiting(const void* p) const { return parts_.delayed && parts_.delayed->is_waiting(p); }
  LiveBlock describe(const Pool& pool, Offset offset) const;

  const AllocatorParts& parts_;
};

}  // namespace stalloc::runtime
