// Moves memory within a pool of virtual memory; see StaticPool, Note [Absent memory].
//
//   make_room   | live | idle |  no memory  | live | idle |      one range for a request:
//               | live |no mem| room        | live | idle |      memory of idle addresses comes
//               there
//
//   provide     the addresses of a request of the layout have memory again: that of idle addresses
//               outside the layout, the device's up to a limit, or that of the addresses that the
//               layout needs last, at the very last of open regions
//
//   give_back   the memory of idle addresses goes to the device: something beside the pool needs it
//
//   return_end  idle memory behind the addresses that a layout needs goes to the device
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

  // The ways in which a request gets memory.
  struct Means {
    Bytes spare = 0;     // the device gives so much before memory moves
    Bytes rest = 0;      // and so much of what is lacking afterwards
    bool more = false;   // or all of it
    bool waits = true;   // memory may move
    bool idle = false;   // idle addresses that have memory do as well
    bool boxes = false;  // memory of a box whose other requests are live may move, at the very last
    Bytes cushion = 0;   // a wait gives the device so much more, for the next requests
    bool gives() const { return more || rest > 0; }
  };
  struct Room {
    Bytes size = 0;
    StreamId stream = 0;
    bool stays = false;  // a block in it may stay: it lies outside the addresses of the layout
  };
  // Makes idle addresses of the stream a range of at least so many bytes: where the least memory
  // has to come, which other idle addresses give, free slots included, at first those that the
  // layout needs last. Returns false if the memory does not suffice, or if the stream has no
  // addresses in the pool. The pool's memory then is what it was, up to two chunks a range.
  bool make_room(Room room, Means means);

  // Gives memory to `r`, idle addresses of `layout`. If memory moves, the same wait serves others
  // as far as memory suffices: `wish`, then the requests of the rest of the phase, then the rest of
  // the layout. That of idle addresses outside the layout goes first; others get none that the
  // phase needs. Returns false if the device lacks memory for `r`.
  bool provide(Range r, Range wish, const RangeSet& layout, Means means);

  // Gives the device at least `size` bytes of idle memory, if there are so many: at first that of
  // the addresses that the layout needs last. Returns the bytes.
  Bytes give_back(Bytes size);

  // Gives the device the idle memory behind all of `needed`.
  void return_end(const RangeSet& needed);

  // True if memory has moved: a call has waited for the device.
  bool moved() const { return moved_; }

 private:
  Offset find_room(const Room& room) const;
  std::vector<Range> lacking_in(Range room) const;
  std::vector<Range> lacking_in(const RangeSet& needed) const;
  Bytes movable(const std::vector<Range>& from) const;
  std::vector<Range> detach(Bytes size, const std::vector<Range>& from);
  std::vector<Range> detach_needed_last(Bytes size, Range kept);
  bool attach(Range r);
  bool grow(Bytes size, StreamId stream);
  void shrink(const RangeSet& needed);

  device::DeviceMemory& device_;
  Pool& pool_;
  bool moved_ = false;
};

}  // namespace stalloc::runtime
