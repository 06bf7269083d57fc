// The law of what a group of dynamic requests needs in batches of other extents.
#include "profile/group_law.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "trace/trace.h"

namespace stalloc {
namespace {

using profile::Extent;
using profile::GroupSum;

// The sums of a group at these extents.
std::vector<GroupSum> sums_at(const std::vector<std::vector<Extent>>& rows, auto bytes) {
  std::vector<GroupSum> sums;
  for (const std::vector<Extent>& row : rows) sums.push_back({row, bytes(row)});
  return sums;
}

const std::vector<std::vector<Extent>> kRows = {{4, 100}, {2, 700}, {4, 300}, {8, 50}, {1, 900}};
const std::vector<Extent> kEnvelope = {8, 900};

TEST(GroupLaw, TheTokensOfALayerAreRowsTimesLength) {
  const auto law = profile::find_group_law(
      sums_at(kRows, [](const auto& row) { return 2048 * row[0] * row[1]; }), kEnvelope);
  ASSERT_TRUE(law);
  ASSERT_EQ(law->terms.size(), 1u);
  EXPECT_EQ(law->terms[0].coefficient, 2048);
  EXPECT_EQ(law->terms[0].factors, (profile::Factors{0, 1, kNone}));
  EXPECT_EQ(law->constant, 0);
  EXPECT_EQ(profile::evaluate(*law, kEnvelope), 2048 * 8 * 900);
}

TEST(GroupLaw, AConstantPartStays) {
  const auto law = profile::find_group_law(
      sums_at(kRows, [](const auto& row) { return 1'000'000 + 512 * row[1]; }), kEnvelope);
  ASSERT_TRUE(law);
  EXPECT_EQ(law->terms[0].factors, (profile::Factors{1, kNone, kNone}));
  EXPECT_NEAR(static_cast<double>(law->constant), 1e6, 10);
}

TEST(GroupLaw, RoutingThatVariesALittleHidesNoLaw) {
  std::mt19937 random(1);
  std::uniform_real_distribution<double> noise(0.9, 1.1);
  const auto law = profile::find_group_law(
      sums_at(kRows,
              [&](const auto& row) {
                const Bytes exact = 4096 * row[0] * row[1];
                return static_cast<Bytes>(noise(random) * static_cast<double>(exact));
              }),
      kEnvelope);
  ASSERT_TRUE(law);
  EXPECT_EQ(law->terms[0].factors, (profile::Factors{0, 1, kNone}));
}

TEST(GroupLaw, ACurveOfOneExtentIsFound) {
  const auto law = profile::find_group_law(
      sums_at({{100}, {300}, {700}, {900}}, [](const auto& row) { return 512 * row[0] * row[0]; }),
      {{900}});
  ASSERT_TRUE(law);
  EXPECT_EQ(law->terms[0].factors, (profile::Factors{0, 0, kNone}));
  EXPECT_EQ(law->terms[0].coefficient, 512);
}

// A curve would be closer to these sums, and far from those of a batch that is three times larger.
TEST(GroupLaw, FewSumsThatVaryAreNoCurve) {
  const auto law_of = [](const std::vector<std::vector<Extent>>& rows, std::vector<Bytes> bytes) {
    auto next = bytes.begin();
    return profile::find_group_law(sums_at(rows, [&](const auto&) { return *next++; }), {{48}});
  };
  constexpr Bytes kMillion = 1'000'000;
  const auto three = law_of({{10}, {20}, {48}}, {100 * kMillion, 190 * kMillion, 700 * kMillion});
  ASSERT_TRUE(three);
  EXPECT_EQ(three->terms[0].factors, (profile::Factors{0, kNone, kNone}));
  const auto two = law_of({{10}, {48}, {48}}, {100 * kMillion, 900 * kMillion, 890 * kMillion});
  ASSERT_TRUE(two);
  EXPECT_EQ(two->terms[0].factors, (profile::Factors{0, kNone, kNone})) << "two values";
}

TEST(GroupLaw, SumsThatNoExtentExplainsHaveNone) {
  EXPECT_FALSE(
      profile::find_group_law(sums_at(kRows, [](const auto&) { return 4096; }), kEnvelope));
  std::mt19937 random(2);
  const auto chance = [&](const auto&) { return static_cast<Bytes>(1000 + random() % 1000); };
  EXPECT_FALSE(profile::find_group_law(sums_at(kRows, chance), kEnvelope));
  const auto falls = [](const auto& row) { return 1'000'000 - 1000 * row[1]; };
  EXPECT_FALSE(profile::find_group_law(sums_at(kRows, falls), {{900}}));
}

TEST(GroupLaw, UnknownExtentsTellNothing) {
  std::vector<GroupSum> sums = sums_at(kRows, [](const auto& row) { return 100 * row[1]; });
  for (GroupSum& sum : sums) sum.extents = {};
  EXPECT_FALSE(profile::find_group_law(sums, kEnvelope));
  EXPECT_FALSE(profile::find_group_law({}, kEnvelope));
}

TEST(GroupLaw, SizesFollowInProportion) {
  EXPECT_EQ(profile::in_proportion(10, 7, 2), 35);
  EXPECT_EQ(profile::in_proportion(10, 7, 3), 24) << "rounded up";
  EXPECT_EQ(profile::in_proportion(10, 7, 0), 10);
  EXPECT_EQ(profile::in_proportion(Bytes{1} << 40, Bytes{1} << 40, 1), trace::kLargestRequest + 1);
}

}  // namespace
}  // namespace stalloc
