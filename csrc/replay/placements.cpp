#include "replay/placements.h"

#include <algorithm>
#include <tuple>

namespace stalloc::replay {

void Placements::place(std::int32_t request, Offset address) {
  addresses_[static_cast<std::size_t>(request)] = address;
}

void Placements::take(Offset address, Bytes size) {
  held_.emplace(address, HeldPiece{address, size, now_});
}

void Placements::give_back(Offset address, Bytes size) {
  const Offset end = address + size;
  auto it = held_.upper_bound(address);
  if (it != held_.begin()) --it;
  while (it != held_.end() && it->first < end) {
    const HeldPiece piece = it->second;
    const Offset piece_end = piece.address + piece.size;
    if (piece_end <= address) {
      ++it;
      continue;
    }
    it = held_.erase(it);
    const Offset begin = std::max(piece.address, address);
    const Offset stop = std::min(piece_end, end);
    gone_.push_back({begin, stop - begin, piece.lower, now_});
    if (piece.address < begin) {
      held_.emplace(piece.address, HeldPiece{piece.address, begin - piece.address, piece.lower});
    }
    if (stop < piece_end) {
      it = held_.emplace(stop, HeldPiece{stop, piece_end - stop, piece.lower}).first;
    }
  }
}

std::vector<HeldPiece> Placements::pieces() const {
  std::vector<HeldPiece> result = gone_;
  for (const auto& [address, piece] : held_) result.push_back(piece);
  std::ranges::sort(result, {},
                    [](const HeldPiece& p) { return std::tuple(p.address, p.lower, p.upper); });
  return result;
}

}  // namespace stalloc::replay
