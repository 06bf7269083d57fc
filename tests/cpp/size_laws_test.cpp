#include "profile/size_laws.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "profile/lifetimes.h"
#include "trace_builder.h"

namespace stalloc {
namespace {

using profile::Extent;
using profile::IterationProfile;
using profile::LawProof;
using profile::LawSource;
using profile::SizeLaw;
using profile::SizeLaws;
using testing::TraceBuilder;
using Lengths = std::vector<std::vector<Extent>>;  // by iteration and microbatch

constexpr Bytes kWeights = 1 << 20;

// A program like a small transformer's: data, activations, a logit for each token, scores for each
// pair of tokens, gradients.
struct Program {
  std::function<void(TraceBuilder&, Extent)> in_forward = [](TraceBuilder&, Extent) {};
};

trace::Trace run(const Lengths& lengths, const Program& program = {}) {
  TraceBuilder t;
  t.phase(trace::PhaseKind::kOther);
  for (const std::vector<Extent>& microbatches : lengths) {
    std::int32_t gradient = kNone;
    for (std::size_t m = 0; m < microbatches.size(); ++m) {
      const Extent n = microbatches[m];
      const auto microbatch = static_cast<std::int32_t>(m);
      if (m > 0) t.phase(trace::PhaseKind::kOther, kNone, microbatch);
      const auto ids = t.alloc(8 * 4 * (n + 1));
      t.phase(trace::PhaseKind::kForward, microbatch);
      t.extents({"ids.0", "ids.1", "mask.1"}, {4, n, n});
      const auto hidden = t.alloc(256 * n);
      const auto scores = t.alloc(2 * n * n + 64);
      program.in_forward(t, n);
      const auto loss = t.alloc(4);
      t.phase(trace::PhaseKind::kBackward, microbatch);
      const auto back = t.alloc(256 * n);
      if (m == 0) gradient = t.alloc(kWeights);
      t.free(back);
      t.free(scores);
      t.free(hidden);
      t.free(loss);
      t.free(ids);
    }
    t.phase(trace::PhaseKind::kOptimizer);
    const auto norm = t.alloc(4);
    t.free(norm);
    t.free(gradient);
    t.step();
  }
  return t.finish();
}

// Gradients need none: the first microbatch alone makes them, and their size never changes.
std::int64_t without_law(const trace::Trace& trace, const SizeLaws& laws) {
  std::int64_t count = 0;
  for (std::size_t i = 0; i < trace.requests.size(); ++i) {
    count += laws.of[i] == kNone && trace.requests[i].size != kWeights;
  }
  return trace.requests.empty() ? -1 : count;
}

std::int64_t dynamic(const IterationProfile& profile) {
  return std::ranges::count_if(profile.requests, &profile::ProfiledRequest::dynamic);
}

// Every request is told exactly by its law at the extents of its microbatch.
void expect_exact(const trace::Trace& trace, const SizeLaws& laws) {
  const auto column = std::ranges::find(trace.extent_names, laws.extent_names.at(0));
  const auto e = static_cast<std::size_t>(column - trace.extent_names.begin());
  for (std::size_t i = 0; i < trace.requests.size(); ++i) {
    const trace::Request& r = trace.requests[i];
    if (laws.of[i] == kNone) continue;
    const SizeLaw& law = laws[laws.of[i]];
    const trace::MicrobatchExtents* row = nullptr;
    for (const trace::MicrobatchExtents& x : trace.extents) {
      const bool past = x.phase > r.phase_begin;
      if (law.source == LawSource::kUpcoming && past && !row) row = &x;
      if (law.source == LawSource::kOwn && !past) row = &x;
    }
    const std::vector<Extent> extents = {row ? row->values[e] : Extent{0}};
    EXPECT_EQ(evaluate(law, extents), r.size) << "request " << i;
  }
}

TEST(SizeLaws, FixedShapesHaveNone) {
  const trace::Trace trace = run({{64}, {64}, {64}});
  EXPECT_TRUE(profile::find_size_laws(trace).empty());
  const IterationProfile profile = profile::profile_iteration(trace);
  EXPECT_TRUE(profile.laws.empty());
  EXPECT_TRUE(profile.extent_names.empty());
  for (const auto& r : profile.requests) EXPECT_EQ(r.law, kNone);
}

TEST(SizeLaws, EverySizeFollowsItsMicrobatch) {
  const trace::Trace trace = run({{10, 90}, {40, 70}, {20, 35}, {80, 55}});
  const SizeLaws laws = profile::find_size_laws(trace);
  EXPECT_EQ(laws.extent_names, std::vector<std::string>{"ids.1"});
  EXPECT_EQ(laws.fixed,
            (std::vector<std::pair<std::string, Extent>>{{"ids.0", 4}, {"mask.1", 90}}));
  EXPECT_EQ(laws.envelope, std::vector<Extent>{90});
  EXPECT_EQ(laws.seen.size(), 8u);
  EXPECT_EQ(without_law(trace, laws), 0);
  expect_exact(trace, laws);
  for (const SizeLaw& law : laws.laws) EXPECT_EQ(law.proof, LawProof::kProven);
}

TEST(SizeLaws, DataFollowsTheUpcomingMicrobatch) {
  const trace::Trace trace = run({{10}, {40}, {20}, {80}});
  const SizeLaws laws = profile::find_size_laws(trace);
  const auto law = laws.of[0];
  ASSERT_NE(law, kNone);
  EXPECT_EQ(laws[law].source, LawSource::kUpcoming);
}

// A stage of a pipeline with two microbatches. It receives the gradient of the first one after the
// forward of the second.
trace::Trace pipeline(const Lengths& lengths) {
  TraceBuilder t;
  t.phase(trace::PhaseKind::kOther);
  for (const std::vector<Extent>& n : lengths) {
    std::vector<std::int32_t> hidden;
    for (std::int32_t m = 0; m < 2; ++m) {
      t.phase(trace::PhaseKind::kOther, kNone, 2 * m + 1);
      const auto data = t.alloc(8 * n[m]);
      t.phase(trace::PhaseKind::kForward, m);
      t.extents({"ids.1"}, {n[m]});
      hidden.push_back(t.alloc(256 * n[m]));
      t.free(data);
    }
    for (std::int32_t m = 0; m < 2; ++m) {
      t.phase(trace::PhaseKind::kOther, kNone, 2 * m + 2);
      const auto gradient = t.alloc(64 * n[m]);
      t.phase(trace::PhaseKind::kBackward, m);
      t.free(t.alloc(512 * n[m]));
      t.free(gradient);
      t.free(hidden[m]);
    }
    t.phase(trace::PhaseKind::kOptimizer);
    t.free(t.alloc(4));
    t.step();
  }
  return t.finish();
}

TEST(SizeLaws, AReceivedGradientFollowsTheNextMicrobatchThatGoesBack) {
  const trace::Trace trace = pipeline({{10, 90}, {40, 70}, {20, 35}, {80, 55}});
  const SizeLaws laws = profile::find_size_laws(trace);
  std::set<LawSource> sources;
  for (std::size_t i = 0; i < trace.requests.size(); ++i) {
    ASSERT_NE(laws.of[i], kNone) << "request " << i;
    const SizeLaw& law = laws[laws.of[i]];
    EXPECT_EQ(law.proof, LawProof::kProven) << "request " << i;
    if (law.terms.size() == 1 && law.terms[0].coefficient == 64) sources.insert(law.source);
  }
  EXPECT_EQ(sources, (std::set{LawSource::kOwn, LawSource::kReturning}))
      << "the second one's forward was the last";
  EXPECT_EQ(dynamic(profile::profile_iteration(trace)), 0);
}

TEST(SizeLaws, ABufferThatGrowsLeavesTemporariesOfItsSizeStatic) {
  Program program;
  Extent largest = 0;
  std::int32_t buffer = kNone;
  program.in_forward = [&](TraceBuilder& t, Extent n) {
    if (n > largest) {
      largest = n;
      const auto larger = t.alloc(2 * n * n + 64);
      if (buffer != kNone) t.free(buffer);
      buffer = larger;
    }
    t.free(t.alloc(2 * n * n + 64));
  };
  const IterationProfile profile =
      profile::profile_iteration(run({{10, 20}, {15, 40}, {90, 90}, {50, 60}}, program));
  int count = 0;
  for (const profile::ProfiledRequest& r : profile.requests) {
    if (r.size != 2 * 90 * 90 + 64) continue;
    ++count;
    EXPECT_NE(r.lifetime, profile::LifetimeClass::kPersistent);
    EXPECT_FALSE(r.dynamic);
    EXPECT_LE(r.upper, profile.period);
  }
  EXPECT_EQ(count, 4) << "of each microbatch, scores and a temporary";
}

TEST(SizeLaws, IterationsOfOtherLengthsAlign) {
  const IterationProfile profile =
      profile::profile_iteration(run({{10, 90}, {40, 70}, {20, 35}, {80, 55}}));
  EXPECT_EQ(dynamic(profile), 0);
  EXPECT_EQ(profile.envelope, std::vector<Extent>{90});
  std::multiset<Bytes> sizes;
  for (const auto& r : profile.requests) sizes.insert(r.size);
  EXPECT_EQ(sizes.count(256 * 90), 4u) << "two microbatches, forward and backward";
  EXPECT_EQ(sizes.count(2 * 90 * 90 + 64), 2u);
  EXPECT_EQ(sizes.count(8 * 4 * 91), 2u);
  EXPECT_EQ(sizes.count(kWeights), 1u);
}

TEST(SizeLaws, PhasesNameTheMicrobatchOfTheirExtents) {
  const IterationProfile profile = profile::profile_iteration(run({{10, 90}, {40, 70}, {20, 35}}));
  std::vector<std::pair<std::int32_t, std::int32_t>> found;
  for (const auto& phase : profile.phases) found.emplace_back(phase.own, phase.upcoming);
  const std::vector<std::pair<std::int32_t, std::int32_t>> expected = {
      {kNone, 0},  // the first data
      {0, 1},     {0, 1}, {0, 1}, {1, kNone}, {1, kNone}, {1, kNone}};
  EXPECT_EQ(found, expected);
}

TEST(SizeLaws, TwoLengthsAreNoProof) {
  const SizeLaws laws = profile::find_size_laws(run({{10}, {40}, {10}, {40}}));
  for (const SizeLaw& law : laws.laws) {
    EXPECT_EQ(law.proof, law.terms.empty() ? LawProof::kProven : LawProof::kUnproven);
  }
}

TEST(SizeLaws, AnIterationWithMoreRequestsFollowsTheLaws) {
  Program program;
  program.in_forward = [](TraceBuilder& t, Extent n) {
    if (n == 20) t.free(t.alloc(12'345));
  };
  const trace::Trace trace = run({{10}, {40}, {20}, {80}, {50}, {60}}, program);
  const SizeLaws laws = profile::find_size_laws(trace);
  EXPECT_EQ(without_law(trace, laws), 1);
  expect_exact(trace, laws);
  EXPECT_EQ(dynamic(profile::profile_iteration(trace)), 0);
}

TEST(SizeLaws, MissingMicrobatchesDisturbNobody) {
  const trace::Trace trace = run({{10, 20, 30}, {40}, {50, 60}, {70, 80, 90}, {25, 35, 45}});
  const SizeLaws laws = profile::find_size_laws(trace);
  EXPECT_EQ(without_law(trace, laws), 0);
  expect_exact(trace, laws);
}

TEST(SizeLaws, AnExceptionAmongMostlyExplainedSizesIsBounded) {
  Program program;
  std::mt19937 random(3);
  program.in_forward = [&](TraceBuilder& t, Extent n) {
    std::vector<std::int32_t> blocks;
    for (int i = 1; i < 20; ++i) blocks.push_back(t.alloc(64 * i * n));
    blocks.push_back(t.alloc(1000 + static_cast<Bytes>(random() % 1000)));
    for (const auto b : blocks) t.free(b);
  };
  const trace::Trace trace = run({{10}, {40}, {20}, {80}, {50}}, program);
  const IterationProfile profile = profile::profile_iteration(trace);
  EXPECT_EQ(dynamic(profile), 0);
  std::int64_t unexplained = 0;
  for (const SizeLaw& law : profile.laws) {
    if (law.proof != LawProof::kUnexplained) continue;
    ++unexplained;
    EXPECT_GE(law.constant, 1000);
    EXPECT_LE(law.constant, 3072);
  }
  EXPECT_EQ(unexplained, 1);
}

TEST(SizeLaws, SizesThatNothingExplainsStayDynamic) {
  Program program;
  std::mt19937 random(3);
  program.in_forward = [&](TraceBuilder& t, Extent) {
    t.layer(0);
    for (int i = 0; i < 12; ++i) t.free(t.alloc(100'000 + static_cast<Bytes>(random() % 100'000)));
    t.layer(kNone);
  };
  const IterationProfile profile =
      profile::profile_iteration(run({{10}, {40}, {20}, {80}, {50}}, program));
  EXPECT_EQ(dynamic(profile), 12);
  for (const SizeLaw& law : profile.laws) EXPECT_NE(law.proof, LawProof::kUnexplained);
}

TEST(SizeLaws, StaysOfAnotherCountLeaveTheRestAligned) {
  Program program;
  program.in_forward = [&](TraceBuilder& t, Extent n) {
    t.layer(0);
    t.free(t.alloc(32 * n));
    t.layer(1);  // an expert that gets tokens or none, as the length is odd or even
    for (Extent i = 0; i < n % 3; ++i) t.free(t.alloc(7'777 * (n % 7 + 1)));
    t.layer(2);
    t.free(t.alloc(16 * n));
    t.layer(kNone);
  };
  const trace::Trace trace = run({{10}, {41}, {20}, {81}, {52}, {63}}, program);
  const SizeLaws laws = profile::find_size_laws(trace);
  for (std::size_t i = 0; i < trace.requests.size(); ++i) {
    const trace::Request& r = trace.requests[i];
    if (r.layer_begin == 1) continue;
    EXPECT_NE(laws.of[i], kNone) << "request " << i << " of " << r.size << " bytes";
  }
}

// A model that interpolates its positions unless the image has the size that it was trained on.
Program interpolating() {
  Program program;
  program.in_forward = [](TraceBuilder& t, Extent n) {
    t.layer(0);
    const auto patches = t.alloc(512 * n);
    if (n != 40) {
      for (int i = 0; i < 6; ++i) t.free(t.alloc(1'000 + 8 * n));
    }
    t.layer(kNone);
    t.free(patches);
  };
  return program;
}

TEST(SizeLaws, ABranchThatSomeShapesGoWithoutIsStatic) {
  const trace::Trace trace = run({{10}, {24}, {40}, {20}, {80}, {40}, {50}}, interpolating());
  const IterationProfile profile = profile::profile_iteration(trace);
  EXPECT_EQ(dynamic(profile), 0);
  // The data that live when the forward begins lie beside the pool.
  for (const profile::ProfiledRequest& r : profile.requests) {
    EXPECT_TRUE(profile.is_plannable(r) || profile.is_recognisable(r));
  }
}

TEST(SizeLaws, ABranchThatTheReferenceGoesWithoutLeavesTheOthersStatic) {
  const trace::Trace trace = run({{10}, {24}, {50}, {20}, {80}, {60}, {40}}, interpolating());
  EXPECT_EQ(dynamic(profile::profile_iteration(trace)), 0);
}

// Scratch space of a kernel takes a whole block from a length of 32 on, and less below.
TEST(SizeLaws, SmallerSizesMayStayBelowALaw) {
  Program program;
  program.in_forward = [](TraceBuilder& t, Extent n) {
    t.free(t.alloc(n < 32 ? 3 * n * n : 500 + 100 * n));
  };
  const trace::Trace trace = run({{10}, {40}, {20}, {80}, {50}, {33}, {64}}, program);
  const SizeLaws laws = profile::find_size_laws(trace);
  EXPECT_EQ(without_law(trace, laws), 1) << "the warm-up's";
  EXPECT_EQ(std::ranges::count(laws.laws, LawProof::kUnproven, &SizeLaw::proof), 1);
  EXPECT_EQ(dynamic(profile::profile_iteration(trace)), 0);
}

TEST(SizeLaws, ARunThatDepartsFromTheLawsIsNotProven) {
  Program program;
  program.in_forward = [](TraceBuilder& t, Extent n) {
    t.free(t.alloc(n == 80 ? 999'999 : 8 * n));
  };
  const trace::Trace trace = run({{10}, {40}, {20}, {50}, {80}}, program);
  const SizeLaws laws = profile::find_size_laws(trace);
  for (std::size_t i = 0; i < trace.requests.size(); ++i) {
    if (trace.requests[i].size != 999'999) continue;
    const bool told = laws.of[i] != kNone;
    EXPECT_FALSE(told && laws[laws.of[i]].proof == LawProof::kProven);
  }
}

TEST(SizeLaws, ASizeThatEqualsItsNeighboursByChanceHasNoLaw) {
  const auto scores = [](Extent n) { return 2 * n * n + 64; };
  Program program;
  program.in_forward = [&](TraceBuilder& t, Extent n) {
    t.free(t.alloc(n == 80 ? scores(n) : 1'000'003 % (7 * n)));
  };
  const trace::Trace trace = run({{10}, {40}, {20}, {50}, {80}}, program);
  const SizeLaws laws = profile::find_size_laws(trace);
  int found = 0;
  for (std::size_t i = 1; i < trace.requests.size(); ++i) {
    if (trace.requests[i].size != scores(80) || trace.requests[i - 1].size != scores(80)) continue;
    ++found;
    const bool told = laws.of[i] != kNone;
    EXPECT_FALSE(told && laws[laws.of[i]].proof == LawProof::kProven);
  }
  EXPECT_EQ(found, 1);
}

// Only the last iteration, which is the reference, calls the layer: its size was seen once.
TEST(SizeLaws, ALayerThatOneIterationCallsFollowsTheLawOfOneLikeIt) {
  TraceBuilder t;
  t.phase(trace::PhaseKind::kOther);
  for (const Extent n : {10, 17, 23}) {
    t.phase(trace::PhaseKind::kForward, 0);
    t.extents({"ids.0", "ids.1"}, {4, n});
    std::vector<std::pair<std::int32_t, Extent>> calls = {{0, 64}, {1, 256}, {3, 512}};
    if (n == 17) calls.insert(calls.begin() + 2, {4, 96});
    if (n == 23) calls.insert(calls.begin() + 2, {2, 256});
    for (const auto& [layer, factor] : calls) {
      t.layer(layer);
      t.free(t.alloc(factor * n));
    }
    t.layer(kNone);
    t.step();
  }
  const trace::Trace trace = t.finish();
  const SizeLaws laws = profile::find_size_laws(trace);
  int found = 0;
  for (std::size_t i = 0; i < trace.requests.size(); ++i) {
    if (trace.requests[i].size != 256 * 23) continue;
    ++found;
    ASSERT_NE(laws.of[i], kNone);
    EXPECT_EQ(laws[laws.of[i]].proof, LawProof::kProven);
  }
  EXPECT_EQ(found, 2);
}

TEST(SizeLaws, OfManyExtentsTheExplainingOnesAreKept) {
  TraceBuilder t;
  t.phase(trace::PhaseKind::kOther);
  std::mt19937 random(5);
  std::vector<std::string> names;
  for (int e = 0; e < 8; ++e) names.push_back("x." + std::to_string(e));
  for (int i = 0; i < 8; ++i) {
    std::vector<Extent> values;
    for (int e = 0; e < 8; ++e) values.push_back(10 + static_cast<Extent>(random() % 500));
    t.phase(trace::PhaseKind::kForward, 0);
    t.extents(names, values);
    t.free(t.alloc(16 * values[6]));
    t.free(t.alloc(24 * values[3]));
    t.free(t.alloc(8 * values[3] * values[6]));
    t.step();
  }
  const SizeLaws laws = profile::find_size_laws(t.finish());
  EXPECT_EQ(laws.extent_names.size(), 4u);
  EXPECT_NE(std::ranges::find(laws.extent_names, "x.3"), laws.extent_names.end());
  EXPECT_NE(std::ranges::find(laws.extent_names, "x.6"), laws.extent_names.end());
  EXPECT_EQ(laws.laws.size(), 3u);
}

}  // namespace
}  // namespace stalloc
