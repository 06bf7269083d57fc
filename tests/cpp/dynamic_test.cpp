// The sites and groups of dynamic requests. No window is shorter than in any iteration.
#include "profile/dynamic.h"

#include <gtest/gtest.h>

#include <map>
#include <optional>
#include <random>
#include <set>

#include "profile/lifetimes.h"
#include "trace_builder.h"

namespace stalloc {
namespace {

using testing::TraceBuilder;

std::vector<Bytes> sizes_of(const std::vector<profile::DynamicSighting>& sightings) {
  std::vector<Bytes> sizes;
  for (const profile::DynamicSighting& s : sightings) sizes.push_back(s.size);
  return sizes;
}

// The size of the profiled request that a site comes after; 0 for none.
Bytes size_before(const profile::IterationProfile& profile, const profile::ProfiledGroup& place) {
  return place.after == kNone ? 0 : profile.requests[place.after].size;
}

// Experts between a router and a sum. `tokens` determines the number of requests and their sizes.
void moe_layer(TraceBuilder& t, const std::vector<Bytes>& tokens) {
  const auto router = t.alloc(10);
  std::vector<std::int32_t> outputs;
  for (const Bytes count : tokens) outputs.push_back(t.alloc(100 * count));
  const auto sum = t.alloc(11);
  for (const auto output : outputs) t.free(output);
  const auto next = t.alloc(12);
  for (const auto r : {router, sum, next}) t.free(r);
}

TEST(DynamicGroups, FollowFromTheStaticRequestBefore) {
  TraceBuilder t;
  const std::vector<std::vector<Bytes>> steps = {{9, 9, 9, 9}, {3, 1}, {2}, {}};
  for (const auto& tokens : steps) {
    t.phase(trace::PhaseKind::kForward, 0);
    moe_layer(t, tokens);
    t.step();
  }
  const profile::IterationProfile profile = profile::profile_iteration(t.finish());
  ASSERT_EQ(profile.groups.size(), 1u);
  const profile::ProfiledGroup& place = profile.groups[0];
  EXPECT_EQ(size_before(profile, place), 10);
  EXPECT_EQ(profile[place.phase].key.kind, trace::PhaseKind::kForward);
  EXPECT_EQ(place.phase_end, place.phase);
  // The reference, which has none, is [10 at 0, 11 at 1, 12 at 2].
  EXPECT_EQ(place.lower, 0);
  EXPECT_EQ(place.upper, 2);
  ASSERT_EQ(place.sightings.size(), 3u);
  EXPECT_EQ(sizes_of(place.sightings[0]), (std::vector<Bytes>{300, 100}));
  EXPECT_EQ(sizes_of(place.sightings[1]), (std::vector<Bytes>{200}));
  EXPECT_TRUE(place.sightings[2].empty());
}

TEST(DynamicGroups, BeginWhereTheReferenceFirstAsksAndNothingElseWasAlive) {
  TraceBuilder t;
  for (int i = 0; i < 3; ++i) {
    t.phase(trace::PhaseKind::kForward, 0);
    const auto input = t.alloc(9);
    const auto router = t.alloc(10);
    t.free(input);  // tick 2: before the first expert in every iteration
    const auto expert = t.alloc(100 + i);
    t.free(router);
    t.free(expert);
    t.free(t.alloc(11));
    t.step();
  }
  const profile::IterationProfile profile = profile::profile_iteration(t.finish());
  ASSERT_EQ(profile.groups.size(), 1u);
  EXPECT_EQ(profile.groups[0].lower, 3);
  EXPECT_EQ(profile.groups[0].upper, 6);
  EXPECT_EQ(profile.requests[0].upper, 2);
}

TEST(DynamicGroups, BeginBeforeTheEndOfAllBlocksLiveInAnyIteration) {
  TraceBuilder t;
  for (int i = 0; i < 3; ++i) {
    t.phase(trace::PhaseKind::kForward, 0);
    const auto input = t.alloc(9);
    const auto router = t.alloc(10);
    if (i != 1) t.free(input);
    const auto expert = t.alloc(100 + i);
    if (i == 1) t.free(input);
    t.free(router);
    t.free(expert);
    t.free(t.alloc(11));
    t.step();
  }
  const profile::IterationProfile profile = profile::profile_iteration(t.finish());
  ASSERT_EQ(profile.groups.size(), 1u);
  EXPECT_LT(profile.groups[0].lower, profile.requests[0].upper);
}

TEST(DynamicGroups, MayComeBeforeTheFirstRequestOfTheirPhase) {
  TraceBuilder t;
  for (int i = 0; i < 3; ++i) {
    t.phase(trace::PhaseKind::kForward, 0);
    t.free(t.alloc(100 + i));
    const auto a = t.alloc(10);
    t.phase(trace::PhaseKind::kBackward, 0);
    const auto dynamic = t.alloc(200 + i);
    t.free(a);
    t.phase(trace::PhaseKind::kOptimizer);
    t.free(dynamic);
    t.step();
  }
  const profile::IterationProfile profile = profile::profile_iteration(t.finish());
  ASSERT_EQ(profile.groups.size(), 2u);
  EXPECT_EQ(profile.groups[0].after, kNone);
  EXPECT_EQ(profile[profile.groups[0].phase].key.kind, trace::PhaseKind::kForward);
  EXPECT_EQ(profile.groups[0].lower, 0);
  EXPECT_EQ(profile.groups[0].upper, 2);
  EXPECT_EQ(profile.groups[1].after, kNone);
  EXPECT_EQ(profile[profile.groups[1].phase].key.kind, trace::PhaseKind::kBackward);
  EXPECT_EQ(profile[profile.groups[1].phase_end].key.kind, trace::PhaseKind::kOptimizer);
}

TEST(DynamicGroups, ATagMakesRequestsOfEqualSizesDynamic) {
  for (const int tagged : {0, 1, 2, 3}) {  // 3: nowhere; 0, the warm-up, does not count
    TraceBuilder t;
    for (int i = 0; i < 3; ++i) {
      t.phase(trace::PhaseKind::kForward, 0);
      const auto a = t.alloc(10);
      const auto b = t.alloc(100);
      if (i == tagged) t.tag_dynamic(b);
      t.free(b);
      t.free(a);
      t.step();
    }
    const profile::IterationProfile profile = profile::profile_iteration(t.finish());
    const bool counts = tagged == 1 || tagged == 2;
    ASSERT_EQ(profile.groups.size(), counts ? 1u : 0u);
    EXPECT_EQ(profile.requests[1].dynamic, counts);
    if (!counts) continue;
    EXPECT_EQ(sizes_of(profile.groups[0].sightings[0]), (std::vector<Bytes>{100}));
    EXPECT_EQ(sizes_of(profile.groups[0].sightings[1]), (std::vector<Bytes>{100}));
  }
}

TEST(DynamicGroups, SeparateStreamsAndLeaveOutOtherThreadsAndEvaluations) {
  TraceBuilder t;
  for (int i = 0; i < 3; ++i) {
    t.phase(trace::PhaseKind::kForward, 0);
    const auto a = t.alloc(10);
    t.free(t.alloc(100 + i));
    t.free(t.alloc(200 + i, 1));
    t.free(t.alloc(300 + i, 0, 1));
    t.phase(trace::PhaseKind::kUnplanned);
    t.free(t.alloc(400 + i));
    t.free(a);
    t.step();
  }
  const profile::IterationProfile profile = profile::profile_iteration(t.finish());
  ASSERT_EQ(profile.groups.size(), 2u);
  EXPECT_EQ(profile.groups[0].stream, 0);
  EXPECT_EQ(sizes_of(profile.groups[0].sightings[1]), (std::vector<Bytes>{102}));
  EXPECT_EQ(profile.groups[1].stream, 1);
  EXPECT_EQ(sizes_of(profile.groups[1].sightings[1]), (std::vector<Bytes>{202}));
}

// Backward of two experts: temporaries, and gradients that stay until the optimizer.
TEST(DynamicGroups, SeparateLongFromShortLifetimes) {
  constexpr Bytes kGradient = Bytes{1} << 20;
  TraceBuilder t;
  for (int i = 0; i < 3; ++i) {
    std::vector<std::int32_t> gradients;
    t.phase(trace::PhaseKind::kBackward, 0);
    const auto before = t.alloc(10);
    for (int e = 0; e < 2; ++e) {
      const auto temporary = t.alloc(100'000 + 1000 * e + i);
      gradients.push_back(t.alloc(kGradient));
      t.tag_dynamic(gradients.back());
      t.free(temporary);
    }
    t.free(before);
    t.free(t.alloc(11));
    t.phase(trace::PhaseKind::kOptimizer);
    t.free(t.alloc(12));
    for (const auto g : gradients) t.free(g);
    t.step();
  }
  const profile::IterationProfile profile = profile::profile_iteration(t.finish());
  ASSERT_EQ(profile.groups.size(), 2u);
  const profile::ProfiledGroup& stay = profile.groups[0];
  const profile::ProfiledGroup& pass = profile.groups[1];
  EXPECT_EQ(stay.after, pass.after);
  EXPECT_EQ(sizes_of(stay.sightings[1]), (std::vector<Bytes>{kGradient, kGradient}));
  EXPECT_EQ(sizes_of(pass.sightings[1]), (std::vector<Bytes>{100'002, 101'002}));
  EXPECT_EQ(profile[stay.phase_end].key.kind, trace::PhaseKind::kOptimizer);
  EXPECT_EQ(pass.phase_end, pass.phase);
  EXPECT_LT(pass.upper, profile[pass.phase].end);
  EXPECT_FALSE(stay.contexts.empty());
  EXPECT_FALSE(pass.contexts.empty());
}

// All are freed before the next static request, and some before three more have come.
TEST(DynamicGroups, SeparateBriefLifetimesFromOthersOfTheSameMoment) {
  TraceBuilder t;
  for (Bytes i = 0; i < 3; ++i) {
    const Bytes tokens = 100'000 + 1000 * i;
    t.phase(trace::PhaseKind::kForward, 0);
    const auto before = t.alloc(10);
    std::vector<std::int32_t> kept = {t.alloc(tokens)};
    t.free(t.alloc(tokens));  // a copy
    for (Bytes width = 2; width <= 5; ++width) kept.push_back(t.alloc(width * tokens));
    for (const auto r : kept) t.free(r);
    t.free(t.alloc(11));
    t.free(before);
    t.step();
  }
  const profile::IterationProfile profile = profile::profile_iteration(t.finish());
  ASSERT_EQ(profile.groups.size(), 2u);
  EXPECT_EQ(sizes_of(profile.groups[0].sightings[1]), (std::vector<Bytes>{102'000, 2 * 102'000}));
  EXPECT_EQ(sizes_of(profile.groups[1].sightings[1]),
            (std::vector<Bytes>{102'000, 3 * 102'000, 4 * 102'000, 5 * 102'000}));
  EXPECT_EQ(profile.groups[0].upper, profile.groups[1].upper);
}

TEST(DynamicGroups, MayWrapRoundButNotOutliveAnIteration) {
  for (const bool too_long : {false, true}) {
    TraceBuilder t;
    std::int32_t kept = kNone;
    for (int i = 0; i < 4; ++i) {
      t.phase(trace::PhaseKind::kForward, 0);
      const auto a = t.alloc(10);
      if (kept != kNone && !too_long) t.free(kept);
      const auto b = t.alloc(11);
      const auto dynamic = t.alloc(100 + i);
      if (kept != kNone && too_long) t.free(kept);
      kept = dynamic;
      t.free(a);
      t.free(b);
      t.step();
    }
    const profile::IterationProfile profile = profile::profile_iteration(t.finish());
    ASSERT_EQ(profile.groups.size(), too_long ? 0u : 1u);
    ASSERT_EQ(profile.kept.size(), too_long ? 1u : 0u);
    if (too_long) continue;
    const profile::ProfiledGroup& place = profile.groups[0];
    EXPECT_GT(place.upper, profile.period);
    EXPECT_LE(place.upper - place.lower, profile.period);
    // The reference does not see the end of its own; the other iterations do.
    EXPECT_EQ(sizes_of(place.sightings.back()), (std::vector<Bytes>{103}));
    EXPECT_EQ(place.sightings.back()[0].upper, kNever);
  }
}

// A mask for each length, kept until the length comes again, and tensors made from it.
trace::Trace with_masks(const std::vector<Bytes>& lengths, bool others) {
  TraceBuilder t;
  for (const Bytes length : lengths) {
    t.phase(trace::PhaseKind::kForward, 0);
    const auto a = t.alloc(10);
    t.alloc(100'000 * length);
    if (others) t.free(t.alloc(70'000 * length));
    const auto b = t.alloc(11);
    t.free(a);
    t.free(b);
    t.step();
  }
  return t.finish();
}

TEST(DynamicGroups, RequestsThatOutliveTheNextIterationAreKeptWithoutARegion) {
  for (const bool others : {false, true}) {
    const profile::IterationProfile profile =
        profile::profile_iteration(with_masks({3, 5, 7, 11, 13}, others));
    ASSERT_EQ(profile.kept.size(), 1u);
    const profile::KeptGroup& kept = profile.kept[0];
    EXPECT_EQ(profile[kept.phase].key.kind, trace::PhaseKind::kForward);
    EXPECT_EQ(profile.requests[kept.after].size, 10);
    ASSERT_EQ(profile.groups.size(), others ? 1u : 0u);
    if (!others) continue;
    for (const auto& sightings : profile.groups[0].sightings) {
      ASSERT_EQ(sightings.size(), 1u);
      EXPECT_EQ(sightings[0].size % 70'000, 0);
    }
  }
}

// The data of a batch, made before its forward and freed after it: three tensors and their stack.
profile::IterationProfile with_data(Bytes scale, bool between) {
  TraceBuilder t;
  for (int i = 0; i < 4; ++i) {
    t.phase(between ? trace::PhaseKind::kOther : trace::PhaseKind::kForward, between ? kNone : 1);
    t.free(t.alloc(10));
    std::vector<std::int32_t> rows;
    for (Bytes row = 0; row < 3; ++row) rows.push_back(t.alloc(scale * (100 + 7 * i + row)));
    const auto stack = t.alloc(3 * scale * (100 + 7 * i + 2));
    for (const auto r : rows) t.free(r);
    t.phase(trace::PhaseKind::kForward, 0);
    t.free(t.alloc(11));
    t.free(stack);
    t.step();
  }
  return profile::profile_iteration(t.finish());
}

TEST(DynamicGroups, SmallDataBetweenMicrobatchesHaveNone) {
  const profile::IterationProfile data = with_data(8, true);
  EXPECT_TRUE(data.groups.empty());
  EXPECT_EQ(data.kept.size(), 1u);
  EXPECT_FALSE(with_data(8, false).groups.empty());
  EXPECT_FALSE(with_data(10 * profile::kSmallRequest, true).groups.empty());
}

// Gradients are clipped inside the optimizer's step, if at all.
TEST(DynamicGroups, SmallTemporariesInsideAStepAreNoData) {
  TraceBuilder t;
  for (int i = 0; i < 4; ++i) {
    t.phase(trace::PhaseKind::kOptimizer);
    t.free(t.alloc(10));
    t.phase(trace::PhaseKind::kOther, kNone, 1);
    if (i == 1) {
      for (int j = 0; j < 4; ++j) t.free(t.alloc(500 + j));
    }
    t.phase(trace::PhaseKind::kOptimizer, kNone, 1);
    t.free(t.alloc(10));
    t.step();
  }
  const profile::IterationProfile profile = profile::profile_iteration(t.finish());
  EXPECT_TRUE(profile.kept.empty());
  EXPECT_EQ(profile.groups.size(), 1u);
}

TEST(DynamicGroups, RequestsOfAWarmUpAloneHaveNoGroup) {
  TraceBuilder t;
  for (int i = 0; i < 2; ++i) {
    t.phase(trace::PhaseKind::kOptimizer);
    const auto a = t.alloc(10);
    if (i == 0) t.alloc(500'000);
    if (i == 0) t.alloc(4);
    t.free(a);
    t.step();
  }
  EXPECT_TRUE(profile::profile_iteration(t.finish()).kept.empty());
  EXPECT_EQ(profile::profile_iteration(with_masks({3, 5}, true)).kept.size(), 1u)
      << "where there is room";
}

TEST(DynamicGroups, AFirstMomentBeforeTheIterationIsTheLastOfTheOneBefore) {
  TraceBuilder t;
  for (int i = 0; i < 3; ++i) {
    if (i == 1) t.free(t.alloc(100));
    t.free(t.alloc(10));
    t.step();
  }
  const profile::IterationProfile profile = profile::profile_iteration(t.finish());
  ASSERT_EQ(profile.groups.size(), 1u);
  EXPECT_EQ(profile.groups[0].lower, profile.period - 1);
  EXPECT_EQ(profile.groups[0].upper, profile.period);
}

// Random programs with dynamic requests. Each static request has a size of its own, each dynamic
// one a size that never comes again. Iterations differ in their requests and in the ticks of their
// frees.
class RandomProgram {
 public:
  explicit RandomProgram(unsigned seed) : random_(seed) {
    const int phases = number(1, 3);
    Bytes size = 1;
    for (int p = 0; p < phases; ++p) {
      auto& phase = phases_.emplace_back(static_cast<std::size_t>(number(0, 6)));
      for (auto& r : phase) r = {size++, number(0, 12), number(0, 2) == 0};
    }
  }

  trace::Trace run() {
    const int iterations = number(2, 5);
    for (int i = 0; i < iterations; ++i) {
      for (std::size_t p = 0; p < phases_.size(); ++p) {
        builder_.phase(trace::PhaseKind::kForward, static_cast<std::int32_t>(p));
        maybe_dynamic();
        for (const Template& r : phases_[p]) {
          const auto id = builder_.alloc(r.size);
          ++slot_;
          const int late = number(0, 5) == 0 ? number(0, 3) : 0;
          pending_.push_back({slot_ + r.life + late, id});
          release_due();
          if (r.dynamic_after) maybe_dynamic();
          release_due();
        }
      }
      builder_.step();
    }
    return builder_.finish();
  }

 private:
  struct Template {
    Bytes size;
    int life;  // in static requests
    bool dynamic_after;
  };
  struct Pending {
    int due;
    std::int32_t request;
  };

  int number(int low, int high) {
    return low + static_cast<int>(random_() % static_cast<unsigned>(high - low + 1));
  }

  void maybe_dynamic() {
    for (int count = number(-1, 3); count > 0; --count) {
      const auto id = builder_.alloc(dynamic_size_++, number(0, 5) == 0 ? 1 : 0);
      pending_.push_back({slot_ + number(0, 3) * number(0, 3), id});
      if (number(0, 1) == 0) release_due();
    }
  }

  void release_due() {
    std::erase_if(pending_, [&](const Pending& p) {
      if (p.due > slot_ || number(0, 3) == 0) return false;
      builder_.free(p.request);
      return true;
    });
  }

  std::mt19937 random_;
  std::vector<std::vector<Template>> phases_;
  std::vector<Pending> pending_;
  Bytes dynamic_size_ = 1000;
  int slot_ = 0;
  TraceBuilder builder_;
};

struct Planned {
  Tick lower;
  Tick upper;
  std::optional<std::size_t> place;
};

bool meet_on_the_circle(const Planned& a, const Planned& b, Tick period) {
  const auto reaches = [&](const Planned& x, const Planned& y) {
    return ((y.lower - x.lower) % period + period) % period < x.upper - x.lower;
  };
  return reaches(a, b) || reaches(b, a);
}

TEST(DynamicGroupsProperty, BlocksThatMetInAnyComparedIterationMeetInTheProfile) {
  std::size_t served = 0;
  std::size_t dynamic = 0;
  for (unsigned seed = 0; seed < 1000; ++seed) {
    const trace::Trace trace = RandomProgram(seed).run();
    trace.check();
    const profile::IterationProfile profile = profile::profile_iteration(trace);
    std::map<Bytes, Planned> planned;  // by size, which tells what a request is
    for (const profile::ProfiledRequest& r : profile.requests) {
      if (profile.is_plannable(r)) planned[r.size] = {r.lower, r.upper, std::nullopt};
    }
    for (std::size_t p = 0; p < profile.groups.size(); ++p) {
      const profile::ProfiledGroup& place = profile.groups[p];
      ASSERT_TRUE(0 <= place.lower && place.lower < profile.period) << seed;
      ASSERT_TRUE(place.lower < place.upper) << seed;
      ASSERT_LE(place.upper - place.lower, profile.period) << seed;
      ASSERT_EQ(place.sightings.size(), static_cast<std::size_t>(profile.compared) + 1) << seed;
      bool any = false;
      for (const auto& sightings : place.sightings) {
        for (const profile::DynamicSighting& s : sightings) {
          ASSERT_TRUE(planned.emplace(s.size, Planned{place.lower, place.upper, p}).second);
          ++served;
          any = true;
        }
      }
      ASSERT_TRUE(any) << seed;
      if (place.after != kNone) {
        EXPECT_TRUE(profile.is_plannable(profile.requests[place.after])) << seed;
        EXPECT_EQ(profile.requests[place.after].phase_begin, place.phase) << seed;
      }
    }
    const Tick begin = trace.iterations[profile.iteration - profile.compared];
    const Tick end = trace.iterations[profile.iteration + 1];
    std::vector<std::pair<const trace::Request*, const Planned*>> seen;
    for (const trace::Request& r : trace.requests) {
      if (r.lower < begin || r.lower >= end) continue;
      if (r.size >= 1000) ++dynamic;
      if (const auto it = planned.find(r.size); it != planned.end()) {
        seen.emplace_back(&r, &it->second);
      }
    }
    for (const auto& [a, in_plan] : seen) {
      for (const auto& [b, other] : seen) {
        if (a->lower >= b->lower || std::min(a->upper, end) <= b->lower) continue;
        if (in_plan->place && in_plan->place == other->place) continue;
        ASSERT_TRUE(meet_on_the_circle(*in_plan, *other, profile.period))
            << "seed " << seed << ": " << a->size << " in [" << in_plan->lower << ", "
            << in_plan->upper << ") and " << b->size << " in [" << other->lower << ", "
            << other->upper << ")";
      }
    }
  }
  EXPECT_GT(served, dynamic / 2);
}

}  // namespace
}  // namespace stalloc
