// The moments at which a caching allocator gives back what is idle in it before it takes more of a
// device than ever. Apart from torch, so that replays can follow it.
//
// A run in which memory goes again and again, in each of its iterations, is to reserve more. So
// after many times, each one lets the peak rise a little.
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
    reserved_ = held.reserved;
    before_ = std::max(most_, held.reserved);
    next_ = std::max(size, kPage);
    most_ = std::max(before_, held.reserved + next_);
    const Bytes least = std::max(kPage, held.reserved / kParts);
    return held.reserved + next_ > before_ && held.idle - stuck_ >= least;
  }

  // The allocator has given back what was idle, and `left` is held now.
  void done(Held left) {
    const Bytes rise = times_++ < kManyTimes ? 0 : reserved_ / kRiseParts;
    most_ = std::max(before_, left.reserved + next_) + rise;
    stuck_ = left.idle;
  }

 private:
  // Less than this, the largest page of an expandable segment, is not worth the calls; nor is less
  // than one part in so many of what is reserved.
  static constexpr Bytes kPage = Bytes{20} << 20;
  static constexpr Bytes kParts = 256;
  // So often memory may go. Then each time lets the peak rise by one part in so many.
  static constexpr int kManyTimes = 256;
  static constexpr Bytes kRiseParts = 128;

  Bytes most_ = 0;   // the most that was reserved, as far as this has seen
  Bytes stuck_ = 0;  // what was idle then in pages that could not go
  int times_ = 0;
  // As the last call of wants() found them.
  Bytes reserved_ = 0;
  Bytes before_ = 0;
  Bytes next_ = 0;
};

}  // namespace stalloc::runtime
