#include "solve/waits.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "base/error.h"
#include "random_problems.h"
#include "solve/core/bound.h"
#include "solve/portfolio.h"
#include "verify/validator.h"
#include "verify/waits_validator.h"

namespace stalloc {
namespace {

// The waits by definition: follows each address through all ticks to the next buffer there.
std::vector<solve::Wait> waits_by_definition(const solve::Problem& problem,
                                             const solve::Layout& layout) {
  std::vector<solve::Wait> waits;
  for (Offset at = 0; at < layout.height; at += problem.alignment) {
    std::vector<std::int32_t> here;
    for (std::size_t i = 0; i < problem.buffers.size(); ++i) {
      const solve::Buffer& b = problem.buffers[i];
      if (b.size > 0 && b.upper > b.lower && layout.offsets[i] <= at &&
          at < layout.offsets[i] + b.size) {
        here.push_back(static_cast<std::int32_t>(i));
      }
    }
    std::ranges::sort(here, {}, [&](std::int32_t i) { return problem.buffers[i].lower; });
    for (std::size_t k = 0; k < here.size(); ++k) {
      if (k == 0 && problem.period == 0) continue;
      const std::int32_t before = here[(k + here.size() - 1) % here.size()];
      if (problem.buffers[before].stream == problem.buffers[here[k]].stream) continue;
      waits.push_back({here[k], before});
    }
  }
  std::ranges::sort(waits);
  waits.erase(std::unique(waits.begin(), waits.end()), waits.end());
  return waits;
}

std::string complaint(const solve::Problem& problem, const solve::Layout& layout,
                      const std::vector<solve::Wait>& waits) {
  try {
    verify::validate_waits(problem, layout, waits);
  } catch (const PlanError& error) {
    return error.what();
  }
  return "";
}

TEST(Waits, MatchTheDefinitionAndNoneIsSuperfluous) {
  RandomProblems random(31);
  std::size_t found = 0;
  for (int k = 0; k < 300; ++k) {
    solve::Problem problem = random.next(14, k % 2 == 0);
    problem.streams = solve::Streams::kOrdered;
    for (solve::Buffer& b : problem.buffers) {
      b.stream = static_cast<StreamId>(random.number(0, 2));
      b.size = b.size % 40 * problem.alignment;
    }
    const solve::Layout layout =
        solve::solve(problem, {.threads = 1, .search_steps = 500}, {}).layout;
    const std::vector<solve::Wait> waits = solve::find_waits(problem, layout);
    EXPECT_EQ(waits, waits_by_definition(problem, layout)) << "problem " << k;
    EXPECT_EQ(complaint(problem, layout, waits), "") << "problem " << k;
    found += waits.size();
    for (std::size_t w = 0; w < waits.size(); ++w) {
      std::vector<solve::Wait> fewer = waits;
      fewer.erase(fewer.begin() + static_cast<std::ptrdiff_t>(w));
      EXPECT_NE(complaint(problem, layout, fewer), "") << "problem " << k;
    }
  }
  EXPECT_GT(found, 200U);
}

TEST(Waits, OrderedStreamsShareAddresses) {
  solve::Problem problem;
  problem.alignment = 1;
  problem.buffers = {{.size = 8, .lower = 0, .upper = 4, .stream = 0},
                     {.size = 8, .lower = 4, .upper = 9, .stream = 1}};
  EXPECT_EQ(solve::solve(problem, {}, {}).layout.height, 16);
  problem.streams = solve::Streams::kOrdered;
  EXPECT_EQ(solve::load_bound(problem), 8);
  const solve::PortfolioResult result = solve::solve(problem, {}, {});
  EXPECT_EQ(result.layout.height, 8);
  EXPECT_TRUE(result.optimal);
  EXPECT_EQ(solve::find_waits(problem, result.layout), (std::vector<solve::Wait>{{1, 0}}));
  problem.period = 9;
  EXPECT_EQ(solve::find_waits(problem, result.layout), (std::vector<solve::Wait>{{0, 1}, {1, 0}}));
  problem.streams = solve::Streams::kSeparate;
  EXPECT_THROW(verify::validate(problem, result.layout), PlanError);
}

TEST(Waits, WrongOnesAreNamed) {
  solve::Problem problem;
  problem.alignment = 1;
  problem.streams = solve::Streams::kOrdered;
  problem.buffers = {{.size = 8, .lower = 0, .upper = 4, .stream = 0},
                     {.size = 8, .lower = 4, .upper = 9, .stream = 1}};
  const solve::Layout layout{{0, 0}, 8};
  EXPECT_NE(complaint(problem, layout, {}).find("a wait is missing: buffer 1"), std::string::npos);
  EXPECT_NE(complaint(problem, layout, {{0, 1}, {1, 0}}).find("unnecessary wait"),
            std::string::npos);
  EXPECT_NE(complaint(problem, layout, {{1, 0}, {0, 1}}).find("out of order"), std::string::npos);
  EXPECT_NE(complaint(problem, layout, {{1, 2}}).find("there are 2"), std::string::npos);
}

}  // namespace
}  // namespace stalloc
