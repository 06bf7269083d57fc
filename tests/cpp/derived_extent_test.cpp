// Programs that derive extents from those of their inputs.
#include "profile/derived_extent.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "plan/build.h"
#include "profile/lifetimes.h"
#include "replay/replay.h"
#include "runtime/microbatches.h"
#include "trace_builder.h"

namespace stalloc {
namespace {

using profile::Extent;
using profile::parse_extent;

TEST(PaddedExtent, IsNamedAfterTheInputs) {
  EXPECT_EQ(profile::derived_name("ids.1", profile::padded_to(64)), "ids.1:64");
  EXPECT_EQ(profile::derived_name("ids.1", {}), "ids.1");
  EXPECT_EQ(parse_extent("ids.1:64").base, "ids.1");
  EXPECT_EQ(parse_extent("ids.1:64").form, profile::padded_to(64));
  for (const std::string name :
       {"ids.1", "a:b.0", "ids.1:", ":", "x:-8", "x:1", "x:8y", "x:9223372036854775807"}) {
    EXPECT_EQ(parse_extent(name).base, name);
    EXPECT_TRUE(parse_extent(name).form.is_plain()) << name;
  }
}

TEST(PaddedExtent, RoundsUp) {
  const profile::ExtentForm extent = parse_extent("ids.1:64").form;
  EXPECT_EQ(extent.of(1), 64);
  EXPECT_EQ(extent.of(64), 64);
  EXPECT_EQ(extent.of(65), 128);
  EXPECT_EQ(extent.of(0), 0);
  EXPECT_EQ(extent.of(kNone), kNone) << "unknown";
}

// Rows and lengths vary. The model pads lengths to a multiple of `padding`, its data are not
// padded.
trace::Trace training(const std::vector<std::pair<Extent, Extent>>& batches, Extent padding) {
  testing::TraceBuilder t;
  for (const auto& [rows, length] : batches) {
    const Extent n = (length + padding - 1) / padding * padding;
    t.phase(trace::PhaseKind::kForward, 0);
    t.extents({"ids.0", "ids.1"}, {rows, length});
    const auto mask = t.alloc(8 * rows * length);
    const auto hidden = t.alloc(512 * rows * n);
    const auto scores = t.alloc(16 * rows * n * n);
    const auto more = t.alloc(1024 * rows * n);
    t.free(t.alloc(2048 * rows * n));
    t.phase(trace::PhaseKind::kBackward, 0);
    t.free(t.alloc(16 * rows * n * n));
    for (const auto r : {more, scores, hidden, mask}) t.free(r);
    t.phase(trace::PhaseKind::kOptimizer);
    t.free(t.alloc(4096));
    t.step();
  }
  return t.finish();
}

TEST(PaddedExtent, ExplainsWhatTheInputsDoNot) {
  const trace::Trace profiled =
      training({{4, 1000}, {2, 130}, {4, 333}, {3, 777}, {4, 510}, {1, 65}}, 64);
  const plan::Plan plan = plan::make_plan(profile::profile_iteration(profiled), {.time_limit = 1});
  EXPECT_EQ(plan.extent_names, (std::vector<std::string>{"ids.0", "ids.1", "ids.1:64"}));
  EXPECT_TRUE(plan.groups.empty()) << "nothing is dynamic";
  const replay::ReplayResult result = replay::replay_planned(
      training({{4, 1}, {3, 999}, {4, 129}, {1, 640}, {2, 64}, {4, 1500}, {4, 700}}, 64), plan);
  EXPECT_EQ(result.misses, 0);
  EXPECT_LE(result.peak_reserved, result.peak_load + result.peak_load / 100);
}

TEST(PaddedExtent, IsNotTriedWhereTheInputsExplain) {
  const trace::Trace profiled = training({{4, 1000}, {2, 130}, {4, 333}, {3, 777}}, 1);
  const plan::Plan plan = plan::make_plan(profile::profile_iteration(profiled), {.time_limit = 1});
  EXPECT_EQ(plan.extent_names, (std::vector<std::string>{"ids.0", "ids.1"}));
}

TEST(PaddedExtent, IsToldByTheInputs) {
  plan::Plan plan;
  plan.extent_names = {"ids.1", "ids.1:64", "mask.1:8"};
  plan.extents = {100, 128, 104};
  runtime::Microbatches microbatches(plan);
  microbatches.enter_phase(trace::PhaseKind::kForward, 0, 0);
  microbatches.set(std::vector<std::string>{"mask.1", "ids.1"}, std::vector<Extent>{9, 65});
  EXPECT_EQ(microbatches.now().extents, (std::vector<Extent>{65, 128, 16}));
  EXPECT_TRUE(microbatches.now().shares.empty()) << "the plan knows both dimensions";
}

}  // namespace
}  // namespace stalloc
