// Sizes behind convolutions and pooling with strides.
#include "profile/derived_stages.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "plan/build.h"
#include "plan/plan_json.h"
#include "plan/resize.h"
#include "profile/lifetimes.h"
#include "profile/size_laws.h"
#include "replay/placements.h"
#include "replay/replay.h"
#include "runtime/microbatches.h"
#include "trace_builder.h"

namespace stalloc {
namespace {

using profile::Extent;
using profile::ExtentForm;
using profile::parse_extent;
using Batch = std::vector<Extent>;

TEST(DerivedExtent, NamesAreReadAsTheyAreWritten) {
  for (const ExtentForm form :
       {ExtentForm{}, profile::padded_to(64), ExtentForm{4, 3}, ExtentForm{2, 0},
        ExtentForm{320, -80}, ExtentForm{profile::kMostDivided, -profile::kMostDivided}}) {
    const std::string name = profile::derived_name("x.1", form);
    EXPECT_EQ(parse_extent(name).base, "x.1") << name;
    EXPECT_EQ(parse_extent(name).form, form) << name;
  }
  EXPECT_EQ(profile::derived_name("x.1", {4, 3}), "floor((x.1+3)/4)");
  EXPECT_EQ(profile::derived_name("x.1", {320, -80}), "floor((x.1-80)/320)");
  EXPECT_EQ(profile::derived_name("x.1", {2, 0}), "floor(x.1/2)");
}

TEST(DerivedExtent, ADamagedNameIsAnInputs) {
  for (const std::string name :
       {"floor()", "floor(/2)", "floor(x.1)", "floor(x.1/)", "floor(x.1/0)", "floor(x.1/1)",
        "floor(x.1/-2)", "floor(x.1/2)) ", "floor((x.1+3)/9223372036854775808)",
        "floor((x.1+99)/4)", "floor((+3)/4)", "floor((x.1+)/4)", "floor((x.1+3/4)",
        "floor(x.1/99999999)", "floor(x.1/02)", "floor(", ")"}) {
    EXPECT_EQ(parse_extent(name).base, name);
    EXPECT_TRUE(parse_extent(name).form.is_plain()) << name;
  }
}

TEST(DerivedExtent, NoValueOverflows) {
  constexpr Extent kLargest = std::numeric_limits<Extent>::max();
  EXPECT_EQ((ExtentForm{4, 3}.of(kLargest)), kNone);
  EXPECT_EQ((ExtentForm{4, -3}.of(kLargest)), (kLargest - 3) / 4);
  EXPECT_EQ((ExtentForm{4, -8}.of(5)), 0);
  EXPECT_EQ((ExtentForm{4, -8}.of(kNone)), kNone);
  EXPECT_EQ(profile::padded_to(64).of(kLargest), kNone);
}

TEST(DerivedExtent, TwoStridesInARowAreOneFloor) {
  std::mt19937 rng(1);
  const auto draw = [&](Extent low, Extent high) {
    return std::uniform_int_distribution<Extent>(low, high)(rng);
  };
  for (int i = 0; i < 1000; ++i) {
    const ExtentForm first{draw(2, 9), draw(-9, 9)};
    const ExtentForm second{draw(2, 9), draw(-9, 9)};
    const ExtentForm both{first.divisor * second.divisor,
                          first.offset + first.divisor * second.offset};
    const Extent value = draw(200, 5000);
    EXPECT_EQ(second.of(first.of(value)), both.of(value));
  }
}

// An encoder: layers with strides, and blocks with attention behind them. `forms` are those of the
// layers, in order.
trace::Trace encoder(const std::vector<Batch>& batches, const std::vector<ExtentForm>& forms) {
  testing::TraceBuilder t;
  for (const Batch& batch : batches) {
    const Extent rows = batch[0];
    t.phase(trace::PhaseKind::kForward, 0);
    t.extents({"x.0", "x.1"}, {rows, batch[1]});
    std::vector<std::int32_t> held = {t.alloc(320 * rows * batch[1])};
    Extent length = 0;
    for (const ExtentForm& form : forms) {
      length = form.of(batch[1]);
      held.push_back(t.alloc(2048 * rows * std::max<Extent>(length, 1)));
      held.push_back(t.alloc(2048 * rows * std::max<Extent>(length, 1)));
    }
    length = std::max<Extent>(length, 1);
    for (int block = 0; block < 3; ++block) {
      held.push_back(t.alloc(512 * rows * length));
      held.push_back(t.alloc(16 * rows * length * length));
      t.free(t.alloc(1024 * rows * length));
    }
    t.phase(trace::PhaseKind::kBackward, 0);
    for (int block = 0; block < 3; ++block) t.free(t.alloc(16 * rows * length * length));
    for (auto r = held.rbegin(); r != held.rend(); ++r) t.free(*r);
    t.phase(trace::PhaseKind::kOptimizer);
    t.free(t.alloc(4096));
    t.step();
  }
  return t.finish();
}

plan::Plan plan_of(const trace::Trace& trace) {
  return plan::make_plan(profile::profile_iteration(trace), {.time_limit = 1});
}

const std::vector<Batch> kBatches = {{4, 2999}, {3, 1502}, {4, 700},  {2, 2245},
                                     {4, 1801}, {1, 333},  {4, 2640}, {3, 911}};

TEST(DerivedStages, ExplainWhatTheInputsDoNot) {
  const plan::Plan plan = plan_of(encoder(kBatches, {{2, 1}, {4, 3}}));
  EXPECT_EQ(plan.extent_names,
            (std::vector<std::string>{"x.0", "x.1", "floor((x.1+1)/2)", "floor((x.1+3)/4)"}));
  for (const profile::SizeLaw& law : plan.laws) EXPECT_EQ(law.proof, profile::LawProof::kProven);
  const std::vector<Batch> unseen = {{4, 2000}, {2, 2997}, {4, 11}, {3, 1}, {4, 2998}, {1, 640}};
  const replay::ReplayResult result =
      replay::replay_planned(encoder(unseen, {{2, 1}, {4, 3}}), plan);
  EXPECT_EQ(result.misses, 0);
  EXPECT_LE(result.peak_reserved, result.peak_load + result.peak_load / 100);
}

TEST(DerivedStages, TellTheSizesOfLargerBatches) {
  const plan::Plan plan = plan_of(encoder(kBatches, {{2, 1}, {4, 3}}));
  const std::vector<Batch> unseen = {{4, 2000}, {4, 3400}, {4, 901}, {4, 5203}, {3, 5001}};
  const replay::ReplayResult result =
      replay::replay_planned(encoder(unseen, {{2, 1}, {4, 3}}), plan);
  EXPECT_EQ(result.misses, 0);
  EXPECT_LE(result.peak_reserved, result.peak_load + result.peak_load / 50);
}

TEST(DerivedStages, AreNotTriedWhereTheInputsExplain) {
  const plan::Plan plan = plan_of(encoder(kBatches, {{1, 0}}));
  EXPECT_EQ(plan.extent_names, (std::vector<std::string>{"x.0", "x.1"}));
}

TEST(DerivedStages, AreReadFromAPlansFile) {
  const plan::Plan plan = plan_of(encoder(kBatches, {{8, -3}}));
  const std::string text = plan::to_json(plan);
  EXPECT_NE(text.find("\"version\": 2"), std::string::npos);
  EXPECT_EQ(plan::plan_from_json(text, "a test").extent_names, plan.extent_names);
  EXPECT_NE(plan::to_json(plan_of(encoder(kBatches, {{1, 0}}))).find("\"version\": 1"),
            std::string::npos)
      << "older readers understand it";
}

TEST(DerivedStages, AreToldByTheInputs) {
  plan::Plan plan;
  plan.extent_names = {"x.1", "floor((x.1+3)/4)"};
  plan.extents = {100, 25};
  runtime::Microbatches microbatches(plan);
  microbatches.enter_phase(trace::PhaseKind::kForward, 0, 0);
  microbatches.set(std::vector<std::string>{"x.1"}, Batch{66});
  EXPECT_EQ(microbatches.now().extents, (Batch{66, 17}));
  microbatches.enter_phase(trace::PhaseKind::kForward, 1, 0);
  microbatches.set(std::vector<std::string>{"x.1"}, Batch{std::numeric_limits<Extent>::max()});
  EXPECT_EQ(microbatches.now().extents.back(), kNone);
  EXPECT_TRUE(microbatches.now().shares.empty()) << "the plan knows the dimension";
}

// Any divisor, offset and polynomial is found from ten batches, and its laws hold for others.
TEST(DerivedStages, AnyStageIsFound) {
  for (unsigned seed = 0; seed < 60; ++seed) {
    std::mt19937 rng(seed);
    const auto draw = [&](Extent low, Extent high) {
      return std::uniform_int_distribution<Extent>(low, high)(rng);
    };
    const Extent divisor = draw(2, 40);
    const ExtentForm form{divisor, draw(-2 * divisor, divisor - 1)};
    std::vector<Batch> batches;
    for (int i = 0; i < 10; ++i) batches.push_back({draw(1, 8), draw(100, 4000)});
    const trace::Trace trace = encoder(batches, {form});
    const profile::SizeLaws laws = profile::find_size_laws(trace);
    ASSERT_EQ(laws.extent_names.size(), 3U)
        << "seed " << seed << ", " << profile::derived_name("x.1", form) << " "
        << ::testing::PrintToString(laws.extent_names);
    const ExtentForm found = parse_extent(laws.extent_names.back()).form;
    EXPECT_EQ(found.divisor, divisor) << "seed " << seed;
    for (const Batch& batch : batches) EXPECT_EQ(found.of(batch[1]), form.of(batch[1]));
    // The offset is one of those that the batches allow.
    EXPECT_LT(std::abs(found.offset - form.offset), divisor);
    for (std::size_t r = 0; r < trace.requests.size(); ++r) {
      ASSERT_NE(laws.of[r], kNone) << "seed " << seed;
      EXPECT_EQ(laws[laws.of[r]].proof, profile::LawProof::kProven);
    }
  }
}

// The same for layers in a row: other batches are served.
TEST(DerivedStages, TheStagesOfLayersServeOtherBatches) {
  for (unsigned seed = 0; seed < 60; ++seed) {
    std::mt19937 rng(seed);
    const auto draw = [&](Extent low, Extent high) {
      return std::uniform_int_distribution<Extent>(low, high)(rng);
    };
    const Extent k = draw(2, 8);
    const std::vector<std::vector<ExtentForm>> forms = {{{k, k - 1}},
                                                        {{k, 0}},
                                                        {{k, -k}},
                                                        {{2, 1}, {4, 3}},
                                                        {{2, 0}, {4, 0}, {8, 0}},
                                                        {{5, -5}, {10, -10}, {20, -20}}};
    const std::vector<ExtentForm>& layers = forms[seed % forms.size()];
    std::vector<Batch> batches(16);
    for (Batch& batch : batches) batch = {4, draw(300, 3000)};
    const plan::Plan plan = plan_of(encoder(batches, layers));
    std::vector<Batch> unseen(10);
    for (Batch& batch : unseen) batch = {4, draw(300, 3100)};
    const replay::ReplayResult result = replay::replay_planned(encoder(unseen, layers), plan);
    EXPECT_LE(100 * result.misses, result.hits)
        << "seed " << seed << ::testing::PrintToString(plan.extent_names);
    const Bytes needed = std::max(result.peak_load, plan.pool);
    EXPECT_LE(result.peak_reserved, needed + needed / 50) << "seed " << seed;
  }
}

// Height and width go through five halvings, as in a backbone.
TEST(DerivedStages, ABackboneHalvesItsImages) {
  std::mt19937 rng(5);
  testing::TraceBuilder t;
  for (int i = 0; i < 8; ++i) {
    const Extent height = std::uniform_int_distribution<Extent>(320, 800)(rng);
    const Extent width = std::uniform_int_distribution<Extent>(320, 800)(rng);
    t.phase(trace::PhaseKind::kForward, 0);
    t.extents({"x.2", "x.3"}, {height, width});
    std::vector<std::int32_t> held;
    for (Extent k = 2; k <= 32; k *= 2) {
      const ExtentForm half{k, k - 1};
      for (int layer = 0; layer < 3; ++layer) {
        const auto size = 4096 * k * half.of(height) * half.of(width);
        held.push_back(t.alloc(size));
      }
    }
    t.phase(trace::PhaseKind::kBackward, 0);
    for (auto r = held.rbegin(); r != held.rend(); ++r) t.free(*r);
    t.step();
  }
  const profile::SizeLaws laws = profile::find_size_laws(t.finish());
  EXPECT_EQ(laws.extent_names.size(), 2U + 5 * 2U);
  for (const char* name : {"floor((x.2+1)/2)", "floor((x.3+31)/32)"}) {
    EXPECT_EQ(std::ranges::count(laws.extent_names, name), 1)
        << name << " " << ::testing::PrintToString(laws.extent_names);
  }
  for (const profile::SizeLaw& law : laws.laws) EXPECT_EQ(law.proof, profile::LawProof::kProven);
}

// The batches do not tell the offsets apart: no length has a remainder of 3.
TEST(DerivedStages, OfOffsetsThatTieTheLargestIsTaken) {
  std::vector<Batch> batches;
  for (const Extent n : {2992, 1501, 702, 2244, 1801, 334}) batches.push_back({4, n});
  const auto name = [&](const ExtentForm& form) {
    return profile::find_size_laws(encoder(batches, {form})).extent_names.back();
  };
  EXPECT_EQ(name({4, 3}), "floor((x.1+3)/4)");
  EXPECT_EQ(name({4, 0}), "floor((x.1+1)/4)") << "0 and 1 do not differ";
  EXPECT_EQ(name({4, -2}), "floor((x.1-2)/4)");
}

// The batches do not tell a half from a quarter: no length has a remainder of 1 or 2.
TEST(DerivedStages, OfDivisorsThatTieTheLargestIsTaken) {
  std::vector<Batch> batches;
  for (const Extent n : {2992, 1503, 700, 2247, 1804, 332}) batches.push_back({4, n});
  const std::vector<ExtentForm> layers = {{2, 1}, {4, 3}};
  const plan::Plan plan = plan_of(encoder(batches, layers));
  EXPECT_EQ(plan.extent_names.back(), "floor((x.1+3)/4)");
  const replay::ReplayResult result =
      replay::replay_planned(encoder({{4, 2990}, {4, 1501}, {4, 2989}, {4, 700}}, layers), plan);
  EXPECT_LE(result.peak_reserved, plan.pool + plan.pool / 100) << "a smaller request fits";
}

// Patches of 14 by 14. So few batches allow patches of 15, too, with an offset that no layer has.
TEST(DerivedStages, OfOffsetsThatTieAUsualOneIsTaken) {
  testing::TraceBuilder t;
  for (const Extent side : {402, 283, 361, 471, 295}) {
    t.phase(trace::PhaseKind::kForward, 0);
    t.extents({"x.2"}, {side});
    const Extent patches = (side / 14) * (side / 14);
    const std::int32_t image = t.alloc(12 * side * side);
    const std::int32_t first = t.alloc(16384 * patches);
    const std::int32_t second = t.alloc(16384 * patches);
    t.phase(trace::PhaseKind::kBackward, 0);
    for (const std::int32_t r : {second, first, image}) t.free(r);
    t.step();
  }
  EXPECT_EQ(profile::find_size_laws(t.finish()).extent_names,
            (std::vector<std::string>{"x.2", "floor((x.2+2)/14)"}));
}

// Sizes that follow another number, which the model chooses itself.
TEST(DerivedStages, ChanceIsNoStage) {
  for (unsigned seed = 0; seed < 100; ++seed) {
    std::mt19937 rng(seed);
    const auto draw = [&](Extent low, Extent high) {
      return std::uniform_int_distribution<Extent>(low, high)(rng);
    };
    testing::TraceBuilder t;
    for (int i = 0; i < 3 + static_cast<int>(seed % 4); ++i) {
      const Extent length = draw(100, 1000);
      const Extent chosen = draw(100, 1000);
      t.phase(trace::PhaseKind::kForward, 0);
      t.extents({"x.0", "x.1"}, {draw(1, 8), length});
      std::vector<std::int32_t> held;
      for (int layer = 0; layer < 20; ++layer) {
        held.push_back(t.alloc(512 * length));
      }
      for (int layer = 0; layer < 2; ++layer) {
        held.push_back(t.alloc(4096 * chosen));
      }
      t.phase(trace::PhaseKind::kBackward, 0);
      for (auto r = held.rbegin(); r != held.rend(); ++r) t.free(*r);
      t.step();
    }
    for (const std::string& name : profile::find_size_laws(t.finish()).extent_names) {
      EXPECT_TRUE(parse_extent(name).form.is_plain()) << name << ", seed " << seed;
    }
  }
}

// The model changes its stride for batches that the profile does not have.
TEST(DerivedStages, AStrideThatChangesLaterCostsNoAddress) {
  const plan::Plan plan = plan_of(encoder(kBatches, {{4, 3}}));
  for (const ExtentForm& later : {ExtentForm{4, 0}, ExtentForm{5, 4}, ExtentForm{2, 1}}) {
    const std::vector<Batch> batches = {{4, 2000}, {2, 2998}, {4, 2999}, {1, 640}, {4, 4001}};
    const trace::Trace run = encoder(batches, {later});
    replay::Placements placements(run.requests.size());
    replay::replay_planned(run, plan, {}, &placements);
    for (std::size_t i = 0; i < run.requests.size(); ++i) {
      for (std::size_t j = 0; j < i; ++j) {
        const trace::Request& a = run.requests[i];
        const trace::Request& b = run.requests[j];
        if (a.lower >= b.upper || b.lower >= a.upper) continue;
        const Offset x = placements.addresses()[i];
        const Offset y = placements.addresses()[j];
        if (x == replay::Placements::kNowhere || y == replay::Placements::kNowhere) continue;
        EXPECT_TRUE(x + a.size <= y || y + b.size <= x) << i << " and " << j;
      }
    }
  }
}

}  // namespace
}  // namespace stalloc
