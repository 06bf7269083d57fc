// The extents that a plan is made for: the largest of each, or the batch that needs the most.
#include "profile/envelope.h"

#include <gtest/gtest.h>

#include <utility>
#include <vector>

#include "profile/lifetimes.h"
#include "trace_builder.h"

namespace stalloc {
namespace {

using profile::Extent;
using testing::TraceBuilder;

// Iterations of one microbatch each, of so many rows and tokens: activations, scores of every token
// with every other one, and a weight's gradient.
trace::Trace run(const std::vector<std::pair<Extent, Extent>>& batches) {
  TraceBuilder t;
  for (const auto& [rows, tokens] : batches) {
    t.phase(trace::PhaseKind::kForward, 0);
    t.extents({"ids.0", "ids.1"}, {rows, tokens});
    const auto hidden = t.alloc(4096 * rows * tokens);
    const auto scores = t.alloc(8 * rows * tokens * tokens);
    t.phase(trace::PhaseKind::kBackward, 0);
    const auto gradient = t.alloc(1 << 20);
    t.free(scores);
    t.free(hidden);
    t.phase(trace::PhaseKind::kOptimizer);
    t.free(gradient);
    t.step();
  }
  return t.finish();
}

std::vector<Extent> planned(const trace::Trace& trace) {
  return profile::planned_extents(trace, profile::find_size_laws(trace));
}

TEST(Envelope, IsTheLargestOfEachExtentIfABatchHasThemAll) {
  EXPECT_EQ(planned(run({{4, 100}, {8, 30}, {8, 100}, {2, 70}, {5, 10}})),
            (std::vector<Extent>{8, 100}));
  EXPECT_EQ(planned(run({{4, 100}, {4, 30}, {4, 70}})), std::vector<Extent>{100});
}

TEST(Envelope, IsTheBatchThatNeedsMostUnderABudget) {
  const std::vector<std::pair<Extent, Extent>> batches = {
      {512, 16}, {64, 128}, {8, 1024}, {100, 81}, {27, 300}};
  EXPECT_EQ(planned(run(batches)), (std::vector<Extent>{8, 1024}))
      << "as many tokens as others, and the most scores";
  const profile::IterationProfile profile = profile::profile_iteration(run(batches));
  EXPECT_EQ(profile.envelope, (std::vector<Extent>{8, 1024}));
  for (const profile::ProfiledRequest& r : profile.requests) {
    EXPECT_LE(r.size, 8 * 8 * 1024 * 1024) << "none has the size for 512 rows of 1024";
    EXPECT_FALSE(r.dynamic);
  }
}

TEST(Envelope, IsTheLargestOfEachExtentIfThatNeedsHardlyMore) {
  EXPECT_EQ(planned(run({{1000, 100}, {997, 101}, {999, 99}, {500, 40}})),
            (std::vector<Extent>{1000, 101}));
  EXPECT_EQ(planned(run({{1000, 100}, {900, 101}, {999, 99}, {500, 40}})),
            (std::vector<Extent>{1000, 100}));
}

// Iterations of several microbatches, in flight together or one after another.
trace::Trace pipelined(const std::vector<std::vector<Extent>>& iterations, bool in_flight) {
  TraceBuilder t;
  for (const std::vector<Extent>& lengths : iterations) {
    std::vector<std::int32_t> hidden;
    const auto backward = [&](std::size_t m) {
      t.phase(trace::PhaseKind::kBackward, static_cast<std::int32_t>(m));
      t.free(t.alloc(512 * lengths[m]));
      t.free(hidden[m]);
    };
    for (std::size_t m = 0; m < lengths.size(); ++m) {
      t.phase(trace::PhaseKind::kForward, static_cast<std::int32_t>(m));
      t.extents({"ids.1"}, {lengths[m]});
      hidden.push_back(t.alloc(4096 * lengths[m]));
      if (!in_flight) backward(m);
    }
    for (std::size_t m = 0; in_flight && m < lengths.size(); ++m) backward(m);
    t.step();
  }
  return t.finish();
}

TEST(Envelope, BatchesThatRepeatInFlightHaveTheirOwnSizes) {
  const std::vector<Extent> one = {640, 200, 350};
  const auto repeated = [](const trace::Trace& trace) {
    return profile::is_repeated(trace, profile::find_size_laws(trace));
  };
  EXPECT_TRUE(repeated(pipelined({one, one, one}, true)));
  EXPECT_FALSE(repeated(pipelined({one, one, one}, false))) << "laws cost nothing";
  EXPECT_FALSE(repeated(pipelined({one, one}, true))) << "may be chance";
  EXPECT_FALSE(repeated(pipelined({one, one, {200, 640, 350}}, true)));
  const profile::IterationProfile profile =
      profile::profile_iteration(pipelined({one, one, one, one}, true));
  EXPECT_TRUE(profile.extent_names.empty());
  EXPECT_EQ(profile.fixed.at(0).second, 640);
  std::vector<Bytes> sizes;
  for (const profile::ProfiledRequest& r : profile.requests) {
    EXPECT_FALSE(r.dynamic);
    if (r.size % 4096 == 0) sizes.push_back(r.size / 4096);
  }
  EXPECT_EQ(std::vector<Bytes>(sizes.begin(), sizes.begin() + 3), one);
}

TEST(Envelope, IsNoLargerThanTheMicrobatchesThatLiveTogether) {
  const auto fitting = [](const std::vector<std::vector<Extent>>& lengths, bool in_flight) {
    const trace::Trace trace = pipelined(lengths, in_flight);
    return profile::profile_iteration(trace).envelope;
  };
  const std::vector<std::vector<Extent>> one_is_large = {
      {640, 200, 350}, {640, 220, 300}, {630, 210, 340}, {640, 200, 320}};
  EXPECT_EQ(fitting(one_is_large, true), std::vector<Extent>{350});
  EXPECT_EQ(fitting(one_is_large, false), std::vector<Extent>{640});
  const std::vector<std::vector<Extent>> all_are = {{640, 630}, {610, 640}, {620, 640}, {640, 630}};
  EXPECT_EQ(fitting(all_are, true), std::vector<Extent>{640});
}

// Two tasks that take turns: many short rows through one head, or few long ones through another.
TEST(Envelope, TellsNothingOfAHeadThatItsBatchesDoNotReach) {
  TraceBuilder t;
  const std::vector<std::pair<Extent, Extent>> batches = {{64, 58}, {64, 62}, {8, 441},
                                                          {64, 72}, {8, 496}, {64, 66}};
  for (const auto& [rows, tokens] : batches) {
    const bool is_short = rows == 64;
    t.phase(trace::PhaseKind::kForward, 0);
    t.extents({"ids.0", "ids.1"}, {rows, tokens});
    t.layer(LayerIndex(is_short ? 0 : 1));
    std::vector<std::int32_t> live;
    for (int i = 0; i < (is_short ? 6 : 2); ++i) live.push_back(t.alloc(4096 * rows * tokens));
    t.phase(trace::PhaseKind::kBackward, 0);
    for (const std::int32_t r : live) t.free(r);
    t.step();
  }
  const trace::Trace trace = t.finish();
  EXPECT_EQ(planned(trace), (std::vector<Extent>{64, 72}));
  const profile::IterationProfile profile = profile::profile_iteration(trace);
  EXPECT_EQ(profile.load, 6 * 4096 * 64 * 72) << "not 64 rows of 496 tokens";
}

TEST(Envelope, ToleratesSizesOfNoRequest) {
  EXPECT_EQ(planned(run({{1 << 18, 4}, {1, 1 << 18}, {1 << 10, 1 << 10}, {7, 300}})),
            (std::vector<Extent>{1, 1 << 18}));
}

}  // namespace
}  // namespace stalloc
