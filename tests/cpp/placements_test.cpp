#include "replay/placements.h"

#include <gtest/gtest.h>

#include <tuple>
#include <vector>

namespace stalloc {
namespace {

using Piece = std::tuple<Offset, Bytes, Tick, Tick>;

std::vector<Piece> pieces_of(const replay::Placements& placements) {
  std::vector<Piece> result;
  for (const replay::HeldPiece& p : placements.pieces()) {
    result.emplace_back(p.address, p.size, p.lower, p.upper);
  }
  return result;
}

TEST(Placements, ListHeldPiecesAndTheirTimes) {
  replay::Placements placements(2);
  placements.advance(3);
  placements.take(100, 50);
  placements.place(1, 120);
  placements.advance(7);
  placements.take(200, 10);
  placements.give_back(100, 50);
  EXPECT_EQ(pieces_of(placements), (std::vector<Piece>{{100, 50, 3, 7}, {200, 10, 7, kNever}}));
  EXPECT_EQ(placements.addresses(), (std::vector<Offset>{replay::Placements::kNowhere, 120}));
}

TEST(Placements, TakeBackPartsOfPieces) {
  replay::Placements placements(0);
  placements.take(0, 20);
  placements.take(20, 20);
  placements.advance(5);
  placements.give_back(10, 20);
  EXPECT_EQ(pieces_of(placements),
            (std::vector<Piece>{
                {0, 10, 0, kNever}, {10, 10, 0, 5}, {20, 10, 0, 5}, {30, 10, 0, kNever}}));
}

TEST(Placements, TakeBackTheMiddleOfAPiece) {
  replay::Placements placements(0);
  placements.take(0, 30);
  placements.advance(5);
  placements.give_back(10, 10);
  placements.advance(6);
  placements.take(10, 10);
  EXPECT_EQ(pieces_of(placements),
            (std::vector<Piece>{
                {0, 10, 0, kNever}, {10, 10, 0, 5}, {10, 10, 6, kNever}, {20, 10, 0, kNever}}));
}

}  // namespace
}  // namespace stalloc
