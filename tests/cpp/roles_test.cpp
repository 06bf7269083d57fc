// Contexts tell long-lived requests from short-lived ones, and the runtime finds the same roles as
// the profile.
#include "profile/roles.h"

#include <gtest/gtest.h>

#include <map>
#include <random>

#include "runtime/matcher.h"

namespace stalloc {
namespace {

constexpr profile::Longevity kBrief = 0;
constexpr profile::Longevity kLong = 9;
constexpr Bytes kWeight = 262144;

using Visit = std::vector<profile::RoleSample>;

// The backward of an expert with `tokens` tokens: temporaries and the gradients of two weights.
void expert(Visit& visit, Bytes tokens, profile::Longevity gradients = kLong) {
  visit.push_back({2048 * tokens, profile::kBrief});
  visit.push_back({kWeight, gradients});
  visit.push_back({512 * 1024, gradients});
  visit.push_back({512 * tokens, profile::kBrief});
  visit.push_back({kWeight, gradients});
  visit.push_back({2048 * 1024, gradients});
  visit.push_back({kWeight, profile::kBrief});  // of the input, as large as a weight
}

Visit visit_of(const std::vector<Bytes>& tokens) {
  Visit visit;
  for (const Bytes count : tokens) expert(visit, count);
  return visit;
}

// One group for each role.
plan::Plan plan_of(const profile::Roles& roles) {
  plan::Plan plan;
  plan.period = 10;
  plan.phases.push_back({{trace::PhaseKind::kBackward, 0, 0, 0}, 0, 10});
  for (std::size_t role = 0; role < roles.contexts.size(); ++role) {
    plan::DynamicGroup group;
    group.phase = 0;
    group.lower = 1;
    group.upper = roles.longevity[role] == profile::kKept ? 11 : 5;
    group.phase_end = 0;
    group.contexts = roles.contexts[role];
    plan.groups.push_back(group);
  }
  return plan;
}

std::vector<std::int32_t> served(const profile::Roles& roles, const Visit& visit) {
  const plan::Plan plan = plan_of(roles);
  plan.check();
  runtime::Matcher matcher(plan);
  matcher.enter_phase(trace::PhaseKind::kBackward, 0, 0);
  std::vector<std::int32_t> groups;
  for (const profile::RoleSample& s : visit) {
    const runtime::Matcher::Match match = matcher.match(s.size, 0, true);
    EXPECT_EQ(match.persistent, match.group == kNone);
    groups.push_back(match.group.number());
  }
  return groups;
}

TEST(Roles, TellGradientsFromTemporariesOfTheSameSize) {
  const profile::Roles roles =
      profile::tell_roles({visit_of({70, 301, 88}), visit_of({122, 97, 240})});
  ASSERT_EQ(roles.longevity, (std::vector<profile::Longevity>{kLong, profile::kBrief}));
  const std::vector<std::int32_t> one = {1, 0, 0, 1, 0, 0, 1};
  std::vector<std::int32_t> expected;
  for (int i = 0; i < 3; ++i) expected.insert(expected.end(), one.begin(), one.end());
  EXPECT_EQ(roles.of[0], expected);
  // An unseen number of experts, with unseen tokens.
  expected.insert(expected.end(), one.begin(), one.end());
  EXPECT_EQ(served(roles, visit_of({111, 5000, 77, 412})), expected);
}

TEST(Roles, DoNotTakeAnActivationForAGradientOfItsSize) {
  const profile::Roles roles =
      profile::tell_roles({visit_of({70, 301, 88}), visit_of({122, 97, 240})});
  // 128 tokens make 2048 * 128 == kWeight bytes, 512 tokens 512 * 512.
  EXPECT_EQ(served(roles, visit_of({128})), (std::vector<std::int32_t>{1, 0, 0, 1, 0, 0, 1}));
  EXPECT_EQ(served(roles, visit_of({90, 512})).at(7 + 3), 1);
}

TEST(Roles, FollowFromTheRatioToTheLastVaryingSize) {
  // The last of an expert's three tensors is short-lived. Before and after all experts comes a
  // buffer for all their tokens, of the same size. The first one is long-lived.
  const auto layer = [](const std::vector<Bytes>& tokens) {
    Visit visit;
    Bytes all = 0;
    for (const Bytes t : tokens) all += 4096 * t;
    visit.push_back({all, profile::kBrief});
    visit.push_back({all, kLong});
    for (const Bytes t : tokens) {
      visit.push_back({5632 * t, kLong});
      visit.push_back({2816 * t, kLong});
      visit.push_back({4096 * t, profile::kBrief});
    }
    visit.push_back({all, profile::kBrief});
    return visit;
  };
  const profile::Roles roles =
      profile::tell_roles({layer({310, 77, 1013}), layer({97, 401, 1009})});
  ASSERT_EQ(roles.longevity, (std::vector<profile::Longevity>{kLong, profile::kBrief}));
  EXPECT_EQ(served(roles, layer({13, 501, 239, 787})),
            (std::vector<std::int32_t>{1, 0, 0, 0, 1, 0, 0, 1, 0, 0, 1, 0, 0, 1, 1}));
}

TEST(Roles, SeparateRecurringFromVaryingSizesOfDifferentLifetimes) {
  const auto visit = [](Bytes size) {
    return Visit{{size, kLong},
                 {1'000'000, kLong},
                 {2'000'000, profile::kBrief},
                 {3 * size, profile::kBrief}};
  };
  const profile::Roles roles = profile::tell_roles({visit(50'021), visit(50'033)});
  EXPECT_EQ(roles.longevity, (std::vector<profile::Longevity>{kLong, kLong, profile::kBrief}));
  EXPECT_EQ(served(roles, visit(77'777)), (std::vector<std::int32_t>{0, 1, 2, 2}));
}

TEST(Roles, MergeIfTheirLifetimesAreSimilar) {
  const auto visit = [](Bytes size) {
    return Visit{{size, 100}, {3 * size, 76}, {9 * size, 75}, {27 * size, 50}};
  };
  const profile::Roles roles = profile::tell_roles({visit(50'021), visit(50'033)});
  EXPECT_EQ(roles.longevity, (std::vector<profile::Longevity>{100, 75, 50}));
  EXPECT_EQ(served(roles, visit(77'777)), (std::vector<std::int32_t>{0, 0, 1, 2}));
}

// An expert with two tokens. Its activation has the size of a constant that precedes an activation,
// so the gradient after it has a new predecessor.
TEST(Roles, ASizeThatRecursElsewhereHasTheLongestRole) {
  const auto expert_of = [](Visit& visit, Bytes tokens) {
    visit.push_back({4096, profile::kBrief});
    visit.push_back({2048 * tokens, profile::kBrief});
    visit.push_back({kWeight, kLong});
    visit.push_back({512 * tokens, profile::kBrief});
  };
  std::vector<Visit> visits(2);
  for (const Bytes tokens : {70, 301, 88}) expert_of(visits[0], 1000 * tokens);
  for (const Bytes tokens : {122, 97, 240}) expert_of(visits[1], 1000 * tokens);
  const profile::Roles roles = profile::tell_roles(visits);
  ASSERT_EQ(roles.longevity.front(), kLong);
  Visit small;
  expert_of(small, 99'000);
  expert_of(small, 2);
  EXPECT_EQ(served(roles, small).at(4 + 2), 0);
}

TEST(Ratio, IsACode) {
  for (const profile::Ratio ratio :
       {profile::Ratio{1, 1, true}, profile::Ratio{16, 11, false}, profile::Ratio{1, 1, false},
        profile::Ratio{profile::Ratio::kTermEnd - 1, profile::Ratio::kTermEnd - 1, true}}) {
    const Bytes code = ratio.code();
    EXPECT_TRUE(profile::Ratio::is_code(code)) << code;
    EXPECT_LT(code, profile::DynamicContext::kUnsure);
    EXPECT_EQ(profile::Ratio::from_code(code).factor, ratio.factor);
    EXPECT_EQ(profile::Ratio::from_code(code).divisor, ratio.divisor);
    EXPECT_EQ(profile::Ratio::from_code(code).to_last, ratio.to_last);
  }
  for (const Bytes size :
       {Bytes{0}, Bytes{-4}, Bytes{7}, -profile::Ratio::kTermEnd, -(Bytes{1} << 41)}) {
    EXPECT_FALSE(profile::Ratio::is_code(size)) << size;
  }
}

TEST(Roles, OneThatAllRequestsShareNeedsNoContexts) {
  const profile::Roles roles = profile::tell_roles({{{40000, 3}, {50000, 3}}, {{60000, 3}}});
  EXPECT_EQ(roles.longevity, (std::vector<profile::Longevity>{3}));
  ASSERT_EQ(roles.contexts.size(), 1u);
  EXPECT_TRUE(roles.contexts[0].empty());
  EXPECT_EQ(roles.of, (std::vector<std::vector<std::int32_t>>{{0, 0}, {0}}));
}

TEST(Roles, RareExceptionsDoNotMakeARoleLonger) {
  std::vector<Visit> visits(3);
  for (auto& visit : visits) {
    for (int i = 0; i < 8; ++i)
      expert(visit, 100 + 7 * i + (&visit - visits.data()), profile::kBrief);
  }
  // The expert had no token in the first microbatch. Its gradients are made here and are
  // long-lived.
  for (const std::size_t i : {1, 2, 4, 5}) visits[1][7 * 3 + i].longevity = kLong;
  const profile::Roles roles = profile::tell_roles(visits);
  EXPECT_EQ(roles.longevity, (std::vector<profile::Longevity>{profile::kBrief}));

  // One in five is no exception.
  for (std::size_t e = 0; e < 8; ++e) {
    for (const std::size_t i : {1, 2, 4, 5}) visits[1][7 * e + i].longevity = kLong;
  }
  EXPECT_EQ(profile::tell_roles(visits).longevity,
            (std::vector<profile::Longevity>{kLong, profile::kBrief}));
}

// The last expert's sum lives on, and the others' are freed. It is no exception, though one in ten.
TEST(Roles, AnExceptionInEveryVisitIsARole) {
  std::vector<Visit> visits(3);
  for (auto& visit : visits) {
    for (int i = 0; i < 10; ++i) visit.push_back({100'000, i < 9 ? profile::kBrief : 5});
  }
  const profile::Roles roles = profile::tell_roles(visits);
  ASSERT_EQ(roles.longevity, (std::vector<profile::Longevity>{5, profile::kBrief}));
  EXPECT_EQ(roles.of[0].back(), 0);
  EXPECT_EQ(roles.of[0].front(), 1) << "told by having none before";
  visits[1].back().longevity = profile::kBrief;
  EXPECT_EQ(profile::tell_roles(visits).longevity,
            (std::vector<profile::Longevity>{profile::kBrief}))
      << "not always";
}

TEST(Roles, SmallRequestsAreApartAndLiveAsLongAsAnyOfThem) {
  std::vector<Visit> visits(2);
  for (auto& visit : visits) {
    for (Bytes i = 1; i < 5; ++i) {
      const Bytes tokens = 100 * i + (&visit - visits.data());
      visit.push_back({8 * tokens, profile::kBrief});
      visit.push_back({2048 * tokens, profile::kBrief});
      visit.push_back({512, kLong});
    }
  }
  const profile::Roles roles = profile::tell_roles(visits);
  EXPECT_EQ(roles.longevity, (std::vector<profile::Longevity>{profile::kBrief, kLong}));
  EXPECT_EQ(
      served(roles,
             {{888}, {99999}, {512}, {4}, {profile::kSmallRequest}, {profile::kSmallRequest - 1}}),
      (std::vector<std::int32_t>{1, 0, 1, 1, 0, 1}));
}

TEST(Roles, RequestsWithoutAKnownEndHaveTheLongestRole) {
  std::vector<Visit> visits = {visit_of({70, 301}), visit_of({122, 97})};
  visits[1].push_back({77777, profile::kUnknownLongevity});
  const profile::Roles roles = profile::tell_roles(visits);
  EXPECT_EQ(roles.longevity, (std::vector<profile::Longevity>{kLong, profile::kBrief}));
  EXPECT_EQ(profile::tell_roles({{{40000}, {50000}}}).longevity,
            (std::vector<profile::Longevity>{profile::kUnknownLongevity}));
  EXPECT_EQ(profile::tell_roles({}).longevity,
            (std::vector<profile::Longevity>{profile::kUnknownLongevity}));
}

// A mask for each new length.
TEST(Roles, SeparateKeptRequests) {
  const auto visit = [](Bytes length, profile::Longevity mask) {
    Visit result = {{40'000, profile::kBrief}};
    if (mask != profile::kUnknownLongevity) result.push_back({400 * length, mask});
    for (const Bytes width : {3, 7}) result.push_back({1024 * width * length, profile::kBrief});
    return result;
  };
  const auto known = [&](Bytes length) { return visit(length, profile::kUnknownLongevity); };
  const profile::Roles roles = profile::tell_roles(
      {visit(101, profile::kKept), known(103), visit(107, profile::kKept), known(109)});
  EXPECT_EQ(roles.longevity, (std::vector<profile::Longevity>{profile::kBrief, profile::kKept}));
  EXPECT_EQ(roles.of[0], (std::vector<std::int32_t>{0, 1, 0, 0}));
  EXPECT_EQ(served(roles, visit(113, profile::kKept)), (std::vector<std::int32_t>{0, kNone, 0, 0}));
}

TEST(Roles, SizeAloneMarksARareKeptRequest) {
  const auto visit = [](Bytes seed) {
    Visit result;
    for (Bytes i = 0; i < 12; ++i) result.push_back({50'000 + 101 * seed + 7 * i, profile::kBrief});
    return result;
  };
  std::vector<Visit> visits = {visit(1), visit(2), visit(3)};
  visits[1].insert(visits[1].begin() + 5, {777'216, profile::kKept});
  visits[1].insert(visits[1].begin() + 9, {4'096, profile::kKept});
  const profile::Roles roles = profile::tell_roles(visits);
  EXPECT_EQ(roles.longevity.back(), profile::kKept);
  Visit later = visit(5);
  later.insert(later.begin() + 2, {777'216, profile::kKept});
  later.push_back({4'096, profile::kKept});
  std::vector<std::int32_t> expected(14, 0);
  expected[2] = expected[13] = kNone;
  EXPECT_EQ(served(roles, later), expected);
}

TEST(Roles, ServeNothingIfAllRequestsAreKept) {
  const profile::Roles roles = profile::tell_roles(
      {{{50'000, profile::kKept}, {60'000, profile::kKept}}, {{70'000, profile::kKept}}});
  EXPECT_EQ(served(roles, {{80'000}, {90'000}, {4}}), (std::vector<std::int32_t>(3, kNone)));
}

// For any profile, the plan's contexts give the same roles as the profile.
TEST(RolesProperty, TheRuntimeComesToTheProfilesVerdicts) {
  std::size_t several = 0;
  std::size_t kept = 0;
  for (unsigned seed = 0; seed < 2000; ++seed) {
    std::mt19937 random(seed);
    const auto pick = [&](int low, int high) {
      return std::uniform_int_distribution<int>(low, high)(random);
    };
    std::vector<Visit> visits(static_cast<std::size_t>(pick(1, 4)));
    const int kinds = pick(1, 6);
    Bytes unique = 1'000'001;
    for (Visit& visit : visits) {
      for (int i = pick(0, 30); i > 0; --i) {
        const int kind = pick(0, kinds);
        const Bytes size = kind == 0 ? ++unique : (kind % 2 ? 100'000 : 100) * Bytes{kind};
        profile::Longevity longevity = pick(0, 3) == 0 ? pick(-1, 3) : kind % 3;
        if (seed % 2 == 1 && pick(0, 7) == 0) longevity = profile::kKept;
        visit.push_back({size, longevity});
      }
    }
    const profile::Roles roles = profile::tell_roles(visits);
    ASSERT_EQ(roles.contexts.size(), roles.longevity.size());
    several += roles.contexts.size() > 1;
    for (std::size_t v = 0; v < visits.size(); ++v) {
      std::vector<std::int32_t> expected = roles.of[v];
      for (std::int32_t& role : expected) {
        kept += roles.longevity[role] == profile::kKept;
        if (roles.longevity[role] == profile::kKept) role = kNone;
      }
      ASSERT_EQ(served(roles, visits[v]), expected) << "seed " << seed << ", visit " << v;
    }
  }
  EXPECT_GT(several, 1200u);
  EXPECT_GT(kept, 1200u);
}

}  // namespace
}  // namespace stalloc
