// The account of a pool that can grow: its addresses, and which of them have memory.
//
//   addresses   0                                     size              room
//               | memory | absent | memory             |
//
// Detached memory has left its addresses and waits for others, in the pool or behind it.
#pragma once

#include <algorithm>
#include <utility>

#include "base/align.h"
#include "base/range_set.h"
#include "base/types.h"

namespace stalloc::device {

struct GrowingPool {
  Bytes room = 0;        // of the addresses
  Bytes size = 0;        // the end of the memory
  Bytes held = 0;        // the memory
  Bytes detached = 0;    // of this, without addresses
  RangeSet absent = {};  // addresses without memory

  // The whole chunks of `r`; the last one of the pool may be smaller. Empty if there are none.
  Range chunks_in(Range r, Bytes chunk) const {
    const Range whole{align_up(r.begin, chunk), r.end == size ? r.end : r.end / chunk * chunk};
    return whole.size() > 0 ? whole : Range{};
  }
  // Detaches the memory of `r`.
  void detach(Range r) {
    detached += r.size();
    absent.insert(r);
  }
  void extend(Bytes to) {
    absent.insert_merged({size, to});
    size = to;
  }
  void shrink(Bytes to) {
    absent.remove({to, size});
    size = to;
  }
  // True if these addresses have no memory.
  bool lacks(Range r) const { return absent.holds(r); }
  // The bytes that `size` more bytes at addresses need, without those that are detached.
  Bytes lacking(Bytes more) const { return more - std::min(more, detached); }
  // Gives memory to so many bytes of addresses.
  void add(Bytes more) {
    const Bytes kept = std::min(more, detached);
    detached -= kept;
    held += more - kept;
  }
  // Returns the detached bytes, which go.
  Bytes drop() {
    held -= detached;
    return std::exchange(detached, 0);
  }
};

}  // namespace stalloc::device
