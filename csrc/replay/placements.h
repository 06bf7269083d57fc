// Records the address of each replayed request and the device memory that the allocator held, for a
// drawing of them. Not thread-safe. Cost: O(log n) an entry.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "base/types.h"

namespace stalloc::replay {

struct HeldPiece {
  Offset address = 0;
  Bytes size = 0;
  Tick lower = 0;
  Tick upper = kNever;  // when it went back to the device; kNever if it did not
};

class Placements {
 public:
  explicit Placements(std::size_t requests) : addresses_(requests, kNowhere) {}

  static constexpr Offset kNowhere = -1;

  // Sets the tick of all following records.
  void advance(Tick now) { now_ = now; }

  // `request` is an index into Trace::requests.
  void place(std::int32_t request, Offset address);

  // Records a piece taken from the device that is not held yet.
  void take(Offset address, Bytes size);

  // Records addresses given back: any part of the held pieces.
  void give_back(Offset address, Bytes size);

  // The address of each request; kNowhere for those that the replay did not reach.
  const std::vector<Offset>& addresses() const { return addresses_; }

  // All pieces in order of address, then tick.
  std::vector<HeldPiece> pieces() const;

 private:
  Tick now_ = 0;
  std::vector<Offset> addresses_;
  std::map<Offset, HeldPiece> held_;  // by address
  std::vector<HeldPiece> gone_;
};

}  // namespace stalloc::replay
