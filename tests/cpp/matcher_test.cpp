#include "runtime/matcher.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/align.h"
#include "plan/build.h"
#include "plans.h"
#include "trace_builder.h"

namespace stalloc {
namespace {

// A plan whose decisions are letters: 'A' asks for 1 byte, 'B' for 2, ... one string a phase.
plan::Plan letters(const std::vector<std::string>& phases) {
  std::vector<plan::Decision> decisions;
  Tick tick = 0;
  for (std::size_t p = 0; p < phases.size(); ++p) {
    for (const char c : phases[p]) {
      plan::Decision d;
      d.size = c - 'A' + 1;
      d.offset = kDefaultAlignment * tick;
      d.lower = tick;
      d.upper = ++tick;
      d.phase = static_cast<PhaseIndex>(p);
      decisions.push_back(d);
    }
  }
  return testing::plan_of(std::move(decisions), tick, std::ssize(phases));
}

// The decision that each request of `run` matched, as indices into the plan; '.' for none,
// "0123..." for others.
std::vector<int> run(runtime::Matcher& m, const std::string& requests,
                     std::int32_t microbatch = 0) {
  m.enter_phase(trace::PhaseKind::kForward, microbatch, 0);
  std::vector<int> result;
  for (const char c : requests) result.push_back(m.match(c - 'A' + 1, 0).decision.number());
  return result;
}

// A matcher that has seen one iteration run as planned, and so trusts all phases.
runtime::Matcher trusting(const std::vector<std::string>& phases) {
  runtime::Matcher m(letters(phases));
  for (std::size_t p = 0; p < phases.size(); ++p) run(m, phases[p], static_cast<int>(p));
  m.end_iteration();
  return m;
}

std::vector<int> upto(int n) {
  std::vector<int> result;
  for (int i = 0; i < n; ++i) result.push_back(i);
  return result;
}

// The same with persistent requests, which are lower-case letters.
plan::Plan letters_with_persistent(const std::vector<std::string>& phases) {
  std::vector<std::string> planned;
  std::vector<plan::PersistentRequest> persistent;
  std::int32_t decisions = 0;
  for (const std::string& phase : phases) {
    const auto p = static_cast<PhaseIndex>(planned.size());
    const std::int32_t begin = decisions;
    planned.emplace_back();
    for (const char c : phase) {
      if (c < 'a') {
        planned.back() += c;
        ++decisions;
      } else {
        persistent.push_back({p, decisions == begin ? kNone : decisions - 1, c - 'a' + 1, 0});
      }
    }
  }
  plan::Plan plan = letters(planned);
  plan.persistent = persistent;
  plan.check();
  return plan;
}

TEST(Matcher, APersistentRequestIsNotTakenForADecisionOfItsSize) {
  // In each phase, a loss that is kept (a) comes before temporaries of its size.
  runtime::Matcher m(letters_with_persistent({"BaAAC", "aAa", "b"}));
  for (int iteration = 0; iteration < 3; ++iteration) {
    EXPECT_EQ(run(m, "BAAAC"), (std::vector<int>{0, kNone, 1, 2, 3}));
    EXPECT_EQ(run(m, "AAA", 1), (std::vector<int>{kNone, 4, kNone}));
    EXPECT_EQ(run(m, "B", 2), (std::vector<int>{kNone}));
    m.end_iteration();
  }
  m.enter_phase(trace::PhaseKind::kForward, 0, 0);
  EXPECT_FALSE(m.match(2, 0).persistent);
  EXPECT_TRUE(m.match(1, 0).persistent);
  EXPECT_FALSE(m.match(1, 0).persistent);
  EXPECT_FALSE(m.match(9, 0).persistent) << "what the plan does not know is nothing";
}

TEST(Matcher, FindsItsWayRoundAMissingPersistentRequest) {
  runtime::Matcher m(letters_with_persistent({"BcDEF"}));
  run(m, "BCDEF");
  m.end_iteration();
  EXPECT_EQ(run(m, "BDEF"), upto(4));
  m.end_iteration();
  EXPECT_EQ(run(m, "BCDEF"), (std::vector<int>{0, kNone, 1, 2, 3}));
}

TEST(Matcher, DynamicRequestsComeBeforeAndAfterAPersistentOne) {
  plan::Plan plan = letters_with_persistent({"AbC"});
  plan.groups.push_back(
      {.phase = 0, .after = 0, .upper = 1, .phase_end = 0, .contexts = {}, .reusable = {}});
  runtime::Matcher m(plan);
  for (int iteration = 0; iteration < 3; ++iteration) {
    m.enter_phase(trace::PhaseKind::kForward, 0, 0);
    EXPECT_EQ(m.match(1, 0).decision, 0);
    EXPECT_EQ(m.match(50, 0).group, 0);
    EXPECT_TRUE(m.match(2, 0).persistent);
    EXPECT_EQ(m.match(60, 0).group, 0);
    EXPECT_EQ(m.match(3, 0).decision, 1);
    m.end_iteration();
  }
}

TEST(Matcher, FollowsThePlanInEachIteration) {
  runtime::Matcher m(letters({"ABAC", "BB"}));
  for (int iteration = 0; iteration < 3; ++iteration) {
    EXPECT_EQ(run(m, "ABAC"), upto(4));
    EXPECT_EQ(run(m, "BB", 1), (std::vector<int>{4, 5}));
    m.end_iteration();
  }
}

TEST(Matcher, MatchesTwoRequestsThatChangedPlaces) {
  runtime::Matcher m(trusting({"ABCDEF"}));
  EXPECT_EQ(run(m, "ABDCEF"), (std::vector<int>{0, 1, 3, 2, 4, 5}));
}

TEST(Matcher, MatchesAfterAMissingRequest) {
  runtime::Matcher m(trusting({"ABCDEF"}));
  EXPECT_EQ(run(m, "ABDEF"), (std::vector<int>{0, 1, 3, 4, 5}));
}

TEST(Matcher, LeavesANewRequestUnmatched) {
  runtime::Matcher m(trusting({"ABCDEF"}));
  EXPECT_EQ(run(m, "ABXCDEF"), (std::vector<int>{0, 1, kNone, 2, 3, 4, 5}));
}

TEST(Matcher, ALayerSkippedCostsOneRequest) {
  const std::string layer = "CDEFGHIJKLMNOPQRST";  // longer than the window
  runtime::Matcher m(trusting({"AB" + layer + "XYZ"}));
  EXPECT_EQ(run(m, "ABXYZ"), (std::vector<int>{0, 1, kNone, 21, 22}));
}

TEST(Matcher, AForeignRequestOfACommonSizeDoesNotThrowItOff) {
  const std::string layer = "ABCDEFGHIJKLMNOP";
  runtime::Matcher m(trusting({layer + layer + layer}));
  // A stray 'P' at the start has the size of one far ahead. It stays unmatched; all else matches.
  std::vector<int> expected = upto(48);
  expected.insert(expected.begin(), kNone);
  EXPECT_EQ(run(m, "P" + layer + layer + layer), expected);
}

TEST(Matcher, NoDecisionIsTakenTwiceInAnIteration) {
  runtime::Matcher m(trusting({"AAA"}));
  EXPECT_EQ(run(m, "AAAA"), (std::vector<int>{0, 1, 2, kNone}));
  EXPECT_EQ(run(m, "AA"), upto(2)) << "the phase is repeated";
  m.end_iteration();
  EXPECT_EQ(run(m, "AAA"), upto(3));
}

TEST(Matcher, BackInStepAtTheNextPhase) {
  runtime::Matcher m(letters({"ABCD", "ABCD"}));
  run(m, "XXYYZZ");
  EXPECT_EQ(run(m, "ABCD", 1), (std::vector<int>{4, 5, 6, 7}));
}

TEST(Matcher, AnUntrustedPhaseIsServedUpToItsFirstDeparture) {
  runtime::Matcher m(letters({"ABCD", "ABCD"}));
  EXPECT_EQ(run(m, "ABXCD"), (std::vector<int>{0, 1, kNone, kNone, kNone}));
  EXPECT_EQ(run(m, "ABCD", 1), (std::vector<int>{4, 5, 6, 7}));
  m.end_iteration();
  EXPECT_EQ(run(m, "ABCD"), upto(4)) << "this iteration runs as profiled";
  m.end_iteration();
  EXPECT_EQ(run(m, "ABXCD"), (std::vector<int>{0, 1, kNone, 2, 3})) << "now it is trusted";
}

TEST(Matcher, ARunThatWasJustProfiledIsTrustedFromItsFirstIterationOn) {
  const auto first = [](bool trusts) {
    runtime::Matcher m(letters({"ABCDEF"}));
    if (trusts) m.trust_all(/*makes_states=*/false);
    return run(m, "ABDEF");
  };
  EXPECT_EQ(first(false), (std::vector<int>{0, 1, -1, -1, -1})) << "D may be a state";
  EXPECT_EQ(first(true), (std::vector<int>{0, 1, 3, 4, 5}));
}

// Masks, for example, are as large as temporaries of later layers.
TEST(Matcher, TablesOfTheFirstForwardAreNoTemporaries) {
  const auto first = [](bool is_first, const std::string& requests) {
    runtime::Matcher m(letters({"ABCDEFGHI"}));
    m.trust_all(is_first);
    return run(m, requests);
  };
  EXPECT_EQ(first(true, "DDABCDEFGHI"), (std::vector<int>{-1, -1, 0, 1, 2, 3, 4, 5, 6, 7, 8}));
  EXPECT_NE(first(false, "DDABCDEFGHI")[0], kNone) << "a table is taken for the temporary";
  EXPECT_EQ(first(true, "ABDEFGHI").back(), 8) << "the forward is found again by several in a row";
}

TEST(Matcher, APhaseThatRepeatsItsDepartureIsTrusted) {
  runtime::Matcher m(letters({"ABCD"}));
  for (int iteration = 0; iteration < 2; ++iteration) {
    EXPECT_EQ(run(m, "AXBCD"), (std::vector<int>{0, kNone, kNone, kNone, kNone})) << iteration;
    m.end_iteration();
  }
  EXPECT_EQ(run(m, "AXBCD"), (std::vector<int>{0, kNone, 1, 2, 3}));
}

class OptimizerStep {
 public:
  explicit OptimizerStep(const std::string& planned) : matcher_(plan_of(planned)) {}

  std::vector<int> operator()(const std::string& requests) {
    matcher_.enter_phase(trace::PhaseKind::kOptimizer, kNone, 0);
    std::vector<int> result;
    for (const char c : requests)
      result.push_back(matcher_.match(c - 'A' + 1, 0).decision.number());
    matcher_.end_iteration();
    return result;
  }

  void makes_states() { matcher_.trust_all(/*makes_states=*/true); }

 private:
  static plan::Plan plan_of(const std::string& planned) {
    plan::Plan plan = letters({planned});
    plan.phases[0].key = {trace::PhaseKind::kOptimizer, kNone, 0, 0};
    return plan;
  }

  runtime::Matcher matcher_;
};

// The count of the steps is as large as a number that each step makes.
TEST(Matcher, TheFirstStatesOfARunAreNoTemporaries) {
  const std::vector<int> missed(4, kNone);
  const auto first = [&](bool makes_states) {
    OptimizerStep step("ABCDEFGH");
    if (makes_states) step.makes_states();
    std::vector<int> matched = step("AKAKABCDEFGH");
    matched.resize(4);
    return matched;
  };
  EXPECT_EQ(first(true), missed);
  EXPECT_NE(first(false), missed) << "an A is taken for the first temporary";

  OptimizerStep step("ABCDEFGH");
  step.makes_states();
  const std::vector<int> matched = step("AKAKABCDEFGH");
  EXPECT_EQ(std::vector<int>(matched.end() - 4, matched.end()), (std::vector<int>{4, 5, 6, 7}))
      << "the step is found again by several requests in a row";
  EXPECT_EQ(step("ABCDEFGH"), upto(8)) << "the next iteration makes none";
}

// The optimizer makes states, as large as temporaries, for parameters with their first gradient.
TEST(Matcher, AnOptimizersFirstStatesAreNoTemporaries) {
  OptimizerStep step("ABCDEFGHIJ");
  EXPECT_EQ(step("ABCDEFGHIJ"), upto(10));
  EXPECT_EQ(step("CCEABCDEFGHIJ"),
            (std::vector<int>{kNone, kNone, kNone, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9}));
  EXPECT_EQ(step("CABCDEFGHIJ"), (std::vector<int>{2, 0, 1, kNone, 3, 4, 5, 6, 7, 8, 9}))
      << "what departs again and again is searched as anywhere";
  EXPECT_EQ(step("ABCDEFGHIJ"), upto(10));
  EXPECT_EQ(step("ABEFGHIJ"), (std::vector<int>{0, 1, kNone, kNone, kNone, kNone, 8, 9}))
      << "four in a row that fit the place of the first";
}

// An expert without a token has no gradient.
TEST(Matcher, AParameterThatTheOptimizerPassesOverCostsNothingElse) {
  OptimizerStep step("ABCDEFGHIJKLMNOPQRST");
  EXPECT_EQ(step("ABCDEFGHIJKLMNOPQRST"), upto(20));
  std::vector<int> expected = upto(13);
  for (int i = 16; i < 20; ++i) expected.push_back(i);
  EXPECT_EQ(step("ABCDEFGHIJKLMQRST"), expected);
}

TEST(Matcher, PatienceWithAPhaseThatNeverRepeats) {
  runtime::Matcher m(letters({"ABCD"}));
  std::string requests = "AX";
  for (int iteration = 0; iteration < 4; ++iteration, requests += "X") {
    EXPECT_EQ(run(m, requests + "BCD").back(), kNone);
    m.end_iteration();
  }
  EXPECT_EQ(run(m, requests + "BCD").back(), 3);
}

TEST(Matcher, UnknownPhasesMatchNothing) {
  runtime::Matcher m(letters({"AB"}));
  EXPECT_EQ(m.phase(), kNone);
  EXPECT_EQ(m.match(1, 0).decision, kNone) << "no phase yet";
  m.enter_phase(trace::PhaseKind::kForward, 0, /*chunk=*/1);
  EXPECT_EQ(m.match(1, 0).decision, kNone) << "another chunk";
  m.enter_phase(trace::PhaseKind::kBackward, 0, 0);
  EXPECT_EQ(m.phase(), kNone);
  EXPECT_EQ(m.match(1, 0).decision, kNone);
  EXPECT_EQ(run(m, "AB"), upto(2));
}

using trace::PhaseKind;

// A plan with one decision in each of these phases.
plan::Plan phases_of(const std::vector<trace::PhaseKey>& keys) {
  plan::Plan plan = letters(std::vector<std::string>(keys.size(), "A"));
  for (std::size_t p = 0; p < keys.size(); ++p) plan.phases[p].key = keys[p];
  return plan;
}

PhaseIndex entered(runtime::Matcher& m, PhaseKind kind, std::int32_t microbatch = kNone) {
  m.enter_phase(kind, microbatch, 0);
  return m.phase();
}

// Two microbatches: f0 b0 o f1 b1 o step o.
plan::Plan two_microbatches() {
  return phases_of({{PhaseKind::kForward, 0, 0, 0},
                    {PhaseKind::kBackward, 0, 0, 0},
                    {PhaseKind::kOther, kNone, 0, 0},
                    {PhaseKind::kForward, 1, 0, 0},
                    {PhaseKind::kBackward, 1, 0, 0},
                    {PhaseKind::kOther, kNone, 0, 1},
                    {PhaseKind::kOptimizer, kNone, 0, 0},
                    {PhaseKind::kOther, kNone, 0, 2}});
}

TEST(Matcher, ExtraMicrobatchesRepeatTheLastPlannedOne) {
  runtime::Matcher m(two_microbatches());
  for (int iteration = 0; iteration < 2; ++iteration) {
    for (std::int32_t k = 0; k < 5; ++k) {
      const PhaseIndex first = k == 0 ? 0 : 3;
      EXPECT_EQ(entered(m, PhaseKind::kForward, k), first);
      EXPECT_EQ(m.match(1, 0).decision, first.number())
          << "each repetition takes the decisions again";
      EXPECT_EQ(m.match(1, 0).decision, kNone) << "and takes them once";
      EXPECT_EQ(entered(m, PhaseKind::kBackward, k), first + 1);
      EXPECT_EQ(entered(m, PhaseKind::kOther), first + 2);
    }
    EXPECT_EQ(entered(m, PhaseKind::kOptimizer), 6);
    EXPECT_EQ(entered(m, PhaseKind::kOther), 7);
    m.end_iteration();
  }
}

TEST(Matcher, AMissingMicrobatchIsSkipped) {
  runtime::Matcher m(two_microbatches());
  EXPECT_EQ(entered(m, PhaseKind::kForward, 0), 0);
  EXPECT_EQ(entered(m, PhaseKind::kBackward, 0), 1);
  EXPECT_EQ(entered(m, PhaseKind::kOther), 2);
  EXPECT_EQ(entered(m, PhaseKind::kOptimizer), 6);
  EXPECT_EQ(entered(m, PhaseKind::kOther), 7) << "found by the phase that it follows";
}

TEST(Matcher, ThePhaseAfterTheLastBackwardIsKnownByItsRequests) {
  plan::Plan plan = letters({"A", "A", "BC", "A", "A", "BCDE", "A"});
  const plan::Plan phases = two_microbatches();
  for (std::size_t p = 0; p < plan.phases.size(); ++p) plan.phases[p].key = phases.phases[p].key;
  runtime::Matcher m(plan);
  const auto decisions = [&](const std::string& requests) {
    entered(m, PhaseKind::kBackward, 0);
    entered(m, PhaseKind::kOther);
    std::vector<int> result;
    for (const char c : requests) {
      result.push_back(m.match(c - 'A' + 1, 0).decision.number());
    }
    m.end_iteration();
    return result;
  };
  EXPECT_EQ(decisions("BC"), (std::vector<int>{2, 3}));
  EXPECT_EQ(decisions("BCDE"), (std::vector<int>{2, 3, 8, 9})) << "a short accumulation";
  EXPECT_EQ(decisions("BCED"), (std::vector<int>{2, 3, kNone, kNone})) << "not the next one there";
  EXPECT_EQ(decisions("CD"), (std::vector<int>{3, kNone})) << "they begin in different ways";
}

TEST(Matcher, AnExtraMicrobatchOfAPipelineRepeatsOneThatIsNotInFlight) {
  std::vector<trace::PhaseKey> keys;
  const auto add = [&](PhaseKind kind, std::int32_t m) { keys.push_back({kind, m, 0, 0}); };
  for (const std::int32_t m : {0, 1, 2}) add(PhaseKind::kForward, m);
  add(PhaseKind::kBackward, 0);
  add(PhaseKind::kForward, 3);
  for (const std::int32_t m : {1, 2, 3}) add(PhaseKind::kBackward, m);
  runtime::Matcher m(phases_of(keys));
  for (const std::int32_t k : {0, 1, 2}) EXPECT_EQ(entered(m, PhaseKind::kForward, k), k);
  EXPECT_EQ(entered(m, PhaseKind::kBackward, 0), 3);
  EXPECT_EQ(entered(m, PhaseKind::kForward, 3), 4);
  EXPECT_EQ(entered(m, PhaseKind::kBackward, 1), 5);
  EXPECT_EQ(entered(m, PhaseKind::kForward, 4), 1) << "2 and 3 are in flight";
  EXPECT_EQ(entered(m, PhaseKind::kBackward, 2), 6);
  EXPECT_EQ(entered(m, PhaseKind::kForward, 5), 2);
  EXPECT_EQ(entered(m, PhaseKind::kBackward, 3), 7);
  EXPECT_EQ(entered(m, PhaseKind::kBackward, 4), 5) << "a backward follows its forward";
  EXPECT_EQ(entered(m, PhaseKind::kBackward, 5), 6);
}

TEST(Matcher, AnOtherPhaseAfterAnUnknownOneIsUnknown) {
  runtime::Matcher m(two_microbatches());
  EXPECT_EQ(entered(m, PhaseKind::kForward, 0), 0);
  m.enter_phase(PhaseKind::kForward, 0, /*chunk=*/1);
  EXPECT_EQ(m.phase(), kNone);
  EXPECT_EQ(entered(m, PhaseKind::kOther), kNone);
  EXPECT_EQ(entered(m, PhaseKind::kBackward, 0), 1);
  EXPECT_EQ(entered(m, PhaseKind::kOther), 2);
}

TEST(Matcher, StreamsAreToldApart) {
  plan::Plan plan = letters({"AA"});
  plan.decisions[1].stream = 3;
  runtime::Matcher m(plan);
  m.enter_phase(trace::PhaseKind::kForward, 0, 0);
  EXPECT_EQ(m.match(1, 0).decision, 0);
  EXPECT_EQ(m.match(1, 3).decision, 1);
  m.end_iteration();
  m.enter_phase(trace::PhaseKind::kForward, 0, 0);
  EXPECT_EQ(m.match(1, 3).decision, 1);
  EXPECT_EQ(m.match(1, 3).decision, kNone);
  EXPECT_EQ(m.match(1, 0).decision, 0);
}

// An exchange sends an expert's tokens on a stream of its own, and brings back its output, which
// lives on. On each stream the requests of the other one come between.
TEST(Matcher, ContextsOfDynamicRequestsAreThoseOfTheirStream) {
  constexpr Bytes kRow = 4096;
  constexpr StreamId kExchange = 1;
  testing::TraceBuilder t;
  for (int i = 0; i < 3; ++i) {
    t.phase(trace::PhaseKind::kForward, 0);
    std::vector<std::int32_t> kept{t.alloc(10 * kRow)};
    for (const int tokens : {300 + 7 * i, 410 - 9 * i, 350 + i}) {
      const auto sent = t.alloc(2 * tokens * kRow);
      const auto received = t.alloc(2 * tokens * kRow, kExchange);
      const auto hidden = t.alloc(tokens * kRow);
      t.free(received);
      t.free(sent);
      kept.push_back(t.alloc(tokens * kRow, kExchange));
      t.free(hidden);
    }
    kept.push_back(t.alloc(11 * kRow));
    for (int k = 0; k < 20; ++k) t.free(t.alloc(12 * kRow));
    for (const auto r : kept) t.free(r);
    t.step();
  }
  const plan::Plan plan = plan::make_plan(profile::profile_iteration(t.finish()), {});
  runtime::Matcher m(plan);
  m.enter_phase(trace::PhaseKind::kForward, 0, 0);
  EXPECT_EQ(m.match(10 * kRow, 0).decision, 0);
  const auto life = [&](Bytes size) {
    const plan::GroupIndex group = m.match(size, kExchange).group;
    return group == kNone ? Tick(0) : plan[group].upper - plan[group].lower;
  };
  for (const int tokens : {250, 333, 500}) {
    m.match(2 * tokens * kRow, 0);
    const Tick received = life(2 * tokens * kRow);
    m.match(tokens * kRow, 0);
    EXPECT_LT(received, life(tokens * kRow)) << tokens;
  }
}

TEST(Matcher, DynamicRequestsFindTheirGroupAndDoNotMoveTheHead) {
  plan::Plan plan = letters({"ABCD"});
  plan::DynamicGroup group;
  group.phase = 0;
  group.after = 1;
  plan.groups.push_back(group);
  runtime::Matcher m(plan);
  m.enter_phase(trace::PhaseKind::kForward, 0, 0);
  EXPECT_EQ(m.match(1, 0).decision, 0);
  EXPECT_EQ(m.match(9, 0, /*dynamic=*/true).group, kNone) << "there is no group at this place";
  EXPECT_EQ(m.match(2, 0).decision, 1);
  EXPECT_EQ(m.match(9, 0).group, 0) << "no decision, at a place with a group";
  EXPECT_EQ(m.match(3, 0, /*dynamic=*/true).group, 0) << "tagged, though C would fit";
  EXPECT_EQ(m.match(3, 0).decision, 2);
  EXPECT_EQ(m.match(4, 0).decision, 3);
}

}  // namespace
}  // namespace stalloc
