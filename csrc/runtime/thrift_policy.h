// The moments at which a caching allocator gives back what is idle in it before it takes more of a
// device than ever. Apart from torch, so that replays can follow it.
//
// It is worth its calls and the wait where a peak comes once: while a run starts, or where batches
// become larger. A run in which memory goes in each of its iterations is to reserve more. So the
// more often it has gone, the more must be idle for the next time, until it goes no more.
//
// Not thread-safe. O(1).
#pragma once

#include <algorithm>

#include "base/types.h"

namespace stalloc::runtime {

class ThriftPolicy {
 public:
  struct Held {
    Bytes reserved = 0;  // of the device, by the allocator and by pools
    Bytes idle = 0;      // of these, cached by the allocator
  };

  // The allocator has no cached block for a request of `size` bytes. True if what is idle is to go
  // first; then done() follows, unless nothing may go now.
  bool wants(Held held, Bytes size) {
    before_ = std::max(most_, held.reserved);
    next_ = std::max(size, kPage);
    most_ = std::max(before_, held.reserved + next_);
    const int doublings = std::min(times_ / kPatience, kDoublings);
    const Bytes least = std::max(kPage, (held.reserved >> kDoublings) << doublings);
    return held.reserved + next_ > before_ && held.idle - stuck_ >= least;
  }

  // The allocator has given back what was idle, and `left` is held now.
  void done(Held left) {
    ++times_;
    most_ = std::max(before_, left.reserved + next_);
    stuck_ = left.idle;
  }

 private:
  // Less than this, the largest page of an expandable segment, is not worth the calls.
  static constexpr Bytes kPage = Bytes{20} << 20;
  // Nor is less than one part in 2^8 of what is reserved, and twice as much after so many times.
  static constexpr int kDoublings = 8;
  static constexpr int kPatience = 32;

  Bytes most_ = 0;   // the most that was reserved, as far as this has seen
  Bytes stuck_ = 0;  // what was idle then in pages that could not go
  int times_ = 0;
  // As the last call of wants() found them.
  Bytes before_ = 0;
  Bytes next_ = 0;
};

}  // namespace stalloc::runtime
