// Gives back the memory of a pool in which blocks lie, without that of the blocks.
//
//   virtual memory   | block |  no memory  | block |no memory |   whole chunks go, and come back at
//                                                                 the same addresses
//   plain pieces     | block          |  |  no memory         |   pieces without a block go, and
//                                                                 come back anywhere
//
// The addresses without memory are strays (StaticPool, Note [Absent memory]), and the caller serves
// no request from the pool until all of it is back, or never again. Not thread-safe.
#pragma once

#include <cstddef>
#include <vector>

#include "base/range.h"
#include "device/memory.h"
#include "runtime/pool.h"

namespace stalloc::runtime {

class PartialRelease {
 public:
  // `device` outlives this object.
  explicit PartialRelease(device::DeviceMemory& device) : device_(device) {}

  // Waits for the device. Returns false if blocks lie everywhere: then the pool keeps its memory.
  bool release(Pool& pool);

  // The same once more, after blocks were freed. Returns false if no other part can go.
  bool release_more(Pool& pool);

  // Takes back what release() gave. Returns false if the device lacks memory: then the pool has
  // none of it.
  bool acquire(Pool& pool);

  // True between release() and acquire().
  bool is_partial() const { return !gone_.empty(); }
  // The bytes that acquire() needs.
  Bytes size() const;
  // The pool serves no request any more.
  void forget() { gone_.clear(); }

 private:
  void release_chunks(Pool& pool, const std::vector<Range>& idle);
  void release_pieces(Pool& pool, const std::vector<Range>& idle);
  bool attach(Range chunks, const Pool& pool);
  std::byte* allocate(Range piece);
  void detach_again(std::size_t count, Pool& pool);
  bool acquire_chunks(Pool& pool);
  bool acquire_pieces(Pool& pool);

  device::DeviceMemory& device_;
  std::vector<Range> gone_;  // ranges of chunks, or whole pieces
};

}  // namespace stalloc::runtime
