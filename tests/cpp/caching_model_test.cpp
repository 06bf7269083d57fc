// The model of torch's caching allocator, compared with the policy in torch's sources.
#include "replay/caching_model.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "base/error.h"

namespace stalloc {
namespace {

constexpr Bytes kKiB = 1024;
constexpr Bytes kMiB = 1024 * kKiB;

replay::CachingSettings expandable(Bytes capacity = replay::CachingSettings::kUnlimited) {
  replay::CachingSettings settings;
  settings.expandable_segments = true;
  settings.capacity = capacity;
  return settings;
}

replay::CachingSettings limited(Bytes capacity) {
  replay::CachingSettings settings;
  settings.capacity = capacity;
  return settings;
}

TEST(CachingModel, SmallRequestsShareSegmentsOfTwoMiB) {
  replay::CachingModel model;
  model.malloc(1, 0);
  EXPECT_EQ(model.stats().requested.current, 1);
  EXPECT_EQ(model.stats().allocated.current, 512);
  EXPECT_EQ(model.stats().reserved.current, 2 * kMiB);
  model.malloc(kMiB, 0);
  EXPECT_EQ(model.stats().reserved.current, 2 * kMiB);
  model.malloc(kMiB, 0);
  EXPECT_EQ(model.stats().reserved.current, 4 * kMiB);
  EXPECT_EQ(model.stats().mallocs, 2);
  model.check();
}

TEST(CachingModel, RequestsUnderTenMiBShareSegmentsOfTwenty) {
  replay::CachingModel model;
  model.malloc(kMiB + 1, 0);
  EXPECT_EQ(model.stats().reserved.current, 20 * kMiB);
  EXPECT_EQ(model.stats().allocated.current, kMiB + 512);
  model.malloc(10 * kMiB - 512, 0);
  EXPECT_EQ(model.stats().reserved.current, 20 * kMiB);
  model.malloc(10 * kMiB, 0);
  EXPECT_EQ(model.stats().reserved.current, 30 * kMiB) << "from 10 MiB on a segment of its own";
}

TEST(CachingModel, LargeRequestsGetTheirOwnSegmentsRoundedToTwoMiB) {
  replay::CachingModel model;
  model.malloc(33 * kMiB, 0);
  EXPECT_EQ(model.stats().reserved.current, 34 * kMiB);
  EXPECT_EQ(model.stats().allocated.current, 34 * kMiB) << "a rest of 1 MiB is not split off";
  model.malloc(32 * kMiB + 512, 0);
  EXPECT_EQ(model.stats().allocated.current, 34 * kMiB + 32 * kMiB + 512);
  model.check();
}

TEST(CachingModel, StreamsAndPoolsDoNotShare) {
  replay::CachingModel model;
  model.free(model.malloc(20 * kMiB, 0));
  model.malloc(20 * kMiB, 1);
  EXPECT_EQ(model.stats().reserved.current, 40 * kMiB);
  model.malloc(512, 0);
  EXPECT_EQ(model.stats().reserved.current, 42 * kMiB) << "small ones come from segments of 2 MiB";
  model.malloc(20 * kMiB, 0);
  EXPECT_EQ(model.stats().reserved.current, 42 * kMiB);
}

TEST(CachingModel, TakesTheSmallestBlockThatFits) {
  replay::CachingModel model;
  const auto large = model.malloc(40 * kMiB, 0);
  const auto small = model.malloc(12 * kMiB, 0);
  model.free(large);
  model.free(small);
  model.malloc(12 * kMiB, 0);
  EXPECT_EQ(model.stats().allocated.current, 12 * kMiB);
  model.malloc(40 * kMiB, 0);
  EXPECT_EQ(model.stats().reserved.current, 52 * kMiB);
}

TEST(CachingModel, MergesFreedNeighbours) {
  replay::CachingModel model;
  std::vector<replay::CachingModel::Id> blocks;
  for (int i = 0; i < 4; ++i) blocks.push_back(model.malloc(5 * kMiB, 0));
  EXPECT_EQ(model.stats().reserved.current, 20 * kMiB);
  for (const int i : {1, 3, 2, 0}) {
    model.free(blocks[static_cast<std::size_t>(i)]);
    model.check();
  }
  model.malloc(19 * kMiB, 0);
  EXPECT_EQ(model.stats().reserved.current, 20 * kMiB);
}

TEST(CachingModel, GivesBackCachedMemoryBeforeItFails) {
  replay::CachingModel model(limited(64 * kMiB));
  const auto first = model.malloc(40 * kMiB, 0);
  EXPECT_EQ(model.malloc(40 * kMiB, 0), replay::CachingModel::kOutOfMemory);
  EXPECT_EQ(model.stats().ooms, 1);
  model.free(first);
  EXPECT_NE(model.malloc(44 * kMiB, 0), replay::CachingModel::kOutOfMemory);
  EXPECT_EQ(model.stats().frees, 1);
  EXPECT_EQ(model.stats().reserved.current, 44 * kMiB);
  EXPECT_EQ(model.stats().reserved.peak, 44 * kMiB);
  model.check();
}

TEST(CachingModel, SplitSegmentsCannotBeGivenBack) {
  replay::CachingModel model(limited(40 * kMiB));
  model.malloc(2 * kMiB, 0);  // and 18 MiB of its segment are free
  EXPECT_EQ(model.malloc(21 * kMiB, 0), replay::CachingModel::kOutOfMemory);
  EXPECT_NE(model.malloc(18 * kMiB, 0), replay::CachingModel::kOutOfMemory);
  model.check();
}

TEST(CachingModel, ExpandableSegmentsGrowByTheMissingBytes) {
  replay::CachingModel model(expandable());
  const auto first = model.malloc(5 * kMiB, 0);
  EXPECT_EQ(model.stats().reserved.current, 20 * kMiB);
  model.malloc(30 * kMiB, 0);  // 15 are there
  EXPECT_EQ(model.stats().reserved.current, 40 * kMiB);
  EXPECT_EQ(model.stats().maps, 2);
  model.check();
  model.malloc(512, 0);
  EXPECT_EQ(model.stats().reserved.current, 42 * kMiB) << "small ones are mapped by 2 MiB";
  model.free(first);
  model.malloc(5 * kMiB, 0);  // into the hole, not at the end that could grow
  EXPECT_EQ(model.stats().reserved.current, 42 * kMiB);
  model.malloc(5 * kMiB, 0);
  EXPECT_EQ(model.stats().reserved.current, 42 * kMiB);
  model.malloc(512, 0);
  EXPECT_EQ(model.stats().mallocs, 0);
  model.check();
}

TEST(CachingModel, AsksForHelpWhereNoCachedBlockFits) {
  replay::CachingModel model(expandable());
  std::vector<Bytes> asked;
  model.when_short([&](Bytes size) {
    asked.push_back(size);
    model.empty_cache();
  });
  const auto first = model.malloc(40 * kMiB, 0);
  const auto last = model.malloc(40 * kMiB, 0);
  model.free(first);
  model.malloc(30 * kMiB, 0);
  model.free(last);
  model.malloc(60 * kMiB, 0);
  EXPECT_EQ(asked, (std::vector<Bytes>{40 * kMiB, 40 * kMiB, 60 * kMiB}));
  EXPECT_LE(model.stats().reserved.current, 120 * kMiB);
  model.check();
}

TEST(CachingModel, ExpandableSegmentsSplitToTheLastPage) {
  replay::CachingModel model(expandable());
  model.malloc(20 * kMiB - 512, 0);
  EXPECT_EQ(model.stats().allocated.current, 20 * kMiB - 512);
  replay::CachingModel other;
  other.malloc(20 * kMiB - 512, 0);
  EXPECT_EQ(other.stats().allocated.current, 20 * kMiB);
}

TEST(CachingModel, ExpandableSegmentsUnmapWholeChunksAndMapThemAgain) {
  replay::CachingModel model(expandable(120 * kMiB));
  std::vector<replay::CachingModel::Id> blocks;
  for (int i = 0; i < 6; ++i) blocks.push_back(model.malloc(20 * kMiB, 0));
  EXPECT_EQ(model.malloc(20 * kMiB, 0), replay::CachingModel::kOutOfMemory);
  model.free(blocks[1]);
  model.free(blocks[4]);
  model.check();
  // No 40 MiB lie together, so both chunks move to the end.
  EXPECT_NE(model.malloc(40 * kMiB, 0), replay::CachingModel::kOutOfMemory);
  EXPECT_EQ(model.stats().unmaps, 2);
  EXPECT_EQ(model.stats().reserved.current, 120 * kMiB);
  model.check();
  model.free(blocks[0]);
  EXPECT_NE(model.malloc(20 * kMiB, 0), replay::CachingModel::kOutOfMemory);
  model.check();
}

TEST(CachingModel, EmptyCacheReleasesAllThatIsWhole) {
  for (const bool expand : {false, true}) {
    replay::CachingModel model(expand ? expandable() : replay::CachingSettings{});
    model.free(model.malloc(100 * kMiB, 0));
    model.free(model.malloc(512, 3));
    EXPECT_GT(model.stats().reserved.current, 0);
    model.empty_cache();
    EXPECT_EQ(model.stats().reserved.current, 0);
    model.check();
  }
}

TEST(CachingModel, RoundsToDivisionsOfPowersOfTwo) {
  replay::CachingSettings settings;
  settings.roundup_power2_divisions.fill(4);
  replay::CachingModel model(settings);
  model.malloc(1200 * kKiB, 0);  // between 1024 and 2048: 1280
  EXPECT_EQ(model.stats().allocated.current, 1280 * kKiB);
  model.malloc(1024 * kKiB, 0);
  EXPECT_EQ(model.stats().allocated.current, 2304 * kKiB);
  model.malloc(700, 0);
  EXPECT_EQ(model.stats().allocated.current, 2304 * kKiB + 1024) << "too small to be divided";
}

TEST(CachingModel, BlocksAboveTheLargestSizeToSplitStayWhole) {
  replay::CachingSettings settings;
  settings.max_split_size = 64 * kMiB;
  settings.capacity = 200 * kMiB;
  replay::CachingModel model(settings);
  model.free(model.malloc(100 * kMiB, 0));
  model.malloc(30 * kMiB, 0);
  EXPECT_EQ(model.stats().reserved.current, 130 * kMiB) << "not cut from the 100 MiB";
  const auto close = model.malloc(90 * kMiB, 0);
  EXPECT_EQ(model.stats().reserved.current, 130 * kMiB) << "but used for what is nearly as large";
  model.free(close);
  model.malloc(79 * kMiB, 0);  // 20 MiB too small for it: it goes back first
  EXPECT_EQ(model.stats().reserved.current, 110 * kMiB);
  EXPECT_EQ(model.stats().retries, 0);
  model.check();
}

// With both settings, torch splits blocks of expandable segments whatever their size, keeps large
// ones from small requests, and cannot give single ones back.
TEST(CachingModel, TheLargestSizeToSplitLimitsReuseInExpandableSegments) {
  replay::CachingSettings settings = expandable(240 * kMiB);
  settings.max_split_size = 64 * kMiB;
  replay::CachingModel model(settings);
  const auto large = model.malloc(100 * kMiB, 0);
  model.malloc(20 * kMiB, 0);
  model.free(large);
  EXPECT_EQ(model.stats().reserved.current, 120 * kMiB);
  model.malloc(30 * kMiB, 0);
  EXPECT_EQ(model.stats().reserved.current, 160 * kMiB) << "not cut from the 100 MiB";
  const auto close = model.malloc(90 * kMiB, 0);
  EXPECT_EQ(model.stats().reserved.current, 160 * kMiB) << "but used for what is nearly as large";
  EXPECT_EQ(model.stats().allocated.current, 140 * kMiB) << "and the rest is split off";
  model.free(close);
  model.malloc(75 * kMiB, 0);
  EXPECT_EQ(model.stats().reserved.current, 240 * kMiB) << "not for what is smaller by 20 MiB";
  model.malloc(70 * kMiB, 0);
  EXPECT_EQ(model.stats().reserved.current, 220 * kMiB);
  EXPECT_EQ(model.stats().retries, 1) << "all that is cached goes back at once";
  EXPECT_EQ(model.stats().frees, 0);
  model.check();
}

TEST(CachingModel, TheRoundingOfBlocksThatAreNotSplitIsASetting) {
  for (const Bytes rounding : {20 * kMiB, 40 * kMiB}) {
    replay::CachingSettings settings;
    settings.max_split_size = 64 * kMiB;
    settings.max_non_split_rounding = rounding;
    replay::CachingModel model(settings);
    model.free(model.malloc(100 * kMiB, 0));
    model.malloc(70 * kMiB, 0);
    EXPECT_EQ(model.stats().reserved.current, rounding > 30 * kMiB ? 100 * kMiB : 170 * kMiB);
  }
}

TEST(CachingModel, LeavesWhatAnotherAllocatorHolds) {
  replay::CachingModel model(limited(100 * kMiB));
  model.set_withheld(60 * kMiB);
  EXPECT_EQ(model.malloc(42 * kMiB, 0), replay::CachingModel::kOutOfMemory);
  model.set_withheld(58 * kMiB);
  EXPECT_NE(model.malloc(42 * kMiB, 0), replay::CachingModel::kOutOfMemory);
}

TEST(CachingModel, CollectsBlocksUnusedForLong) {
  replay::CachingSettings settings;
  settings.garbage_collection_threshold = 0.5;
  settings.capacity = 200 * kMiB;
  replay::CachingModel model(settings);
  const auto used = model.malloc(40 * kMiB, 1);
  model.free(model.malloc(40 * kMiB, 0));
  for (int i = 0; i < 10; ++i) model.free(model.malloc(12 * kMiB, 2));
  EXPECT_EQ(model.stats().reserved.current, 92 * kMiB) << "under the threshold nothing happens";
  model.malloc(14 * kMiB, 3);
  EXPECT_EQ(model.stats().reserved.current, 106 * kMiB);
  model.malloc(16 * kMiB, 3);
  EXPECT_EQ(model.stats().reserved.current, 82 * kMiB) << "the 40 MiB are older than the average";
  model.free(used);
  model.check();
}

TEST(CachingModel, RefusesFreesOfBlocksThatAreNotLive) {
  replay::CachingModel model;
  const auto block = model.malloc(1, 0);
  model.free(block);
  EXPECT_THROW(model.free(block), Error);
  EXPECT_THROW(model.free(-1), Error);
  EXPECT_THROW(model.free(1 << 20), Error);
  EXPECT_THROW(model.malloc(0, 0), Error);
}

TEST(CachingModel, SizesNearTheLimitOfTheNumbers) {
  constexpr Bytes kHuge = std::numeric_limits<Bytes>::max();
  for (const bool expand : {false, true}) {
    replay::CachingModel model(expand ? expandable() : replay::CachingSettings{});
    EXPECT_THROW(model.malloc(kHuge, 0), OverflowError);
    replay::CachingModel small(expand ? expandable(kMiB) : limited(kMiB));
    EXPECT_EQ(small.malloc(Bytes{1} << 40, 0), replay::CachingModel::kOutOfMemory);
  }
  replay::CachingModel model;
  EXPECT_NE(model.malloc(Bytes{1} << 61, 0), replay::CachingModel::kOutOfMemory);
  EXPECT_NE(model.malloc(Bytes{1} << 61, 0), replay::CachingModel::kOutOfMemory);
  EXPECT_NE(model.malloc(Bytes{1} << 61, 0), replay::CachingModel::kOutOfMemory);
  EXPECT_EQ(model.malloc(Bytes{1} << 61, 0), replay::CachingModel::kOutOfMemory);
}

class RandomCachingModel : public testing::TestWithParam<int> {};

TEST_P(RandomCachingModel, KeepsItsInvariants) {
  std::mt19937_64 random(static_cast<std::uint64_t>(GetParam()));
  replay::CachingSettings settings;
  settings.expandable_segments = GetParam() % 2 == 1;
  if (GetParam() % 4 >= 2) settings.capacity = 300 * kMiB;
  if (GetParam() % 8 >= 4) {
    settings.max_split_size = 30 * kMiB;
    settings.garbage_collection_threshold = 0.6;
  }
  replay::CachingModel model(settings);
  std::vector<replay::CachingModel::Id> live;
  for (int step = 0; step < 1500; ++step) {
    if (live.empty() || random() % 5 < 3) {
      const Bytes size = 1 + static_cast<Bytes>(random() % (Bytes{1} << (random() % 26)));
      const auto id = model.malloc(size, static_cast<StreamId>(random() % 3));
      if (id != replay::CachingModel::kOutOfMemory) live.push_back(id);
    } else {
      std::swap(live[random() % live.size()], live.back());
      model.free(live.back());
      live.pop_back();
    }
    if (random() % 200 == 0) model.empty_cache();
    if (step % 10 == 0) model.check();
  }
  for (const auto id : live) model.free(id);
  model.check();
  model.empty_cache();
  EXPECT_EQ(model.stats().reserved.current, 0);
  EXPECT_EQ(model.stats().maps, model.stats().unmaps);
  EXPECT_EQ(model.stats().mallocs, model.stats().frees);
}

INSTANTIATE_TEST_SUITE_P(Seeds, RandomCachingModel, testing::Range(0, 16));

}  // namespace
}  // namespace stalloc
