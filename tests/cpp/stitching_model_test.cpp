// The model of GMLake's allocator, compared with the policy in its sources.
#include "replay/stitching_model.h"

#include <gtest/gtest.h>

#include <map>
#include <numeric>
#include <random>
#include <set>
#include <vector>

#include "base/error.h"

namespace stalloc {
namespace {

using replay::StitchingModel;
using replay::StitchingSettings;

constexpr Bytes kMiB = Bytes{1} << 20;
constexpr Bytes kGiB = Bytes{1} << 30;

StitchingSettings stitches_from(Bytes limit) {
  StitchingSettings settings;
  settings.fragment_limit = limit;
  return settings;
}

// Two free blocks of 400 MiB, with a live one between them.
struct TwoHoles {
  explicit TwoHoles(StitchingModel& model) {
    const auto left = model.malloc(400 * kMiB, 0);
    const auto between = model.malloc(10 * kMiB, 0);
    const auto right = model.malloc(400 * kMiB, 0);
    (void)between;
    model.free(left);
    model.free(right);
  }
  static constexpr Bytes kReserved = 810 * kMiB;
};

TEST(StitchingModel, SmallRequestsAreServedAsByTorch) {
  StitchingModel model;
  model.malloc(1, 0);
  model.malloc(kMiB, 0);
  EXPECT_EQ(model.stats().allocated.current, 512 + kMiB);
  EXPECT_EQ(model.stats().reserved.current, 2 * kMiB);
  EXPECT_EQ(model.stats().mallocs, 1);
  EXPECT_EQ(model.stats().maps, 0);
  model.check();
}

TEST(StitchingModel, LargeRequestsHaveWholeChunks) {
  StitchingModel model;
  model.malloc(kMiB + 1, 0);
  EXPECT_EQ(model.stats().allocated.current, 2 * kMiB);
  EXPECT_EQ(model.stats().reserved.current, 20 * kMiB) << "below 10 MiB they share a segment";
  model.malloc(17 * kMiB, 0);
  EXPECT_EQ(model.stats().reserved.current, 20 * kMiB) << "18 MiB are left";
  model.malloc(33 * kMiB, 0);
  EXPECT_EQ(model.stats().reserved.current, 54 * kMiB);
  EXPECT_EQ(model.stats().maps, 27);
  model.check();
}

TEST(StitchingModel, StitchesFreeBlocksForALargeRequest) {
  StitchingModel model;
  const TwoHoles holes(model);
  const auto stitched = model.malloc(600 * kMiB, 0);
  EXPECT_EQ(model.stats().reserved.current, TwoHoles::kReserved);
  std::vector<std::int64_t> expected(300);
  // The block at the higher address first: of those of one size it is the last.
  std::iota(expected.begin(), expected.begin() + 200, 205);
  std::iota(expected.begin() + 200, expected.end(), 0);
  EXPECT_EQ(model.chunks(stitched), expected);
  model.check();
  model.malloc(200 * kMiB, 0);
  EXPECT_EQ(model.stats().reserved.current, TwoHoles::kReserved) << "the rest of the last block";
}

TEST(StitchingModel, DoesNotStitchBelowTheLimit) {
  StitchingModel model;
  const TwoHoles holes(model);
  model.malloc(512 * kMiB - 2 * kMiB, 0);
  EXPECT_EQ(model.stats().reserved.current, TwoHoles::kReserved + 510 * kMiB);

  StitchingModel eager(stitches_from(402 * kMiB));
  const TwoHoles same(eager);
  eager.malloc(402 * kMiB, 0);
  EXPECT_EQ(eager.stats().reserved.current, TwoHoles::kReserved);
}

TEST(StitchingModel, StitchesNothingOfAnotherStream) {
  StitchingModel model;
  const TwoHoles holes(model);
  model.malloc(600 * kMiB, 1);
  EXPECT_EQ(model.stats().reserved.current, TwoHoles::kReserved + 600 * kMiB);
}

TEST(StitchingModel, AnIdleRangeServesASmallerRequest) {
  StitchingModel model;
  const TwoHoles holes(model);
  model.free(model.malloc(800 * kMiB, 0));
  const std::int64_t maps = model.stats().maps;
  const auto part = model.malloc(500 * kMiB, 0);
  EXPECT_EQ(model.stats().maps, maps) << "nothing is mapped again, and the limit does not matter";
  EXPECT_EQ(model.stats().reserved.current, TwoHoles::kReserved);
  model.check();
  model.malloc(300 * kMiB, 0);
  EXPECT_EQ(model.stats().reserved.current, TwoHoles::kReserved) << "its other chunks are free";
  model.free(part);
  model.check();
}

TEST(StitchingModel, AMuchLargerRangeIsNotTaken) {
  StitchingModel model(stitches_from(2 * kMiB));
  const auto first = model.malloc(20 * kMiB, 0);
  model.malloc(10 * kMiB, 0);
  const auto second = model.malloc(20 * kMiB, 0);
  model.malloc(10 * kMiB, 0);
  model.free(first);
  model.free(second);
  const auto both = model.malloc(40 * kMiB, 0);
  model.free(both);
  EXPECT_EQ(model.stats().reserved.current, 60 * kMiB);
  // 22 MiB fit in no block. The range has 40.
  model.malloc(22 * kMiB, 0);
  EXPECT_EQ(model.stats().reserved.current, 60 * kMiB);

  StitchingSettings close;
  close.fragment_limit = 40 * kMiB;
  close.reuse_limit = 1.5;
  StitchingModel strict(close);
  const auto a = strict.malloc(20 * kMiB, 0);
  strict.malloc(10 * kMiB, 0);
  const auto b = strict.malloc(20 * kMiB, 0);
  strict.free(a);
  strict.free(b);
  strict.free(strict.malloc(40 * kMiB, 0));
  strict.malloc(22 * kMiB, 0);
  EXPECT_EQ(strict.stats().reserved.current, 50 * kMiB + 22 * kMiB);
}

TEST(StitchingModel, ARangeIsIdleOnlyWithoutAnyChunkInUse) {
  StitchingModel model;
  const TwoHoles holes(model);
  model.free(model.malloc(800 * kMiB, 0));
  const auto plain = model.malloc(400 * kMiB, 0);
  model.malloc(600 * kMiB, 0);
  EXPECT_EQ(model.stats().reserved.current, TwoHoles::kReserved + 600 * kMiB);
  model.free(plain);
  model.malloc(700 * kMiB, 0);
  EXPECT_EQ(model.stats().reserved.current, TwoHoles::kReserved + 600 * kMiB) << "it is idle again";
  model.check();
}

TEST(StitchingModel, UnmapsRangesThatServeNoRequestPastTheLimit) {
  StitchingSettings settings;
  settings.stitched_limit = 1300 * kMiB;
  StitchingModel model(settings);
  const auto first = model.malloc(400 * kMiB, 0);
  const TwoHoles holes(model);
  model.free(model.malloc(800 * kMiB, 0));
  const auto hole = model.malloc(400 * kMiB, 0);
  model.free(first);
  model.malloc(600 * kMiB, 0);
  EXPECT_EQ(model.stats().maps, 3 * 200 + 5 + 400 + 300);
  EXPECT_EQ(model.stats().unmaps, 400) << "the first range, which had lost a block";
  model.free(hole);
  model.check();
}

TEST(StitchingModel, GivesFreeSegmentsBackAtTheEndOfMemory) {
  StitchingSettings settings;
  settings.capacity = kGiB;
  StitchingModel model(settings);
  model.free(model.malloc(700 * kMiB, 0));
  EXPECT_NE(model.malloc(600 * kMiB, 1), StitchingModel::kOutOfMemory);
  EXPECT_EQ(model.stats().reserved.current, 600 * kMiB);
  EXPECT_EQ(model.stats().retries, 1);
  EXPECT_EQ(model.malloc(500 * kMiB, 0), StitchingModel::kOutOfMemory);
  EXPECT_EQ(model.stats().ooms, 1);
  EXPECT_EQ(model.stats().requested.current, 600 * kMiB);
  model.check();
}

TEST(StitchingModel, ARangeGoesWithItsSegments) {
  StitchingSettings settings;
  settings.capacity = kGiB;
  StitchingModel model(settings);
  const auto left = model.malloc(300 * kMiB, 0);
  const auto right = model.malloc(300 * kMiB, 0);
  model.free(left);
  model.free(right);
  model.free(model.malloc(600 * kMiB, 0));        // stitched
  const auto part = model.malloc(302 * kMiB, 0);  // a segment, and a chunk of the other
  EXPECT_EQ(model.stats().reserved.current, 600 * kMiB);
  model.check();
  EXPECT_NE(model.malloc(400 * kMiB, 1), StitchingModel::kOutOfMemory);
  model.free(part);
  model.check();
  EXPECT_NE(model.malloc(600 * kMiB, 1), StitchingModel::kOutOfMemory);
  EXPECT_EQ(model.stats().reserved.current, kGiB - 24 * kMiB);
  model.check();
}

TEST(StitchingModel, ARequestBeyondAnyDeviceFails) {
  StitchingSettings settings;
  settings.capacity = kGiB;
  StitchingModel model(settings);
  EXPECT_EQ(model.malloc(Bytes{1} << 60, 0), StitchingModel::kOutOfMemory);
  model.check();
}

TEST(StitchingModel, RefusesWhatIsNotLive) {
  StitchingModel model;
  const auto id = model.malloc(kGiB, 0);
  model.free(id);
  EXPECT_THROW(model.free(id), Error);
  EXPECT_THROW(model.free(-1), Error);
  EXPECT_THROW(model.free(7), Error);
  EXPECT_THROW(model.malloc(std::numeric_limits<Bytes>::max(), 0), OverflowError);
}

// No chunk ever serves two live blocks.
TEST(StitchingModel, SharesNoChunk) {
  for (unsigned seed = 0; seed < 30; ++seed) {
    std::mt19937 random(seed);
    StitchingSettings settings = stitches_from((seed % 3) * 16 * kMiB);
    settings.stitched_limit = seed % 2 ? 2 * kGiB : 1000 * kGiB;
    settings.capacity = seed % 5 == 0 ? 600 * kMiB : replay::CachingSettings::kUnlimited;
    StitchingModel model(settings);
    std::vector<StitchingModel::Id> live;
    for (int step = 0; step < 600; ++step) {
      if (!live.empty() && random() % 100 < 48) {
        const std::size_t i = random() % live.size();
        model.free(live[i]);
        live.erase(live.begin() + static_cast<std::ptrdiff_t>(i));
      } else {
        const Bytes most = random() % 4 == 0 ? 80 * kMiB : 12 * kMiB;
        const Bytes size = 1 + static_cast<Bytes>(random()) % most;
        const auto id = model.malloc(size, static_cast<StreamId>(random() % 2));
        if (id == StitchingModel::kOutOfMemory) continue;
        live.push_back(id);
        EXPECT_GE(static_cast<Bytes>(model.chunks(id).size()) * 2 * kMiB, size > kMiB ? size : 0);
      }
      model.check();
      std::set<std::int64_t> seen;
      std::size_t count = 0;
      for (const auto id : live) {
        const std::vector<std::int64_t> chunks = model.chunks(id);
        seen.insert(chunks.begin(), chunks.end());
        count += chunks.size();
      }
      ASSERT_EQ(seen.size(), count) << "seed " << seed << ", step " << step;
    }
  }
}

}  // namespace
}  // namespace stalloc
