// Where a replay put each request, and what the allocator held of the device meanwhile: what a
// picture of its layout needs. Not thread-safe. Cost: O(log n) an entry.
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
  Tick upper = kNever;  // when it went back; kNever where it did not
};

class Placements {
 public:
  explicit Placements(std::size_t requests) : addresses_(requests, kNowhere) {}

  static constexpr Offset kNowhere = -1;

  // The tick of whatever is noted from here on.
  void advance(Tick now) { now_ = now; }

  // `request` is an index into Trace::requests.
  void place(std::int32_t request, Offset address);

  // A piece that nobody holds yet.
  void take(Offset address, Bytes size);

  // Any stretch of what is held: part of a piece, or several of them.
  void give_back(Offset address, Bytes size);

  // By request; kNowhere for those the replay did not reach.
  const std::vector<Offset>& addresses() const { return addresses_; }

  // In order of address, then tick.
  std::vector<HeldPiece> pieces() const;

 private:
  Tick now_ = 0;
  std::vector<Offset> addresses_;
  std::map<Offset, HeldPiece> held_;  // by address
  std::vector<HeldPiece> gone_;
};

}  // namespace stalloc::replay
