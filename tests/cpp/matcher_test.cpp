#include "runtime/matcher.h"

#include <gtest/gtest.h>

#include <string>

#include "base/align.h"
#include "plans.h"

namespace stalloc {
namespace {

// A plan whose decisions are letters: 'A' asks for 1 byte, 'B' for 2, ... one string a phase.
Plan letters(const std::vector<std::string>& phases) {
  std::vector<Decision> decisions;
  Tick tick = 0;
  for (std::size_t p = 0; p < phases.size(); ++p) {
    for (const char c : phases[p]) {
      Decision d;
      d.size = c - 'A' + 1;
      d.offset = kDefaultAlignment * tick;
      d.lower = tick;
      d.upper = ++tick;
      d.phase = static_cast<PhaseIndex>(p);
      decisions.push_back(d);
    }
  }
  return testing::plan_of(std::move(decisions), tick, static_cast<PhaseIndex>(phases.size()));
}

// What each request of `run` matched, as indices into the plan; '.' for none, "0123..." for others.
std::vector<int> run(Matcher& m, const std::string& requests, std::int32_t microbatch = 0) {
  m.enter_phase(PhaseKind::kForward, microbatch, 0);
  std::vector<int> result;
  for (const char c : requests) result.push_back(m.match(c - 'A' + 1, 0).decision);
  return result;
}

// A matcher that has seen one iteration run as planned, and so trusts all phases.
Matcher trusting(const std::vector<std::string>& phases) {
  Matcher m(letters(phases));
  for (std::size_t p = 0; p < phases.size(); ++p) run(m, phases[p], static_cast<int>(p));
  m.end_iteration();
  return m;
}

std::vector<int> upto(int n) {
  std::vector<int> result;
  for (int i = 0; i < n; ++i) result.push_back(i);
  return result;
}

TEST(Matcher, FollowsThePlanTurnAfterTurn) {
  Matcher m(letters({"ABAC", "BB"}));
  for (int turn = 0; turn < 3; ++turn) {
    EXPECT_EQ(run(m, "ABAC"), upto(4));
    EXPECT_EQ(run(m, "BB", 1), (std::vector<int>{4, 5}));
    m.end_iteration();
  }
}

TEST(Matcher, TwoChangedPlaces) {
  Matcher m(trusting({"ABCDEF"}));
  EXPECT_EQ(run(m, "ABDCEF"), (std::vector<int>{0, 1, 3, 2, 4, 5}));
}

TEST(Matcher, OneMissing) {
  Matcher m(trusting({"ABCDEF"}));
  EXPECT_EQ(run(m, "ABDEF"), (std::vector<int>{0, 1, 3, 4, 5}));
}

TEST(Matcher, OneNew) {
  Matcher m(trusting({"ABCDEF"}));
  EXPECT_EQ(run(m, "ABXCDEF"), (std::vector<int>{0, 1, kNone, 2, 3, 4, 5}));
}

TEST(Matcher, ALayerSkippedCostsOneRequest) {
  const std::string layer = "CDEFGHIJKLMNOPQRST";  // longer than the window
  Matcher m(trusting({"AB" + layer + "XYZ"}));
  EXPECT_EQ(run(m, "ABXYZ"), (std::vector<int>{0, 1, kNone, 21, 22}));
}

TEST(Matcher, AForeignRequestOfACommonSizeDoesNotThrowItOff) {
  const std::string layer = "ABCDEFGHIJKLMNOP";
  Matcher m(trusting({layer + layer + layer}));
  // A stray 'P' right at the start is the like of one far ahead; it goes unmatched, and all else
  // fits.
  std::vector<int> expected = upto(48);
  expected.insert(expected.begin(), kNone);
  EXPECT_EQ(run(m, "P" + layer + layer + layer), expected);
}

TEST(Matcher, NoDecisionIsTakenTwiceInATurn) {
  Matcher m(trusting({"AAA"}));
  EXPECT_EQ(run(m, "AAAA"), (std::vector<int>{0, 1, 2, kNone}));
  EXPECT_EQ(run(m, "A"), (std::vector<int>{kNone})) << "second occurrence of the phase";
  m.end_iteration();
  EXPECT_EQ(run(m, "AAA"), upto(3));
}

TEST(Matcher, BackInStepAtTheNextPhase) {
  Matcher m(letters({"ABCD", "ABCD"}));
  run(m, "XXYYZZ");
  EXPECT_EQ(run(m, "ABCD", 1), (std::vector<int>{4, 5, 6, 7}));
}

TEST(Matcher, AnUntrustedPhaseIsServedUpToItsFirstDeparture) {
  Matcher m(letters({"ABCD", "ABCD"}));
  EXPECT_EQ(run(m, "ABXCD"), (std::vector<int>{0, 1, kNone, kNone, kNone}));
  EXPECT_EQ(run(m, "ABCD", 1), (std::vector<int>{4, 5, 6, 7}));
  m.end_iteration();
  EXPECT_EQ(run(m, "ABCD"), upto(4)) << "this turn it is as it was profiled";
  m.end_iteration();
  EXPECT_EQ(run(m, "ABXCD"), (std::vector<int>{0, 1, kNone, 2, 3})) << "now it is trusted";
}

TEST(Matcher, APhaseThatRepeatsItsDepartureIsTrusted) {
  Matcher m(letters({"ABCD"}));
  for (int turn = 0; turn < 2; ++turn) {
    EXPECT_EQ(run(m, "AXBCD"), (std::vector<int>{0, kNone, kNone, kNone, kNone})) << turn;
    m.end_iteration();
  }
  EXPECT_EQ(run(m, "AXBCD"), (std::vector<int>{0, kNone, 1, 2, 3}));
}

TEST(Matcher, PatienceWithAPhaseThatNeverRepeats) {
  Matcher m(letters({"ABCD"}));
  std::string requests = "AX";
  for (int turn = 0; turn < 4; ++turn, requests += "X") {
    EXPECT_EQ(run(m, requests + "BCD").back(), kNone);
    m.end_iteration();
  }
  EXPECT_EQ(run(m, requests + "BCD").back(), 3);
}

TEST(Matcher, UnknownPhasesMatchNothing) {
  Matcher m(letters({"AB"}));
  EXPECT_FALSE(m.in_planned_phase());
  EXPECT_EQ(m.match(1, 0).decision, kNone) << "no phase yet";
  EXPECT_EQ(run(m, "AB", 7), (std::vector<int>{kNone, kNone}));
  m.enter_phase(PhaseKind::kBackward, 0, 0);
  EXPECT_FALSE(m.in_planned_phase());
  EXPECT_EQ(m.match(1, 0).decision, kNone);
  EXPECT_EQ(run(m, "AB"), upto(2));
}

TEST(Matcher, StreamsAreToldApart) {
  Plan plan = letters({"AA"});
  plan.decisions[1].stream = 3;
  Matcher m(plan);
  m.enter_phase(PhaseKind::kForward, 0, 0);
  EXPECT_EQ(m.match(1, 0).decision, 0);
  EXPECT_EQ(m.match(1, 3).decision, 1);
  m.end_iteration();
  m.enter_phase(PhaseKind::kForward, 0, 0);
  EXPECT_EQ(m.match(1, 3).decision, 1);
  EXPECT_EQ(m.match(1, 3).decision, kNone);
  EXPECT_EQ(m.match(1, 0).decision, 0);
}

TEST(Matcher, DynamicRequestsFindTheirGroupAndDoNotMoveTheHead) {
  Plan plan = letters({"ABCD"});
  DynamicGroup group;
  group.phase = 0;
  group.after = 1;
  plan.groups.push_back(group);
  Matcher m(plan);
  m.enter_phase(PhaseKind::kForward, 0, 0);
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
