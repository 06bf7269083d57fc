#include "solve/pipeline/borders.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <vector>

#include "random_problems.h"
#include "solve/pipeline/fill_ranges.h"

namespace stalloc {
namespace {

// The slots of the chunks that the first stage of a virtual pipeline of two frees, in order.
std::vector<int> interleaved(int chunks, int groups) {
  const int passes = 2 * chunks * groups;
  const int in_flight = 2 * chunks + 1;
  std::vector<int> slot(passes);
  std::vector<int> result;
  for (int k = 0; k < in_flight; ++k) slot[k] = k;
  for (int t = 0; t + in_flight <= passes; ++t) {
    const int place = t % (2 * chunks);
    const int freed = t - place + 2 * (chunks - 1 - place / 2) + place % 2;
    result.push_back(slot[freed]);
    if (t + in_flight < passes) slot[t + in_flight] = slot[freed];
  }
  return result;
}

// Checks that each peak finds the hole in a cell of the peak before it, next to a cell of its own.
void check(const std::vector<int>& slots, const solve::Crossings& crossings) {
  ASSERT_EQ(crossings.steps.size(), slots.size());
  std::vector<int> owners = crossings.owners;
  int last = -1;
  for (std::size_t t = 0; t < slots.size(); ++t) {
    const auto [hole, freed] = crossings.steps[t];
    ASSERT_EQ(std::abs(hole - freed), 1) << "peak " << t;
    ASSERT_EQ(owners.at(hole), last) << "peak " << t;
    ASSERT_EQ(owners.at(freed), slots[t]) << "peak " << t;
    for (const solve::Crossings::Rest& rest : crossings.rests) {
      ASSERT_NE(rest.cell, std::max(hole, freed)) << "peak " << t << ": a rest comes between";
    }
    owners[hole] = last = slots[t];
  }
  EXPECT_TRUE(std::ranges::is_sorted(crossings.rests, {}, &solve::Crossings::Rest::cell));
}

TEST(Crossings, AreCrossedAgain) {
  const std::vector<int> slots = interleaved(7, 8);
  ASSERT_EQ(slots.size(), 98U);
  const solve::Crossings crossings = solve::find_crossings(slots);
  check(slots, crossings);
  for (int slot = 0; slot < 15; ++slot) {
    EXPECT_GE(std::ranges::count(slots, slot), 6);
    EXPECT_LE(std::ranges::count(crossings.owners, slot), 5) << slot;
    EXPECT_EQ(std::ranges::count(crossings.rests, slot, &solve::Crossings::Rest::slot), 1) << slot;
  }
}

TEST(Crossings, HoldForAnyOrderOfPeaks) {
  RandomProblems random(7);
  for (int k = 0; k < 500; ++k) {
    const std::int64_t last = random.number(1, 9);
    std::vector<int> slots;
    for (std::int64_t peaks = random.number(1, 60); peaks > 0; --peaks) {
      const int slot = static_cast<int>(random.number(0, last));
      if (slots.empty() || slots.back() != slot) slots.push_back(slot);
    }
    check(slots, solve::find_crossings(slots));
  }
}

TEST(Crossings, AreMissingIfASlotMeetsItself) {
  EXPECT_TRUE(solve::find_crossings({}).steps.empty());
  EXPECT_TRUE(solve::find_crossings({0, 1, 1, 0}).steps.empty());
}

TEST(FillRanges, AreFilledToTheLastByte) {
  // Best fit would put both of 144 into a rest of 480 and fail on the last of 112.
  std::vector<Bytes> sizes(12, 112);
  sizes.insert(sizes.end(), {144, 144, 16, 16, 592, 1184, 1184});
  const std::vector<Range> ranges = {{0, 592}, {1000, 1592}, {2000, 2592}, {3000, 5848}};
  const auto offsets = solve::fill_ranges(sizes, ranges);
  ASSERT_TRUE(offsets);
  std::vector<Range> placed;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    placed.push_back({(*offsets)[i], (*offsets)[i] + sizes[i]});
    EXPECT_TRUE(std::ranges::any_of(ranges, [&](const Range& range) {
      return range.begin <= placed.back().begin && placed.back().end <= range.end;
    })) << i;
  }
  std::ranges::sort(placed, {}, &Range::begin);
  for (std::size_t i = 1; i < placed.size(); ++i) EXPECT_LE(placed[i - 1].end, placed[i].begin);
}

TEST(FillRanges, RefuseSizesThatDoNotFit) {
  EXPECT_FALSE(solve::fill_ranges({3}, {{0, 2}, {4, 6}}));
  EXPECT_FALSE(solve::fill_ranges({3}, {}));
  EXPECT_FALSE(solve::fill_ranges({2, 2}, {{0, 3}}));
  EXPECT_TRUE(solve::fill_ranges({}, {{0, 2}}));
  // There are countless ways, and none fills both ranges.
  std::vector<Bytes> sizes;
  for (Bytes size = 1000; size < 1060; size += 2) sizes.push_back(size);
  EXPECT_FALSE(solve::fill_ranges(sizes, {{0, 15435}, {20000, 35435}}));
}

}  // namespace
}  // namespace stalloc
