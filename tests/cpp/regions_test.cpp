// How large regions for dynamic requests become, and which head room is worth its bytes.
#include "plan/regions.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace stalloc {
namespace {

// A place where each iteration holds so many bytes at once, in one piece.
DynamicPlace place_of(const std::vector<Bytes>& sizes) {
  DynamicPlace place;
  place.upper = 10;
  for (const Bytes size : sizes) place.sightings.push_back({{size, 0, 5}});
  return place;
}

// A problem with the region alone, or with a static request of `static_size` bytes at another time.
Regions regions_of(const std::vector<DynamicPlace>& places, Bytes static_size = 0,
                   Bytes alignment = 1) {
  Problem problem{.period = 20, .alignment = alignment};
  problem.buffers.push_back({.size = static_size, .lower = 12, .upper = 15});
  for (const DynamicPlace& p : places) {
    problem.buffers.push_back({.lower = p.lower, .upper = p.upper});
  }
  return size_regions(places, problem);
}

TEST(Regions, OfNoPlacesAreNone) {
  const Regions regions = regions_of({});
  EXPECT_TRUE(regions.sizes.empty());
  EXPECT_EQ(regions.headroom, 0);
}

TEST(Regions, NeedNoHeadroomWhereIterationsAreAlike) {
  const Regions regions = regions_of({place_of({1000, 1000, 1000})});
  EXPECT_EQ(regions.sizes, (std::vector<Bytes>{1000}));
  EXPECT_EQ(regions.headroom, 0);
  EXPECT_EQ(regions.cost, 0);
  EXPECT_EQ(regions.saves, 0);
}

TEST(Regions, WithOneIterationTakeTheDefault) {
  const Regions regions = regions_of({place_of({1000})});
  EXPECT_EQ(regions.headroom, kDefaultHeadroom);
  EXPECT_EQ(regions.sizes, (std::vector<Bytes>{1100}));
  EXPECT_EQ(regions.cost, 100);
  EXPECT_EQ(regions.saves, 0);
}

TEST(Regions, TakeHeadroomWhereItSavesMoreThanItCosts) {
  // Left out, the iteration with 1040 overflows a region of 1000 by all of it.
  const std::vector<DynamicPlace> places = {place_of({1000, 1040, 1000, 1000})};
  const Regions regions = regions_of(places);
  EXPECT_EQ(regions.headroom, 5);
  EXPECT_EQ(regions.sizes, (std::vector<Bytes>{1092}));
  EXPECT_EQ(regions.cost, 52);
  EXPECT_EQ(regions.saves, 260);
  // In the shadow of the static peak it costs nothing.
  EXPECT_EQ(regions_of(places, 5000).cost, 0);
  // An outlier that no candidate reaches is not worth anything.
  EXPECT_EQ(regions_of({place_of({1000, 9000, 1000})}).headroom, 0);
}

TEST(Regions, HoldWhatIsAliveAtOncePackedByBestFit) {
  DynamicPlace place;
  place.upper = 10;
  // Holes of 30 and 20 between neighbours; 20 takes the smaller one, then 30 the other.
  place.sightings = {
      {{30, 0, 5}, {10, 1, 100}, {20, 2, 6}, {10, 3, 100}, {20, 7, 100}, {30, 8, 100}},
      {{30, 0, 5}, {10, 1, 100}, {20, 2, 6}, {10, 3, 100}, {20, 7, 100}, {30, 8, 100}}};
  EXPECT_EQ(regions_of({place}).sizes, (std::vector<Bytes>{70}));
  EXPECT_EQ(regions_of({place}, 0, 64).sizes, (std::vector<Bytes>{4 * 64}));
}

TEST(Regions, AreRoundedToTheAlignment) {
  const Regions regions = regions_of({place_of({1000}), place_of({0 + 1})}, 0, 512);
  EXPECT_EQ(regions.sizes, (std::vector<Bytes>{1536, 1024}));
}

TEST(Regions, ThatDoNotFitIn63BitsAreRefused) {
  EXPECT_THROW(regions_of({place_of({Bytes{1} << 61})}), OverflowError);
  DynamicPlace place = place_of({1});
  for (int i = 0; i < 3; ++i) place.sightings[0].push_back({1, 1, 5});
  EXPECT_THROW(regions_of({place}, 0, Bytes{1} << 61), OverflowError);
}

}  // namespace
}  // namespace stalloc
