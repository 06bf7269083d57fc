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

TEST(Envelope, ToleratesSizesOfNoRequest) {
  EXPECT_EQ(planned(run({{1 << 18, 4}, {1, 1 << 18}, {1 << 10, 1 << 10}, {7, 300}})),
            (std::vector<Extent>{1, 1 << 18}));
}

}  // namespace
}  // namespace stalloc
