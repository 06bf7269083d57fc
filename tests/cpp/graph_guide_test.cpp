// A capture is guided by those before it.
#include "device/graph_guide.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <random>
#include <vector>

namespace stalloc::device {
namespace {

using Sizes = std::vector<Bytes>;
using Lives = std::vector<bool>;

// The expectation of each request of a capture, which then ends as told.
Lives capture(GraphGuide& guide, std::size_t number, const Sizes& sizes, const Lives& lives) {
  Lives expected;
  guide.begin(number);
  for (const Bytes size : sizes) expected.push_back(guide.lives_on(size));
  EXPECT_EQ(guide.requests(), sizes.size());
  guide.learn(lives);
  return expected;
}

TEST(GraphGuide, ExpectsNothingOfTheFirst) {
  GraphGuide guide;
  EXPECT_EQ(capture(guide, 0, {1, 2, 3}, {true, false, true}), Lives({false, false, false}));
  EXPECT_EQ(capture(guide, 0, {1, 2, 3}, {true, false, true}), Lives({true, false, true}));
}

TEST(GraphGuide, TellsKindsApartByTheirSizes) {
  GraphGuide guide;
  capture(guide, 0, {8, 2, 2}, {true, false, true});
  capture(guide, 1, {8, 4, 2}, {false, true, false});
  capture(guide, 2, {5, 5}, {true, true});
  // The first request fits two kinds: the newer one's answer.
  EXPECT_EQ(capture(guide, 7, {8, 2, 2}, {true, false, true}), Lives({false, false, true}));
  EXPECT_EQ(capture(guide, 7, {8, 4, 2}, {false, true, false}), Lives({true, true, false}));
  EXPECT_EQ(capture(guide, 7, {5, 5}, {true, true}), Lives({true, true}));
}

TEST(GraphGuide, FollowsThePositionsOfOtherSizes) {
  GraphGuide guide;
  capture(guide, 0, {8, 2, 2}, {true, false, true});
  capture(guide, 1, {8, 4, 4, 4}, {false, true, false, true});
  EXPECT_EQ(capture(guide, 0, {16, 4, 4, 1}, {true, false, true, true}),
            Lives({true, false, true, false}))
      << "by the number in the pool";
  EXPECT_EQ(capture(guide, 1, {9, 9, 9, 9}, {false, true, false, true}),
            Lives({false, true, false, true}));
  EXPECT_EQ(capture(guide, 0, {8, 4, 7, 7}, {true, true, true, true}),
            Lives({false, true, false, true}))
      << "of the one that was followed until then";
  EXPECT_EQ(capture(guide, 5, {3, 3}, {true, true}), Lives({false, false})) << "unknown";
}

TEST(GraphGuide, LearnsAnew) {
  GraphGuide guide;
  capture(guide, 0, {1, 2}, {true, false});
  capture(guide, 0, {1, 2}, {false, true});
  EXPECT_EQ(capture(guide, 0, {1, 2}, {false, true}), Lives({false, true}));
}

TEST(GraphGuide, LearnsNothingFromAnswersToOtherRequests) {
  GraphGuide guide;
  capture(guide, 0, {1, 2}, {true});
  capture(guide, 0, {1, 2}, {true, true, true});
  EXPECT_EQ(capture(guide, 0, {1, 2}, {}), Lives({false, false}));
  guide.begin(0);
  guide.learn({});
  // Requests after the end of a capture belong to none.
  capture(guide, 0, {1, 2}, {true, false});
  guide.learn({true, true});
  EXPECT_EQ(capture(guide, 0, {1, 2}, {true, false}), Lives({true, false}));
}

TEST(GraphGuide, ForgetsTheOldestOfMany) {
  GraphGuide guide;
  for (Bytes size = 1; size <= 100; ++size) capture(guide, 0, {size, 7}, {true, size % 2 == 0});
  guide.begin(1);  // no number to go by
  EXPECT_FALSE(guide.lives_on(1));
  guide.begin(1);
  EXPECT_TRUE(guide.lives_on(100));
  EXPECT_TRUE(guide.lives_on(7));
}

// Whatever order captures of several kinds come in, each is told apart once its sizes differ from
// those of the others.
TEST(GraphGuide, KnowsEachKindAgain) {
  std::mt19937 random(5);
  const auto below = [&](std::size_t n) {
    return std::uniform_int_distribution<std::size_t>(0, n - 1)(random);
  };
  struct Kind {
    Sizes sizes;
    Lives lives;
  };
  std::vector<Kind> kinds(12);
  for (std::size_t k = 0; k < kinds.size(); ++k) {
    for (std::size_t i = 0; i < 4 + below(20); ++i) {
      kinds[k].sizes.push_back(i == 2 ? static_cast<Bytes>(100 + k) : static_cast<Bytes>(below(2)));
      kinds[k].lives.push_back(below(2) == 0);
    }
  }
  GraphGuide guide;
  for (std::size_t round = 0; round < 400; ++round) {
    const Kind& kind = kinds[round < kinds.size() ? round : below(kinds.size())];
    const Lives expected = capture(guide, below(3), kind.sizes, kind.lives);
    if (round < kinds.size()) continue;
    for (std::size_t i = 2; i < expected.size(); ++i) EXPECT_EQ(expected[i], kind.lives[i]);
  }
}

}  // namespace
}  // namespace stalloc::device
