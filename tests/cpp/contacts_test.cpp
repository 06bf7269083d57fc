#include "solve/pipeline/contacts.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <vector>

#include "random_problems.h"
#include "solve/pipeline/bins.h"

namespace stalloc {
namespace {

// The slots in which the first stage of a virtual pipeline of two frees what it saved.
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

// Whether each turn finds the hole where the turn before it had a cell, and its own next to it.
void check(const std::vector<int>& slots, const solve::Contacts& contacts) {
  ASSERT_EQ(contacts.steps.size(), slots.size());
  std::vector<int> owners = contacts.owners;
  int last = -1;
  for (std::size_t t = 0; t < slots.size(); ++t) {
    const auto [hole, freed] = contacts.steps[t];
    ASSERT_EQ(std::abs(hole - freed), 1) << "turn " << t;
    ASSERT_EQ(owners.at(hole), last) << "turn " << t;
    ASSERT_EQ(owners.at(freed), slots[t]) << "turn " << t;
    for (const solve::Contacts::Room& room : contacts.rooms) {
      ASSERT_NE(room.cell, std::max(hole, freed)) << "turn " << t << ": a room comes between";
    }
    owners[hole] = last = slots[t];
  }
  EXPECT_TRUE(std::ranges::is_sorted(contacts.rooms, {}, &solve::Contacts::Room::cell));
}

TEST(Contacts, AreCrossedAgain) {
  const std::vector<int> slots = interleaved(7, 8);
  ASSERT_EQ(slots.size(), 98U);
  const solve::Contacts contacts = solve::find_contacts(slots);
  check(slots, contacts);
  for (int slot = 0; slot < 15; ++slot) {
    EXPECT_GE(std::ranges::count(slots, slot), 6);
    EXPECT_LE(std::ranges::count(contacts.owners, slot), 5) << slot;
    EXPECT_EQ(std::ranges::count(contacts.rooms, slot, &solve::Contacts::Room::slot), 1) << slot;
  }
}

TEST(Contacts, HoldWhateverTheTurns) {
  RandomProblems random(7);
  for (int k = 0; k < 500; ++k) {
    const std::int64_t last = random.number(1, 9);
    std::vector<int> slots;
    for (std::int64_t turns = random.number(1, 60); turns > 0; --turns) {
      const int slot = static_cast<int>(random.number(0, last));
      if (slots.empty() || slots.back() != slot) slots.push_back(slot);
    }
    check(slots, solve::find_contacts(slots));
  }
}

TEST(Contacts, AreMissingIfASlotMeetsItself) {
  EXPECT_TRUE(solve::find_contacts({}).steps.empty());
  EXPECT_TRUE(solve::find_contacts({0, 1, 1, 0}).steps.empty());
}

TEST(Bins, AreFilledToTheLastByte) {
  // Best fit puts both of 144 into what is 480 long, and has no place for the last of 112.
  std::vector<Bytes> sizes(12, 112);
  sizes.insert(sizes.end(), {144, 144, 16, 16, 592, 1184, 1184});
  const std::vector<Range> bins = {{0, 592}, {1000, 1592}, {2000, 2592}, {3000, 5848}};
  const auto offsets = solve::fill_bins(sizes, bins);
  ASSERT_TRUE(offsets);
  std::vector<Range> placed;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    placed.push_back({(*offsets)[i], (*offsets)[i] + sizes[i]});
    EXPECT_TRUE(std::ranges::any_of(bins, [&](const Range& bin) {
      return bin.begin <= placed.back().begin && placed.back().end <= bin.end;
    })) << i;
  }
  std::ranges::sort(placed, {}, &Range::begin);
  for (std::size_t i = 1; i < placed.size(); ++i) EXPECT_LE(placed[i - 1].end, placed[i].begin);
}

TEST(Bins, RefuseSizesThatDoNotFit) {
  EXPECT_FALSE(solve::fill_bins({3}, {{0, 2}, {4, 6}}));
  EXPECT_FALSE(solve::fill_bins({3}, {}));
  EXPECT_FALSE(solve::fill_bins({2, 2}, {{0, 3}}));
  EXPECT_TRUE(solve::fill_bins({}, {{0, 2}}));
  // No end of ways, none of which fills both.
  std::vector<Bytes> sizes;
  for (Bytes size = 1000; size < 1060; size += 2) sizes.push_back(size);
  EXPECT_FALSE(solve::fill_bins(sizes, {{0, 15435}, {20000, 35435}}));
}

}  // namespace
}  // namespace stalloc
