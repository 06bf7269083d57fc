// The iteration profile: which requests are static, and that no planned lifetime is shorter than in
// any iteration.
#include "profile/lifetimes.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <map>
#include <numeric>
#include <random>
#include <set>
#include <string_view>

#include "base/error.h"
#include "trace_builder.h"

namespace stalloc {
namespace {

using ::testing::IsSubstring;
using testing::TraceBuilder;

const profile::ProfiledRequest& of_size(const profile::IterationProfile& profile, Bytes size) {
  for (const profile::ProfiledRequest& r : profile.requests) {
    if (r.size == size) return r;
  }
  throw std::out_of_range("no request of that size");
}

// One iteration of a small training loop. Sizes identify requests: activations 10 and 11, a
// temporary 12 in backward, the gradient 13 that lives on into the next iteration. Returns the
// gradient.
std::int32_t train_step(TraceBuilder& t, std::int32_t old_gradient) {
  t.phase(trace::PhaseKind::kForward, 0);
  const auto a = t.alloc(10);
  const auto b = t.alloc(11);
  if (old_gradient != kNone) t.free(old_gradient);
  t.phase(trace::PhaseKind::kBackward, 0);
  const auto temporary = t.alloc(12);
  t.free(temporary);
  t.free(b);
  const auto gradient = t.alloc(13);
  t.free(a);
  t.phase(trace::PhaseKind::kOptimizer);
  const auto update = t.alloc(14);
  t.free(update);
  return gradient;
}

TEST(Lifetimes, NeedACompleteIteration) {
  TraceBuilder t;
  t.alloc(8);
  try {
    profile::profile_iteration(t.finish());
    FAIL() << "a trace without a complete iteration was profiled";
  } catch (const TraceError& error) {
    EXPECT_PRED_FORMAT2(IsSubstring, "no complete iteration", error.what());
  }
}

TEST(Lifetimes, ASteadyLoopHasThoseOfItsLastIteration) {
  TraceBuilder t;
  std::int32_t gradient = kNone;
  t.alloc(1000);  // the weights
  for (int i = 0; i < 4; ++i) {
    gradient = train_step(t, gradient);
    if (i == 0) t.alloc(77);  // the optimizer's state, made by the first step
    t.step();
  }
  const profile::IterationProfile profile = profile::profile_iteration(t.finish());
  EXPECT_EQ(profile.iteration, 3);
  EXPECT_EQ(profile.compared, 2);
  EXPECT_EQ(profile.period, 10);
  EXPECT_EQ(profile.load, 1000 + 77 + 10 + 11 + 13);
  ASSERT_EQ(profile.requests.size(), 5u);
  for (const profile::ProfiledRequest& r : profile.requests) {
    EXPECT_TRUE(profile.is_plannable(r)) << r.size;
  }
  EXPECT_EQ(of_size(profile, 12).lifetime, profile::LifetimeClass::kTransient);
  EXPECT_EQ(of_size(profile, 12).lower, 3);
  EXPECT_EQ(of_size(profile, 12).upper, 4);
  const profile::ProfiledRequest& activation = of_size(profile, 10);
  EXPECT_EQ(activation.lifetime, profile::LifetimeClass::kScoped);
  EXPECT_EQ(activation.lower, 0);
  EXPECT_EQ(activation.upper, 7);
  EXPECT_EQ(profile[activation.phase_begin].key.kind, trace::PhaseKind::kForward);
  EXPECT_EQ(profile[activation.phase_end].key.kind, trace::PhaseKind::kBackward);
  const profile::ProfiledRequest& kept = of_size(profile, 13);
  EXPECT_EQ(kept.lifetime, profile::LifetimeClass::kWrapAround);
  EXPECT_EQ(kept.lower, 6);
  EXPECT_EQ(kept.upper, 10 + 2);
  EXPECT_EQ(profile[kept.phase_begin].key.kind, trace::PhaseKind::kBackward);
  EXPECT_EQ(profile[kept.phase_end].key.kind, trace::PhaseKind::kForward);
}

TEST(Lifetimes, TheLoadIsThatOfTheComparedIterationWithTheMost) {
  TraceBuilder t;
  std::int32_t gradient = kNone;
  for (const Bytes extra : {900, 100, 300, 200}) {  // the first iteration is not compared
    gradient = train_step(t, gradient);
    t.free(t.alloc(extra));
    t.step();
  }
  const profile::IterationProfile profile = profile::profile_iteration(t.finish());
  ASSERT_EQ(profile.iteration, 3);
  ASSERT_EQ(profile.compared, 2);
  EXPECT_EQ(profile.load, 13 + 300);
}

TEST(Lifetimes, OneIterationAloneIsTakenAtItsWord) {
  TraceBuilder t;
  train_step(t, kNone);
  t.step();
  const profile::IterationProfile profile = profile::profile_iteration(t.finish());
  EXPECT_EQ(profile.compared, 0);
  EXPECT_FALSE(of_size(profile, 12).dynamic);
  EXPECT_EQ(of_size(profile, 12).lifetime, profile::LifetimeClass::kTransient);
  EXPECT_EQ(of_size(profile, 13).lifetime, profile::LifetimeClass::kPersistent);
  EXPECT_FALSE(profile.is_plannable(of_size(profile, 13)));
}

TEST(Lifetimes, WithTwoIterationsTheFirstIsCompared) {
  TraceBuilder t;
  const auto gradient = train_step(t, kNone);
  t.alloc(77);
  t.step();
  train_step(t, gradient);
  t.step();
  const profile::IterationProfile profile = profile::profile_iteration(t.finish());
  EXPECT_EQ(profile.compared, 1);
  EXPECT_EQ(of_size(profile, 13).lifetime, profile::LifetimeClass::kWrapAround);
  EXPECT_EQ(of_size(profile, 13).upper, profile.period + 2);
  EXPECT_FALSE(of_size(profile, 14).dynamic);
}

TEST(Lifetimes, AWarmUpThatDiffersIsLeftOut) {
  TraceBuilder t;
  for (int i = 0; i < 3; ++i) {
    t.phase(trace::PhaseKind::kForward, 0);
    const auto a = t.alloc(i == 0 ? 999 : 10);
    t.free(a);
    t.step();
  }
  const profile::IterationProfile profile = profile::profile_iteration(t.finish());
  EXPECT_EQ(profile.compared, 1);
  EXPECT_FALSE(of_size(profile, 10).dynamic);
}

// One iteration for each letter, of the program of that name. Most requests of a program are its
// own. A lower-case letter is a program whose sizes never come again.
profile::IterationProfile profile_of(std::string_view programs) {
  TraceBuilder t;
  Bytes never_again = 1'000'000;
  for (const char program : programs) {
    t.phase(trace::PhaseKind::kForward, 0);
    for (Bytes i = 1; i <= 10; ++i) {
      const bool shared = i <= 3;
      const Bytes own = program >= 'a' ? ++never_again : 100 * program + i;
      t.free(t.alloc(shared ? i : own));
    }
    t.step();
  }
  return profile::profile_iteration(t.finish());
}

TEST(Lifetimes, AnotherProgramThatRanFirstIsLeftOut) {
  const auto compared = [](std::string_view programs) { return profile_of(programs).compared; };
  EXPECT_EQ(compared("AABBBB"), 2) << "the first of those that are alike is a warm-up";
  EXPECT_EQ(compared("AABBB"), 1);
  EXPECT_EQ(compared("AABB"), 1);
  EXPECT_EQ(compared("AAABB"), 1);
  EXPECT_EQ(compared("ABCDDDD"), 2);
  EXPECT_EQ(compared("AACCBBB"), 1);
  EXPECT_EQ(compared("xxBBB"), 1);
  EXPECT_EQ(profile_of("AABBB").requests.size(), 10u);
  for (const profile::ProfiledRequest& r : profile_of("AABBB").requests) EXPECT_FALSE(r.dynamic);
}

TEST(Lifetimes, VaryingRequestsAreNoOtherProgram) {
  const auto compared = [](std::string_view programs) { return profile_of(programs).compared; };
  EXPECT_EQ(compared("AAAA"), 2);
  EXPECT_EQ(compared("ABABA"), 3);
  EXPECT_EQ(compared("ABBABB"), 4) << "the first is like the last";
  EXPECT_EQ(compared("xxxxx"), 3);
  EXPECT_EQ(compared("xyBB"), 2) << "by chance, perhaps";
  EXPECT_EQ(compared("AAAAB"), 3) << "a last one that nothing is like";
  EXPECT_EQ(compared("ABB"), 1);
}

TEST(Lifetimes, SizesAndPresenceThatDifferAreDynamic) {
  TraceBuilder t;
  for (int i = 0; i < 3; ++i) {
    t.phase(trace::PhaseKind::kForward, 0);
    const auto a = t.alloc(10);
    const auto b = t.alloc(100 + i);
    const auto c = t.alloc(12);
    if (i == 2) t.free(t.alloc(55));
    const auto tagged = t.alloc(13);
    t.tag_dynamic(tagged);
    for (const auto r : {a, b, c, tagged}) t.free(r);
    t.step();
  }
  const profile::IterationProfile profile = profile::profile_iteration(t.finish());
  EXPECT_FALSE(of_size(profile, 10).dynamic);
  EXPECT_TRUE(of_size(profile, 102).dynamic);
  EXPECT_FALSE(of_size(profile, 12).dynamic);
  EXPECT_TRUE(of_size(profile, 55).dynamic);
  EXPECT_TRUE(of_size(profile, 13).dynamic);
  EXPECT_FALSE(profile.is_plannable(of_size(profile, 13)));
}

TEST(Lifetimes, TheSameSizeOnAnotherStreamIsAnotherRequest) {
  TraceBuilder t;
  for (int i = 0; i < 2; ++i) {
    t.free(t.alloc(10, i));
    t.step();
  }
  EXPECT_TRUE(of_size(profile::profile_iteration(t.finish()), 10).dynamic);
}

TEST(Lifetimes, ALateFreeInAnyIterationCounts) {
  for (const int late : {1, 2}) {  // 2 is the reference
    TraceBuilder t;
    for (int i = 0; i < 3; ++i) {
      t.phase(trace::PhaseKind::kForward, 0);
      const auto a = t.alloc(10);
      const auto b = t.alloc(11);
      if (i != late) t.free(a);
      const auto c = t.alloc(12);
      if (i == late) t.free(a);
      const auto d = t.alloc(13);
      for (const auto r : {b, c, d}) t.free(r);
      t.step();
    }
    const profile::IterationProfile profile = profile::profile_iteration(t.finish());
    EXPECT_TRUE(profile.is_plannable(of_size(profile, 10)));
    EXPECT_GT(of_size(profile, 10).upper, of_size(profile, 12).lower) << late;
    EXPECT_LE(of_size(profile, 10).upper, of_size(profile, 13).lower) << late;
  }
}

TEST(Lifetimes, AFreeWithNoAllocationAfterItStaysInItsPhase) {
  TraceBuilder t;
  for (int i = 0; i < 3; ++i) {
    t.phase(trace::PhaseKind::kForward, 0);
    const auto a = t.alloc(10);
    const auto b = t.alloc(11);
    if (i == 2) t.free(a);
    const auto c = t.alloc(12);
    if (i != 2) t.free(a);
    t.free(b);
    t.phase(trace::PhaseKind::kBackward, 0);
    t.free(c);
    t.step();
  }
  const profile::IterationProfile profile = profile::profile_iteration(t.finish());
  EXPECT_EQ(of_size(profile, 10).lifetime, profile::LifetimeClass::kTransient);
  EXPECT_EQ(of_size(profile, 10).upper, profile[of_size(profile, 10).phase_begin].end);
}

TEST(Lifetimes, FreedInTheNextIterationOnceAndTheOneAfterAnotherTimeIsPersistent) {
  TraceBuilder t;
  std::int32_t from_one = kNone;
  std::int32_t previous = kNone;
  for (int i = 0; i < 5; ++i) {
    t.phase(trace::PhaseKind::kForward, 0);
    if (previous != kNone) t.free(previous);
    previous = kNone;
    if (i == 3) t.free(from_one);
    t.free(t.alloc(10));
    const auto kept = t.alloc(11);
    (i == 1 ? from_one : previous) = kept;
    t.step();
  }
  const profile::IterationProfile profile = profile::profile_iteration(t.finish());
  EXPECT_EQ(of_size(profile, 11).lifetime, profile::LifetimeClass::kPersistent);
  EXPECT_FALSE(profile.is_plannable(of_size(profile, 11)));
}

TEST(Lifetimes, FreedOnlyAfterItsSuccessorIsBornIsPersistent) {
  TraceBuilder t;
  std::int32_t previous = kNone;
  for (int i = 0; i < 4; ++i) {
    t.phase(trace::PhaseKind::kForward, 0);
    const auto loss = t.alloc(4);
    if (previous != kNone) t.free(previous);
    previous = loss;
    t.free(t.alloc(10));
    t.step();
  }
  const profile::IterationProfile profile = profile::profile_iteration(t.finish());
  EXPECT_EQ(of_size(profile, 4).lifetime, profile::LifetimeClass::kPersistent);
}

TEST(Lifetimes, AliveAtTheReferencesEndOnlyIsPersistent) {
  TraceBuilder t;
  for (int i = 0; i < 3; ++i) {
    const auto a = t.alloc(10);
    t.free(t.alloc(11));
    if (i < 2) t.free(a);
    t.step();
  }
  const profile::IterationProfile profile = profile::profile_iteration(t.finish());
  EXPECT_EQ(of_size(profile, 10).lifetime, profile::LifetimeClass::kPersistent);
}

TEST(Lifetimes, AnEvaluationIsNeverPlannedAndDisturbsNothing) {
  for (const int evaluated : {1, 2}) {  // 2 is the reference
    TraceBuilder t;
    for (int i = 0; i < 3; ++i) {
      t.phase(trace::PhaseKind::kForward, 0);
      const auto a = t.alloc(10);
      const auto b = t.alloc(11);
      if (i == evaluated) {
        t.phase(trace::PhaseKind::kUnplanned);
        const auto output = t.alloc(11);
        t.free(t.alloc(500));
        t.free(a);
        t.free(output);
        t.phase(trace::PhaseKind::kForward, 0);  // resumed: the same key
      } else {
        t.free(a);
      }
      t.free(b);
      t.free(t.alloc(12));
      t.step();
    }
    const profile::IterationProfile profile = profile::profile_iteration(t.finish());
    EXPECT_EQ(profile.requests.size(), evaluated == 2 ? 5u : 3u);
    for (const profile::ProfiledRequest& r : profile.requests) {
      const bool in_evaluation = profile[r.phase_begin].key.kind == trace::PhaseKind::kUnplanned;
      EXPECT_FALSE(r.dynamic) << r.size;
      EXPECT_EQ(profile.is_plannable(r), !in_evaluation) << r.size;
    }
    EXPECT_LE(of_size(profile, 10).upper, of_size(profile, 12).lower);
    EXPECT_EQ(profile[of_size(profile, 10).phase_begin].key.kind, trace::PhaseKind::kForward);
    EXPECT_EQ(of_size(profile, 12).phase_begin, of_size(profile, 10).phase_begin);
  }
}

TEST(Lifetimes, PhasesAreComparedByKeyNotByOrder) {
  TraceBuilder t;
  for (int i = 0; i < 3; ++i) {
    if (i == 1) {  // an extra forward that the others have not
      t.phase(trace::PhaseKind::kForward, 7);
      t.free(t.alloc(10));
    }
    t.phase(trace::PhaseKind::kForward, 0);
    t.free(t.alloc(10));
    t.phase(trace::PhaseKind::kForward, 0, 1);
    t.free(t.alloc(11));
    t.step();
  }
  const profile::IterationProfile profile = profile::profile_iteration(t.finish());
  EXPECT_FALSE(of_size(profile, 10).dynamic);
  EXPECT_FALSE(of_size(profile, 11).dynamic);
}

// One iteration of so many microbatches, and what follows its step. Sizes identify requests: 10 and
// 11 of the first microbatch, 20 and 21 of the second, 30 of the optimizer, 40 after it.
void accumulate(TraceBuilder& t, int microbatches) {
  std::int32_t occurrence = 0;
  t.phase(trace::PhaseKind::kOther, kNone, occurrence++);
  for (int m = 0; m < microbatches; ++m) {
    t.phase(trace::PhaseKind::kForward, m);
    const auto activation = t.alloc(10 * (m + 1));
    t.phase(trace::PhaseKind::kBackward, m);
    t.free(t.alloc(10 * (m + 1) + 1));
    t.free(activation);
    t.phase(trace::PhaseKind::kOther, kNone, occurrence++);
  }
  t.phase(trace::PhaseKind::kOptimizer);
  t.free(t.alloc(30));
  t.phase(trace::PhaseKind::kOther, kNone, occurrence);
  t.free(t.alloc(40));
  t.step();
}

TEST(Lifetimes, AnIterationThatLacksAMicrobatchLeavesTheOthersStatic) {
  for (const std::size_t at : {1, 2, 3, 4}) {  // 4 is the last one
    std::array<int, 5> microbatches{2, 2, 2, 2, 2};
    microbatches.at(at) = 1;
    TraceBuilder t;
    for (const int m : microbatches) accumulate(t, m);
    const profile::IterationProfile profile = profile::profile_iteration(t.finish());
    EXPECT_EQ(profile.iteration, at == 4 ? 3 : 4);
    ASSERT_EQ(profile.requests.size(), 6u);
    for (const profile::ProfiledRequest& r : profile.requests) {
      EXPECT_TRUE(profile.is_plannable(r)) << r.size << " of " << at;
    }
  }
}

TEST(Lifetimes, APhaseThatOnlyOneIterationHasIsNotPlanned) {
  TraceBuilder t;
  for (const int m : {1, 1, 1, 2}) accumulate(t, m);
  const profile::IterationProfile profile = profile::profile_iteration(t.finish());
  EXPECT_TRUE(of_size(profile, 20).dynamic);
  EXPECT_TRUE(profile.is_plannable(of_size(profile, 10)));
  EXPECT_TRUE(profile.is_plannable(of_size(profile, 40)));
}

TEST(Lifetimes, ALongerProgramThatRanFirstIsNoReference) {
  TraceBuilder t;
  for (int i = 0; i < 6; ++i) {
    const bool first = i < 3;
    for (int m = 0; m < (first ? 2 : 1); ++m) {
      t.phase(trace::PhaseKind::kForward, m);
      for (int k = 0; k < (first ? 1 : 8); ++k) t.free(t.alloc(first ? 100 + m : 10 + k));
    }
    t.step();
  }
  EXPECT_EQ(profile::profile_iteration(t.finish()).iteration, 5);
}

TEST(Lifetimes, PhasesInAnotherOrderStayStaticAndLiveAsLongAsTheyMet) {
  TraceBuilder t;
  for (int i = 0; i < 3; ++i) {
    std::int32_t first = kNone;
    if (i != 1) {
      t.phase(trace::PhaseKind::kForward, 0);
      first = t.alloc(10);
      t.free(first);
    }
    t.phase(trace::PhaseKind::kForward, 1);
    const auto second = t.alloc(11);
    if (i == 1) {
      t.phase(trace::PhaseKind::kForward, 0);
      first = t.alloc(10);
    }
    t.free(second);
    if (i == 1) t.free(first);
    t.step();
  }
  const profile::IterationProfile profile = profile::profile_iteration(t.finish());
  EXPECT_TRUE(profile.is_plannable(of_size(profile, 10)));
  EXPECT_TRUE(profile.is_plannable(of_size(profile, 11)));
  EXPECT_GT(of_size(profile, 10).upper, of_size(profile, 11).lower);
}

TEST(Lifetimes, OtherThreadsAreNotPlannedAndProlongNothing) {
  TraceBuilder t;
  for (int i = 0; i < 3; ++i) {
    t.phase(trace::PhaseKind::kBackward, 0);
    if (i == 1) t.free(t.alloc(20, 0, 1));
    t.free(t.alloc(10));
    t.free(t.alloc(11));
    if (i != 1) t.free(t.alloc(20, 0, 1));
    t.step();
  }
  const profile::IterationProfile profile = profile::profile_iteration(t.finish());
  EXPECT_FALSE(profile.is_plannable(of_size(profile, 20)));
  EXPECT_FALSE(of_size(profile, 20).dynamic);
  EXPECT_TRUE(profile.is_plannable(of_size(profile, 10)));
  EXPECT_LE(of_size(profile, 10).upper, of_size(profile, 11).lower);
}

TEST(Lifetimes, AnEmptyIterationHasNothingToPlan) {
  TraceBuilder t;
  t.step();
  const profile::IterationProfile profile = profile::profile_iteration(t.finish());
  EXPECT_EQ(profile.period, 0);
  EXPECT_TRUE(profile.requests.empty());
  EXPECT_EQ(profile.load, 0);
}

// Random training programs. Each template request has a size of its own, so the test knows all
// counterparts without the aligner. Iterations differ by late frees, extra and missing requests,
// evaluations, the order of their phases, and the interleaving of two threads.
class RandomProgram {
 public:
  explicit RandomProgram(unsigned seed) : random_(seed), iterations_(2 + random_() % 4) {
    const int phases = 1 + static_cast<int>(random_() % 4);
    Bytes size = 1;
    for (int p = 0; p < phases; ++p) {
      for (auto& thread : phases_.emplace_back()) {
        const int count = static_cast<int>(random_() % 9);
        for (int i = 0; i < count; ++i) thread.push_back({size++, 0});
      }
    }
    slots_ = std::max<int>(1, static_cast<int>(size) - 1);
    for (auto& phase : phases_) {
      for (auto& thread : phase) {
        for (auto& request : thread) {
          request.life =
              chance(10) ? 100000 : static_cast<int>(random_() % (slots_ + slots_ / 3 + 1));
        }
      }
    }
  }

  trace::Trace run() {
    for (int i = 0; i < iterations_; ++i) {
      std::vector<std::int32_t> order(phases_.size());
      std::iota(order.begin(), order.end(), 0);
      if (chance(20)) std::shuffle(order.begin(), order.end(), random_);
      for (const std::int32_t phase : order) {
        builder_.phase(trace::PhaseKind::kForward, phase);
        run_phase(phase);
      }
      if (chance(20)) evaluate();
      builder_.step();
    }
    for (int i = 0; i < 5; ++i) release_due();
    return builder_.finish();
  }

 private:
  struct TemplateRequest {
    Bytes size;
    int life;  // in slots: allocations of the template
  };
  struct Pending {
    int due;
    std::int32_t request;
  };

  bool chance(int percent) { return static_cast<int>(random_() % 100) < percent; }

  void run_phase(std::int32_t phase) {
    auto& threads = phases_[phase];
    std::array<std::size_t, 2> next{};
    while (next[0] < threads[0].size() || next[1] < threads[1].size()) {
      std::size_t thread = chance(70) ? 0 : 1;
      if (next[thread] == threads[thread].size()) thread = 1 - thread;
      const TemplateRequest& request = threads[thread][next[thread]++];
      release_due();
      ++slot_;
      if (chance(1)) continue;
      const auto id = builder_.alloc(request.size, 0, static_cast<ThreadOrdinal>(thread));
      const int late = chance(5) ? static_cast<int>(random_() % slots_) : 0;
      pending_.push_back({slot_ + request.life + late, id});
      if (chance(3)) builder_.free(builder_.alloc(100000 + slot_));
      if (chance(2)) {
        evaluate();
        builder_.phase(trace::PhaseKind::kForward, phase);
      }
    }
  }

  void evaluate() {
    builder_.phase(trace::PhaseKind::kUnplanned);
    const auto id = builder_.alloc(1 + random_() % slots_);
    release_due();
    if (chance(50)) builder_.free(id);
  }

  void release_due() {
    std::erase_if(pending_, [&](const Pending& p) {
      if (p.due > slot_) return false;
      builder_.free(p.request);
      return true;
    });
  }

  std::mt19937 random_;
  int iterations_;
  int slots_ = 1;
  int slot_ = 0;
  std::vector<std::array<std::vector<TemplateRequest>, 2>> phases_;
  std::vector<Pending> pending_;
  TraceBuilder builder_;
};

bool meet(const trace::Request& a, const trace::Request& b) {
  return a.lower < b.upper && b.lower < a.upper;
}

bool meet_on_the_circle(const profile::ProfiledRequest& a, const profile::ProfiledRequest& b,
                        Tick period) {
  const auto reaches = [&](const profile::ProfiledRequest& x, const profile::ProfiledRequest& y) {
    return ((y.lower - x.lower) % period + period) % period < x.upper - x.lower;
  };
  return reaches(a, b) || reaches(b, a);
}

TEST(LifetimesProperty, BlocksThatMetInAnyComparedIterationMeetInTheProfile) {
  std::size_t plannable_in_all = 0;
  std::size_t requests_in_all = 0;
  for (unsigned seed = 0; seed < 600; ++seed) {
    const trace::Trace trace = RandomProgram(seed).run();
    trace.check();
    const profile::IterationProfile profile = profile::profile_iteration(trace);
    std::vector<const profile::ProfiledRequest*> plannable;
    Tick last = kNone;
    for (const profile::ProfiledRequest& r : profile.requests) {
      ASSERT_GT(r.lower, last);
      last = r.lower;
      ASSERT_LT(r.lower, r.upper);
      ASSERT_LT(r.lower, profile.period);
      ASSERT_LE(r.upper, r.lower + profile.period);
      ASSERT_TRUE(r.phase_begin >= 0 && r.phase_end >= 0);
      // A request that overlaps the one that replaces it takes a slot, not a fixed address.
      if (profile.is_plannable(r) && r.over == 0) plannable.push_back(&r);
    }
    plannable_in_all += plannable.size();
    requests_in_all += profile.requests.size();

    // Planned counterparts by size, in every iteration from the first compared one on, and the
    // phases of these iterations. A phase may have lost its only request.
    std::vector<std::map<Bytes, const trace::Request*>> seen;
    std::vector<std::set<trace::PhaseKey>> phases;
    for (int i = profile.iteration - profile.compared; i <= profile.iteration; ++i) {
      auto& by_size = seen.emplace_back();
      auto& keys = phases.emplace_back();
      for (const trace::Request& r : trace.requests) {
        if (r.lower < trace.iterations[i] || r.lower >= trace.iterations[i + 1]) continue;
        const trace::PhaseKey& key = trace[r.phase_begin].key;
        if (key.kind == trace::PhaseKind::kUnplanned) continue;
        by_size[r.size] = &r;
        if (r.thread == 0) keys.insert(key);
      }
    }
    const auto find = [&](std::size_t i, Bytes size) {
      const auto at = i < seen.size() ? seen[i].find(size) : seen.back().end();
      return i < seen.size() && at != seen[i].end() ? at->second : nullptr;
    };
    for (const profile::ProfiledRequest* a : plannable) {
      for (std::size_t i = 0; i < seen.size(); ++i) {
        const trace::Request* first = find(i, a->size);
        if (!first) {
          ASSERT_FALSE(phases[i].contains(profile[a->phase_begin].key)) << "seed " << seed;
          continue;
        }
        const trace::Request* again = find(i + 1, a->size);
        ASSERT_FALSE(again && meet(*first, *again)) << "seed " << seed;
        for (const profile::ProfiledRequest* b : plannable) {
          if (a == b) continue;
          const trace::Request* other = find(i, b->size);
          const trace::Request* next = find(i + 1, b->size);
          const bool met = (other && meet(*first, *other)) || (next && meet(*first, *next));
          if (met) {
            ASSERT_TRUE(meet_on_the_circle(*a, *b, profile.period))
                << "seed " << seed << ": sizes " << a->size << " and " << b->size
                << " met in iteration " << i;
          }
        }
      }
    }
  }
  EXPECT_GT(plannable_in_all, requests_in_all / 5);
}

}  // namespace
}  // namespace stalloc
