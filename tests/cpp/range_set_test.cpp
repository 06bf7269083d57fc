// RangeSet with an order by size, compared with a plain list of addresses.
#include "base/range_set.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

namespace stalloc {
namespace {

// The addresses of a small pool that are in the set.
class Addresses {
 public:
  explicit Addresses(Offset size) : in_(static_cast<std::size_t>(size), mark(false)) {}

  void set(Range r, bool in) {
    for (Offset a = r.begin; a < r.end; ++a) in_[static_cast<std::size_t>(a)] = mark(in);
  }
  bool all(Range r, bool in) const {
    return in_.find(mark(!in), static_cast<std::size_t>(r.begin)) >=
           static_cast<std::size_t>(r.end);
  }
  std::vector<Range> ranges() const {
    std::vector<Range> result;
    std::size_t begin = in_.find(mark(true));
    while (begin != std::string::npos) {
      const std::size_t end = std::min(in_.find(mark(false), begin), in_.size());
      result.push_back({static_cast<Offset>(begin), static_cast<Offset>(end)});
      begin = in_.find(mark(true), end);
    }
    return result;
  }

 private:
  static char mark(bool in) { return in ? '1' : '0'; }

  std::string in_;  // a mark for each address
};

Offset best_fit(const std::vector<Range>& ranges, Bytes size) {
  const Range* best = nullptr;
  for (const Range& r : ranges) {
    if (r.size() >= size && (!best || r.size() < best->size())) best = &r;
  }
  return best ? best->begin : kUnplaced;
}

TEST(HoleSetProperty, FindsTheBestFitAfterAnySequence) {
  std::size_t most = 0;
  for (unsigned seed = 0; seed < 30; ++seed) {
    std::mt19937 random(seed);
    const auto pick = [&](Offset low, Offset high) {
      return std::uniform_int_distribution<Offset>(low, high)(random);
    };
    constexpr Offset kPool = 3000;
    Addresses expected(kPool);
    HoleSet holes;
    for (int step = 0; step < 3000; ++step) {
      const Offset begin = pick(0, kPool - 1);
      const Range r{begin, std::min(kPool, begin + pick(1, step % 50 == 0 ? 600 : 6))};
      if (pick(0, 1) == 0 && expected.all(r, false)) {
        holes.insert_merged(r);
        expected.set(r, true);
      } else if (expected.all(r, true)) {
        holes.subtract(r);
        expected.set(r, false);
      } else if (pick(0, 3) == 0) {
        holes.remove(r);
        expected.set(r, false);
      }
      const Bytes size = pick(1, 20);
      const std::vector<Range> ranges = expected.ranges();
      ASSERT_EQ(holes.best_fit(size), best_fit(ranges, size)) << "seed " << seed;
      most = std::max(most, ranges.size());
      if (step % 10 > 0) continue;
      ASSERT_EQ(holes.ranges(), ranges) << "seed " << seed;
      Bytes largest = 0;
      for (const Range& range : ranges) largest = std::max(largest, range.size());
      ASSERT_EQ(holes.largest(), largest);
      HoleSet copy;
      copy.assign(holes);
      ASSERT_EQ(copy.best_fit(size), holes.best_fit(size));
    }
    holes.clear();
    EXPECT_EQ(holes.best_fit(1), kUnplaced);
  }
  EXPECT_GT(most, 200u) << "several chunks of sizes";
}

TEST(RangeSet, VisitsIntersectionsWithARange) {
  RangeSet set;
  for (const Range r : {Range{10, 20}, Range{30, 40}, Range{50, 60}}) set.insert(r);
  std::vector<Range> common;
  set.intersect({15, 55}, [&](Range r) { common.push_back(r); });
  EXPECT_EQ(common, (std::vector<Range>{{15, 20}, {30, 40}, {50, 55}}));
  common.clear();
  set.intersect({20, 30}, [&](Range r) { common.push_back(r); });
  EXPECT_TRUE(common.empty());
}

TEST(RangeSet, UnitsBeginWithTheirRange) {
  RangeSet set;
  set.insert({10, 45});
  set.insert({60, 64});
  const std::vector<Range> units = units_within(set, {25, 62}, 10);
  EXPECT_EQ(units, (std::vector<Range>{{20, 45}, {60, 64}})) << "the last ones may be smaller";
  EXPECT_EQ(units_within(set, {11, 19}, 10), (std::vector<Range>{{10, 20}}));
  EXPECT_TRUE(units_within(set, {45, 60}, 10).empty());
}

}  // namespace
}  // namespace stalloc
