// A set of addresses as sorted, disjoint, merged intervals.
//
// Most sets of a placement hold no interval or one. A single interval lies in the object itself.
// Longer sets lie in blocks of an arena. The block sizes are powers of two, and a set that outgrows
// its block returns it to the arena.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/types.h"

namespace stalloc::solve {

struct Interval {
  Offset begin = 0;
  Offset end = 0;
};

// Hands out blocks of 2^k intervals. Its destructor frees all of them.
class IntervalArena {
 public:
  Interval* take(std::uint32_t capacity);  // a power of two
  void give_back(Interval* block, std::uint32_t capacity);

 private:
  static constexpr std::size_t kChunk = 1 << 14;  // intervals: 256 KiB

  std::vector<std::unique_ptr<Interval[]>> chunks_;
  std::size_t left_ = 0;
  std::array<std::vector<Interval*>, 32> free_;  // by the binary logarithm of the capacity
};

class IntervalSet {
 public:
  const Interval* begin() const { return capacity_ == 0 ? &one_ : many_; }
  const Interval* end() const { return begin() + size_; }
  bool empty() const { return size_ == 0; }

  // Adds [interval.begin, interval.end) and merges it with the intervals it overlaps or touches.
  // Returns false if all of it was there already. O(log size) to find, O(size) to move.
  bool insert(const Interval& interval, IntervalArena& arena);

 private:
  Interval* data() { return capacity_ == 0 ? &one_ : many_; }
  void grow(IntervalArena& arena);

  union {
    Interval one_ = {};  // while capacity_ == 0
    Interval* many_;
  };
  std::uint32_t size_ = 0;
  std::uint32_t capacity_ = 0;
};

}  // namespace stalloc::solve
