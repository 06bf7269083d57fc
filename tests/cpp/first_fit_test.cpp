// The placement and the greedy planners, which are built on it.
#include <gtest/gtest.h>

#include "brute_force.h"
#include "random_problems.h"
#include "solve/core/bound.h"
#include "solve/core/interval_set.h"
#include "solve/core/placement.h"
#include "solve/greedy/greedy.h"
#include "solve/greedy/repair.h"
#include "verify/validator.h"

namespace stalloc {
namespace {

// Answers the same queries by a look at every rectangle.
struct SlowPlacement {
  struct Rectangle {
    solve::Span span;
    Offset begin;
    Offset end;
  };
  std::vector<Rectangle> rectangles;
  solve::Moment moments;

  bool free(const solve::Span& span, Offset begin, Offset end) const {
    for (const Rectangle& r : rectangles) {
      if (r.begin >= end || r.end <= begin) continue;
      for (solve::Moment m = 0; m < moments; ++m) {
        if (r.span.contains(m) && span.contains(m)) return false;
      }
    }
    return true;
  }

  Offset first_fit(const solve::Span& span, Bytes size, Offset from) const {
    for (Offset at = from;; ++at) {
      if (free(span, at, at + size)) return at;
    }
  }

  Offset best_fit(const solve::Span& span, Bytes size, Offset top) const {
    Offset best = kUnplaced;
    Bytes best_hole = 0;
    for (Offset at = 0; at < top; ++at) {
      if (!free(span, at, at + 1) || (at > 0 && free(span, at - 1, at))) continue;
      Offset end = at;
      while (end < top && free(span, end, end + 1)) ++end;
      if (end - at >= size && (best == kUnplaced || end - at < best_hole)) {
        best = at;
        best_hole = end - at;
      }
    }
    return best == kUnplaced ? first_fit(span, size, 0) : best;
  }
};

TEST(Placement, FindsTheSamePlacesAsASearchThroughEverything) {
  RandomProblems random(2);
  for (int k = 0; k < 60; ++k) {
    const auto moments = static_cast<solve::Moment>(random.number(1, 17));
    solve::Placement placement(moments);
    SlowPlacement slow{{}, moments};
    Offset top = 0;
    for (int i = 0; i < 30; ++i) {
      solve::Span span;
      span.begin = static_cast<solve::Moment>(random.number(0, moments - 1));
      span.end = static_cast<solve::Moment>(random.number(span.begin + 1, moments));
      if (random.number(0, 3) == 0) {
        span.end = moments;
        span.wrap = static_cast<solve::Moment>(random.number(0, span.begin));
      }
      const Bytes size = random.number(1, 9);
      const Offset from = random.number(0, top);
      ASSERT_EQ(placement.first_fit(span, size, from), slow.first_fit(span, size, from));
      ASSERT_EQ(placement.best_fit(span, size, top), slow.best_fit(span, size, top));
      // Not always the lowest offset, so that there are holes.
      const Offset at = placement.first_fit(span, size, from);
      placement.place(span, at, size);
      slow.rectangles.push_back({span, at, at + size});
      top = std::max(top, at + size);
    }
  }
}

TEST(IntervalSet, MergesTouchingIntervalsOnly) {
  RandomProblems random(3);
  for (int k = 0; k < 50; ++k) {
    solve::IntervalArena arena;
    solve::IntervalSet set;
    std::vector<bool> taken(201, false);
    for (int i = 0; i < 60; ++i) {
      const Offset begin = random.number(0, 199);
      const Offset end = random.number(begin + 1, std::min<Offset>(200, begin + 6));
      bool is_new = false;
      for (Offset a = begin; a < end; ++a) {
        is_new |= !taken[a];
        taken[a] = true;
      }
      EXPECT_EQ(set.insert({begin, end}, arena), is_new);
      std::vector<std::pair<Offset, Offset>> expected;
      for (Offset a = 0; a < 200; ++a) {
        if (!taken[a]) continue;
        if (a == 0 || !taken[a - 1]) expected.emplace_back(a, a);
        expected.back().second = a + 1;
      }
      std::vector<std::pair<Offset, Offset>> actual;
      for (const solve::Interval& interval : set) actual.emplace_back(interval.begin, interval.end);
      ASSERT_EQ(actual, expected);
    }
  }
}

TEST(Timeline, KeepsEveryConflictAndAddsNone) {
  RandomProblems random(4);
  for (int k = 0; k < 300; ++k) {
    solve::Problem problem = random.next(10, k % 2 == 0);
    // Every other one with ticks too far apart for a table.
    const Tick scale = k % 4 < 2 ? 1 : 1'000'000;
    const solve::Problem unscaled = problem;
    problem.period *= scale;
    for (solve::Buffer& b : problem.buffers) {
      b.lower *= scale;
      b.upper *= scale;
    }
    const solve::Timeline timeline(problem);
    for (std::size_t i = 0; i < problem.buffers.size(); ++i) {
      const solve::Buffer& a = problem.buffers[i];
      EXPECT_EQ(timeline.span(i).empty(), a.upper <= a.lower);
      for (std::size_t j = 0; j < i; ++j) {
        bool together = false;
        for (solve::Moment m = 0; m < timeline.moments(); ++m) {
          together |= timeline.span(i).contains(m) && timeline.span(j).contains(m);
        }
        EXPECT_EQ(together,
                  testing::live_together(unscaled, unscaled.buffers[i], unscaled.buffers[j]));
      }
    }
  }
}

TEST(Greedy, PlansEveryShapeInEveryOrder) {
  RandomProblems random(5);
  for (int k = 0; k < 150; ++k) {
    const solve::Problem problem = random.next(30, k % 2 == 0);
    for (const solve::GreedyPlanner& greedy : solve::greedy_planners()) {
      const solve::Layout layout = greedy.plan(problem, {});
      EXPECT_NO_THROW(verify::validate(problem, layout)) << greedy.name() << " on problem " << k;
      EXPECT_GE(layout.height, solve::load_bound(problem));
    }
  }
}

TEST(Greedy, FillsTheLowestHoleAndTheTightestOne) {
  // Two holes at tick 5: 8 bytes at 0, 4 bytes at 12.
  const solve::Problem problem{.buffers = {{.size = 8, .lower = 0, .upper = 5},
                                           {.size = 4, .lower = 0, .upper = 9},
                                           {.size = 4, .lower = 0, .upper = 5},
                                           {.size = 4, .lower = 0, .upper = 9},
                                           {.size = 4, .lower = 5, .upper = 9}},
                               .alignment = 4};
  const solve::Timeline timeline(problem);
  const std::vector<solve::BufferIndex> order{0, 1, 2, 3, 4};
  EXPECT_EQ(solve::place_in_order(problem, timeline, order, solve::Fit::kFirst, {})->offsets[4], 0);
  EXPECT_EQ(solve::place_in_order(problem, timeline, order, solve::Fit::kBest, {})->offsets[4], 12);
}

TEST(Order, PutsLargeBuffersFirst) {
  // The peak of 4 MiB is at tick 6. The small one lives longest, and is at the peak, too.
  constexpr Bytes kMiB = Bytes{1} << 20;
  const solve::Problem problem{.buffers = {{.size = 512, .lower = 0, .upper = 9},
                                           {.size = kMiB, .lower = 0, .upper = 4},
                                           {.size = kMiB, .lower = 5, .upper = 8},
                                           {.size = 3 * kMiB, .lower = 6, .upper = 7},
                                           {.size = 2400, .lower = 6, .upper = 7},
                                           {.size = 2000, .lower = 6, .upper = 7}}};
  const solve::Timeline timeline(problem);
  EXPECT_EQ(solve::ordered(problem, timeline, solve::Order::kPeakRankEnd),
            (std::vector<solve::BufferIndex>{0, 2, 3, 4, 5, 1}));
  EXPECT_EQ(solve::ordered(problem, timeline, solve::Order::kLargePeakRankEnd),
            (std::vector<solve::BufferIndex>{2, 3, 4, 1, 0, 5}));
}

TEST(Greedy, KeepsFixedBuffersAndGivesUpAtTheLimit) {
  const solve::Problem problem{.buffers = {{.size = 8, .lower = 0, .upper = 5},
                                           {.size = 8, .lower = 4, .upper = 9, .fixed = 4}},
                               .alignment = 4};
  const solve::Timeline timeline(problem);
  std::atomic<Bytes> limit = 21;
  const auto layout =
      solve::place_in_order(problem, timeline, {0, 1}, solve::Fit::kFirst, {}, &limit);
  ASSERT_TRUE(layout);
  EXPECT_EQ(layout->offsets, (std::vector<Offset>{12, 4}));
  limit = 20;
  EXPECT_FALSE(solve::place_in_order(problem, timeline, {0, 1}, solve::Fit::kFirst, {}, &limit));
}

TEST(Greedy, StacksTheRestWhenCancelled) {
  const std::atomic<bool> cancel = true;
  RandomProblems random(6);
  for (int k = 0; k < 50; ++k) {
    const solve::Problem problem = random.next(30, k % 2 == 0);
    for (const solve::GreedyPlanner& greedy : solve::greedy_planners()) {
      EXPECT_NO_THROW(verify::validate(problem, greedy.plan(problem, {.cancel = &cancel})));
    }
  }
}

TEST(Repair, IsNeverWorseThanTheOrderItRepairs) {
  RandomProblems random(7);
  int better = 0;
  for (int k = 0; k < 200; ++k) {
    const solve::Problem problem = random.next(30, k % 2 == 0);
    const solve::Timeline timeline(problem);
    const auto order = solve::ordered(problem, timeline, solve::Order::kStart);
    const solve::Layout plain =
        *solve::place_in_order(problem, timeline, order, solve::Fit::kFirst, {});
    const solve::Budget budget{.target = solve::load_bound(problem)};
    const solve::Layout repaired_layout =
        solve::repaired(problem, timeline, order, solve::Fit::kFirst, 5, budget);
    EXPECT_NO_THROW(verify::validate(problem, repaired_layout));
    EXPECT_LE(repaired_layout.height, plain.height);
    better += repaired_layout.height < plain.height;
  }
  EXPECT_GT(better, 20);
}

}  // namespace
}  // namespace stalloc
