// Plans to JSON and back; damaged text and plans that cannot be followed are refused.
#include "plan/plan_json.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "damage.h"
#include "plan/build.h"
#include "trace_builder.h"

namespace stalloc {
namespace {

using ::testing::IsSubstring;
using testing::replaced;
using testing::TraceBuilder;
using testing::with_column;

plan::Plan small_plan() {
  TraceBuilder t;
  for (int i = 0; i < 2; ++i) {
    t.phase(trace::PhaseKind::kForward, 0);
    const auto a = t.alloc(600);
    const auto b = t.alloc(400);
    t.phase(trace::PhaseKind::kBackward, 0);
    t.free(a);
    t.free(b);
    t.step();
  }
  plan::Plan plan = plan::make_plan(profile::profile_iteration(t.finish()), {});
  plan.info = {{"device", "cpu"}};
  plan.fingerprint = "0123456789abcdef0123456789abcdef";
  return plan;
}

// The same with a dynamic request between its two.
plan::Plan plan_with_group() {
  TraceBuilder t;
  for (int i = 0; i < 2; ++i) {
    t.phase(trace::PhaseKind::kForward, 0);
    const auto a = t.alloc(600);
    t.free(t.alloc(100 + i));
    const auto b = t.alloc(1400);
    t.free(a);
    t.free(b);
    t.step();
  }
  plan::Plan plan = plan::make_plan(profile::profile_iteration(t.finish()), {});
  plan.dynamic = {"Experts", "*.mlp.\"x\""};
  plan.groups.at(0).contexts = {{700, 0, -2}, {700, 512, -1}};
  plan.headroom = 5;
  plan.headroom_cost = 100;
  plan.headroom_saves = 200;
  return plan;
}

std::string complaint(std::string_view text) {
  try {
    plan::plan_from_json(text, "plan.json");
  } catch (const PlanError& error) {
    return error.what();
  }
  return "no complaint";
}

TEST(PlanJson, ReadsBackItsOutput) {
  const plan::Plan plan = small_plan();
  const std::string text = to_json(plan);
  const plan::Plan again = plan::plan_from_json(text, "");
  EXPECT_EQ(to_json(again), text);
  EXPECT_EQ(again.info, plan.info);
  EXPECT_EQ(again.fingerprint, plan.fingerprint);
  EXPECT_EQ(again.algorithm, plan.algorithm);
  EXPECT_EQ(again.optimal, plan.optimal);
  EXPECT_EQ(again.pool, 1536);
  EXPECT_EQ(again.bound, plan.bound);
  EXPECT_EQ(again.load, 1000);
  EXPECT_EQ(again.alignment, 512);
  EXPECT_EQ(again.period, plan.period);
  ASSERT_EQ(again.decisions.size(), 2u);
  EXPECT_EQ(again.decisions[1].size, plan.decisions[1].size);
  EXPECT_EQ(again.decisions[1].offset, plan.decisions[1].offset);
  ASSERT_EQ(again.phases.size(), plan.phases.size());
  EXPECT_EQ(again.phases[1].key, plan.phases[1].key);
}

// Files of older versions lack it.
TEST(PlanJson, ReadsBackTheLoadOfTheRecording) {
  plan::Plan plan = small_plan();
  plan.recorded_load = 700;
  EXPECT_EQ(plan::plan_from_json(to_json(plan), "").recorded_load, 700);
  plan.recorded_load = plan.load;
  const std::string text = to_json(plan);
  EXPECT_EQ(text.find("recorded_load"), std::string::npos);
  EXPECT_EQ(plan::plan_from_json(text, "").recorded_load, 1000);
}

TEST(PlanJson, ReadsBackGroups) {
  const plan::Plan plan = plan_with_group();
  const std::string text = to_json(plan);
  const plan::Plan again = plan::plan_from_json(text, "");
  EXPECT_EQ(to_json(again), text);
  EXPECT_EQ(again.dynamic, plan.dynamic);
  EXPECT_EQ(again.headroom, 5);
  EXPECT_EQ(again.headroom_cost, 100);
  EXPECT_EQ(again.headroom_saves, 200);
  ASSERT_EQ(again.groups.size(), 1u);
  const plan::DynamicGroup& group = again.groups[0];
  EXPECT_EQ(group.phase, 1);
  EXPECT_EQ(group.after, 0);
  EXPECT_EQ(group.size, 512);
  EXPECT_EQ(group.offset, plan.groups[0].offset);
  EXPECT_EQ(group.lower, plan.groups[0].lower);
  EXPECT_EQ(group.upper, plan.groups[0].upper);
  EXPECT_EQ(group.phase_end, plan.groups[0].phase_end);
  EXPECT_EQ(group.stream, 0);
  EXPECT_EQ(group.contexts, (std::vector<profile::DynamicContext>{{700, 0, -2}, {700, 512, -1}}));
  ASSERT_FALSE(group.reusable.empty());
  ASSERT_EQ(group.reusable.size(), plan.groups[0].reusable.size());
  EXPECT_EQ(group.reusable[0].begin, plan.groups[0].reusable[0].begin);
  EXPECT_EQ(group.reusable[0].end, plan.groups[0].reusable[0].end);
}

TEST(PlanJson, ReadsBackPersistentRequests) {
  TraceBuilder t;
  std::vector<int> kept;
  for (int i = 0; i < 4; ++i) {
    t.phase(trace::PhaseKind::kForward, 0);
    const auto a = t.alloc(600);
    const auto loss = t.alloc(4);
    t.free(t.alloc(4));
    t.free(a);
    if (i >= 2) t.free(kept[static_cast<std::size_t>(i) - 2]);
    kept.push_back(loss);
    t.step();
  }
  const plan::Plan plan = plan::make_plan(profile::profile_iteration(t.finish()), {});
  ASSERT_EQ(plan.persistent.size(), 1u);
  const std::string text = to_json(plan);
  const plan::Plan again = plan::plan_from_json(text, "");
  EXPECT_EQ(to_json(again), text);
  ASSERT_EQ(again.persistent.size(), 1u);
  EXPECT_EQ(again.persistent[0].phase, plan.persistent[0].phase);
  EXPECT_EQ(again.persistent[0].after, 0);
  EXPECT_EQ(again.persistent[0].size, 4);
  EXPECT_EQ(again.persistent[0].stream, 0);
  const auto refuses = [&](const char* column, const char* value, const char* what) {
    EXPECT_PRED_FORMAT2(IsSubstring, std::string("plan.json: persistent, row 0: ") + what,
                        complaint(with_column(text, "persistent", column, value)));
  };
  refuses("phase", "[9]", "belongs to phase 9");
  refuses("after", "[9]", "comes after decision 9");
  refuses("size", "[0]", "a size of 0");
}

TEST(PlanJson, RefusesGroupsThatCannotBe) {
  const std::string text = to_json(plan_with_group());
  EXPECT_PRED_FORMAT2(IsSubstring, "plan.json: groups, row 0: comes after decision 7",
                      complaint(with_column(text, "groups", "after", "[7]")));
  EXPECT_PRED_FORMAT2(IsSubstring, "plan.json: reusable, row 0: belongs to group 1",
                      complaint(with_column(text, "reusable", "group", "[1]")));
  EXPECT_PRED_FORMAT2(IsSubstring, "plan.json: groups, reusable ranges",
                      complaint(with_column(with_column(text, "reusable", "begin", "[0]"),
                                            "reusable", "end", "[2048]")));
  EXPECT_PRED_FORMAT2(IsSubstring, "plan.json: dynamic, row 0: expected",
                      complaint(replaced(text, "\"Experts\"", "7")));
}

TEST(PlanJson, RefusesEveryTruncation) {
  const std::string text = to_json(plan_with_group());
  for (std::size_t length = 0; length + 2 < text.size(); ++length) {
    ASSERT_PRED_FORMAT2(IsSubstring,
                        "plan.json: ", complaint(std::string_view(text).substr(0, length)))
        << length;
  }
}

TEST(PlanJson, RefusesOtherFormatsAndNewerVersions) {
  const std::string text = to_json(small_plan());
  EXPECT_PRED_FORMAT2(IsSubstring, "holds a 'stalloc-trace', where a 'stalloc-plan' is needed",
                      complaint(replaced(text, "stalloc-plan", "stalloc-trace")));
  EXPECT_PRED_FORMAT2(IsSubstring, "is of version 7",
                      complaint(replaced(text, "\"version\": 1", "\"version\": 7")));
}

TEST(PlanJson, SaysWhichValueIsOfTheWrongType) {
  const std::string text = to_json(small_plan());
  EXPECT_PRED_FORMAT2(IsSubstring, "plan.json: pool: expected an integer of 64 bits, found 1.5",
                      complaint(replaced(text, "\"pool\": 1536", "\"pool\": 1.5")));
  EXPECT_PRED_FORMAT2(IsSubstring, "plan.json: decisions.offset, row 1: expected an integer",
                      complaint(with_column(text, "decisions", "offset", "[0,null]")));
  EXPECT_PRED_FORMAT2(IsSubstring, "plan.json: decisions.offset: has 1 rows",
                      complaint(with_column(text, "decisions", "offset", "[0]")));
  EXPECT_PRED_FORMAT2(IsSubstring, "plan.json: phases.kind, row 0: no phase is called 'x'",
                      complaint(with_column(text, "phases", "kind", "[\"x\"]")));
}

TEST(PlanJson, ValidatesThePlanAndNamesTheFile) {
  const std::string text = to_json(small_plan());
  EXPECT_PRED_FORMAT2(IsSubstring, "plan.json: decisions",
                      complaint(with_column(text, "decisions", "offset", "[0,0]")));
  EXPECT_PRED_FORMAT2(IsSubstring, "overlap",
                      complaint(with_column(text, "decisions", "offset", "[0,0]")));
  EXPECT_PRED_FORMAT2(IsSubstring, "ends above the height of 1536",
                      complaint(with_column(text, "decisions", "offset", "[0,10240]")));
  EXPECT_PRED_FORMAT2(IsSubstring, "alignment",
                      complaint(replaced(text, "\"alignment\": 512", "\"alignment\": -1")));
}

}  // namespace
}  // namespace stalloc
