// Reusable space compared with its definition, and its validator with both.
#include "plan/reusable.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "brute_force.h"
#include "random_problems.h"
#include "solve/portfolio.h"
#include "verify/idle_validator.h"

namespace stalloc {
namespace {

bool is_idle(const solve::Problem& problem, const solve::Layout& layout, const plan::Window& window,
             Offset address) {
  const solve::Buffer as_buffer{.size = 1, .lower = window.lower, .upper = window.upper};
  for (std::size_t i = 0; i < problem.buffers.size(); ++i) {
    const solve::Buffer& b = problem.buffers[i];
    const Offset begin = layout.offsets[i];
    if (b.upper <= b.lower || address < begin ||
        address >= begin + align_up(b.size, problem.alignment)) {
      continue;
    }
    if (b.stream != window.stream || testing::live_together(problem, b, as_buffer)) return false;
  }
  return true;
}

std::vector<plan::AddressRange> by_definition(const solve::Problem& problem,
                                              const solve::Layout& layout,
                                              const plan::Window& window) {
  std::vector<plan::AddressRange> ranges;
  for (Offset a = 0; a < layout.height; a += problem.alignment) {
    if (!is_idle(problem, layout, window, a)) continue;
    if (ranges.empty() || ranges.back().end != a) ranges.push_back({a, a});
    ranges.back().end = a + problem.alignment;
  }
  return ranges;
}

struct Case {
  solve::Problem problem;
  solve::Layout layout;
  std::vector<plan::Window> windows;
};

Case random_case(RandomProblems& random) {
  Case c;
  c.problem = random.next(14, true);
  c.problem.alignment = 64;
  for (solve::Buffer& b : c.problem.buffers) {
    b.size = std::min<Bytes>(b.size, 1000);
    b.stream = random.number(0, 4) == 0 ? 1 : 0;
  }
  c.layout = solve::solve(c.problem, {.algorithm = "first-fit-size"}, {}).layout;
  if (random.number(0, 2) == 0) c.layout.height += 64 * random.number(0, 3);
  for (int i = static_cast<int>(random.number(0, 5)); i > 0; --i) {
    const Tick lower = random.number(0, c.problem.period - 1);
    c.windows.push_back({lower, lower + random.number(1, c.problem.period),
                         static_cast<StreamId>(random.number(0, 2))});
  }
  return c;
}

std::string complaint(const Case& c, const verify::IdleClaim& claim) {
  try {
    verify::validate_idle(c.problem, c.layout, std::vector<verify::IdleClaim>{claim});
  } catch (const PlanError& error) {
    return error.what();
  }
  return "";
}

TEST(ReusableSpace, IsIdleThroughTheWindow) {
  // Two buffers above each other, one after the other, and one that wraps round.
  const solve::Problem problem{.buffers = {{.size = 512, .lower = 0, .upper = 4},
                                           {.size = 512, .lower = 2, .upper = 6},
                                           {.size = 512, .lower = 8, .upper = 11}},
                               .period = 10};
  const solve::Layout layout{{0, 512, 1024}, 2048};
  const std::vector<plan::Window> windows = {{4, 6}, {6, 8}, {9, 12}, {0, 10}, {4, 6, 1}};
  const auto ranges = plan::reusable_space(problem, layout, windows);
  const auto expect = [&](std::size_t w, std::vector<std::pair<Offset, Offset>> expected) {
    ASSERT_EQ(ranges[w].size(), expected.size()) << w;
    for (std::size_t i = 0; i < expected.size(); ++i) {
      EXPECT_EQ(ranges[w][i].begin, expected[i].first) << w;
      EXPECT_EQ(ranges[w][i].end, expected[i].second) << w;
    }
  };
  expect(0, {{0, 512}, {1024, 2048}});
  expect(1, {{0, 2048}});
  expect(2, {{512, 1024}, {1536, 2048}});
  expect(3, {{1536, 2048}});
  expect(4, {{1536, 2048}});
}

TEST(ReusableSpace, IsEmptyInAnEmptyPool) {
  const auto ranges = plan::reusable_space({.period = 4}, {}, std::vector<plan::Window>{{0, 2}});
  ASSERT_EQ(ranges.size(), 1u);
  EXPECT_TRUE(ranges[0].empty());
}

TEST(ReusableSpaceProperty, IsTheDefinition) {
  RandomProblems random(1);
  std::size_t found = 0;
  for (int round = 0; round < 3000; ++round) {
    const Case c = random_case(random);
    const auto ranges = plan::reusable_space(c.problem, c.layout, c.windows);
    ASSERT_EQ(ranges.size(), c.windows.size());
    for (std::size_t w = 0; w < c.windows.size(); ++w) {
      const auto expected = by_definition(c.problem, c.layout, c.windows[w]);
      ASSERT_EQ(ranges[w].size(), expected.size()) << round;
      for (std::size_t i = 0; i < expected.size(); ++i) {
        ASSERT_EQ(ranges[w][i].begin, expected[i].begin) << round;
        ASSERT_EQ(ranges[w][i].end, expected[i].end) << round;
      }
      found += expected.size();
    }
  }
  EXPECT_GT(found, 3000u);
}

TEST(IdleValidatorProperty, AcceptsIdleSpaceOnly) {
  RandomProblems random(2);
  std::size_t refused = 0;
  std::size_t accepted = 0;
  for (int round = 0; round < 3000; ++round) {
    const Case c = random_case(random);
    if (c.layout.height < 64) continue;
    std::vector<verify::IdleClaim> sound;
    for (const plan::Window& w : c.windows) {
      for (const plan::AddressRange& r : by_definition(c.problem, c.layout, w)) {
        sound.push_back({r.begin, r.end, w.lower, w.upper, w.stream});
      }
      const Offset begin = 64 * random.number(0, c.layout.height / 64 - 1);
      const Offset end = std::min(c.layout.height, begin + 64 * random.number(1, 4));
      bool idle = true;
      for (Offset a = begin; a < end; a += 64) idle = idle && is_idle(c.problem, c.layout, w, a);
      const std::string said = complaint(c, {begin, end, w.lower, w.upper, w.stream});
      ASSERT_EQ(said.empty(), idle) << round << ": " << said;
      (idle ? accepted : refused) += 1;
    }
    ASSERT_NO_THROW(verify::validate_idle(c.problem, c.layout, sound)) << round;
  }
  EXPECT_GT(refused, 1000u);
  EXPECT_GT(accepted, 500u);
}

TEST(IdleValidator, NamesTheClaimAndTheBuffer) {
  const solve::Problem problem{
      .buffers = {{.size = 512, .lower = 0, .upper = 2}, {.size = 512, .lower = 2, .upper = 6}},
      .period = 10};
  const std::vector<verify::IdleClaim> claims = {{0, 512, 2, 10}, {256, 768, 4, 8}};
  try {
    verify::validate_idle(problem, {{0, 512}, 1024}, claims);
    FAIL() << "a claim on an occupied address was accepted";
  } catch (const PlanError& error) {
    EXPECT_PRED_FORMAT2(::testing::IsSubstring, "claim 1, [256, 768)", error.what());
    EXPECT_PRED_FORMAT2(::testing::IsSubstring, "buffer 1", error.what());
  }
}

}  // namespace
}  // namespace stalloc
