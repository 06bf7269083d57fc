// Moves memory within a pool of virtual memory; see StaticPool, Note [Absent memory].
//
//   make_room   | live | idle |  no memory  | live | idle |      one range for a request:
//               | live |no mem| room        | live | idle |      memory of idle addresses comes
//               there
//
//   restore     the addresses that a layout needs have memory again, and idle memory behind them
//               goes to lower addresses that have none
//
// Memory moves in whole chunks. Each call waits for the device's work if memory moves. Not
// thread-safe.
#pragma once

#include <vector>

#include "base/range_set.h"
#include "base/types.h"
#include "device/memory.h"
#include "runtime/pool.h"

namespace stalloc::runtime {

class MovingMemory {
 public:
  // `pool` can grow. Both outlive this object.
  MovingMemory(device::DeviceMemory& device, Pool& pool) : device_(device), pool_(pool) {}

  // Makes idle addresses of `stream` a range of at least `size` bytes: where the least memory has
  // to come, which other idle addresses give, free slots included. `more`: then the device. Changes
  // nothing and returns false if the memory does not suffice, or if `stream` has no addresses in
  // the pool.
  bool make_room(Bytes size, StreamId stream, bool more);

  // Gives memory to all of `needed`: at first that of idle addresses outside, then the device's.
  // Returns false if the device lacks it; then the rest stays without.
  bool restore(const RangeSet& needed);

 private:
  Offset find_room(Bytes size, StreamId stream) const;
  std::vector<Range> lacking_in(Range room) const;
  Bytes movable(const std::vector<Range>& from) const;
  std::vector<Range> detach(Bytes size, const std::vector<Range>& from);
  bool attach(Range r);
  bool grow(Bytes size, StreamId stream);

  device::DeviceMemory& device_;
  Pool& pool_;
};

}  // namespace stalloc::runtime
