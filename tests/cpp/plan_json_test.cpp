// Plans to JSON and back; damaged text and plans that cannot be followed are refused.
#include "plan/plan_json.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "damage.h"
#include "trace_builder.h"

namespace stalloc {
namespace {

using ::testing::IsSubstring;
using testing::replaced;
using testing::TraceBuilder;
using testing::with_column;

Plan small_plan() {
  TraceBuilder t;
  for (int i = 0; i < 2; ++i) {
    t.phase(PhaseKind::kForward, 0);
    const auto a = t.alloc(600);
    const auto b = t.alloc(400);
    t.phase(PhaseKind::kBackward, 0);
    t.free(a);
    t.free(b);
    t.step();
  }
  Plan plan = make_plan(profile_iteration(t.finish()), {});
  plan.info = {{"device", "cpu"}};
  plan.fingerprint = "0123456789abcdef0123456789abcdef";
  return plan;
}

std::string complaint(std::string_view text) {
  try {
    plan_from_json(text, "plan.json");
  } catch (const PlanError& error) {
    return error.what();
  }
  return "no complaint";
}

TEST(PlanJson, ReadsBackWhatItWrote) {
  const Plan plan = small_plan();
  const std::string text = to_json(plan);
  const Plan again = plan_from_json(text, "");
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

TEST(PlanJson, RefusesEveryTruncation) {
  const std::string text = to_json(small_plan());
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
