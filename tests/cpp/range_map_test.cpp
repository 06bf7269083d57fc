// RangeMap, compared with a plain array.
#include "base/range_map.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

namespace stalloc {
namespace {

TEST(RangeMap, EachAddressHasTheLastAssignedValue) {
  constexpr Offset kSize = 60;
  std::mt19937 random(5);
  RangeMap<int> map;
  std::vector<int> expected(kSize, 0);
  const auto pick = [&] {
    const auto a = static_cast<Offset>(random() % kSize);
    const auto b = static_cast<Offset>(random() % kSize);
    return Range{std::min(a, b), std::max(a, b) + 1};
  };
  for (int i = 1; i < 5000; ++i) {
    const Range assigned = pick();
    map.assign(assigned, i);
    std::fill(expected.begin() + assigned.begin, expected.begin() + assigned.end, i);
    const Range visited = pick();
    std::vector<int> there(expected.begin() + visited.begin, expected.begin() + visited.end);
    there.erase(std::unique(there.begin(), there.end()), there.end());
    std::erase(there, 0);
    std::vector<int> seen;
    map.visit(visited, [&](int value) { seen.push_back(value); });
    ASSERT_EQ(seen, there) << "after " << i;
  }
}

TEST(RangeMap, UnassignedAddressesHaveNoValue) {
  RangeMap<int> map;
  map.assign({10, 20}, 1);
  int seen = 0;
  for (const Range r : {Range{0, 10}, Range{20, 30}, Range{9, 10}}) {
    map.visit(r, [&](int) { ++seen; });
  }
  EXPECT_EQ(seen, 0);
  map.visit({19, 20}, [&](int) { ++seen; });
  map.visit({0, 11}, [&](int) { ++seen; });
  EXPECT_EQ(seen, 2);
}

}  // namespace
}  // namespace stalloc
