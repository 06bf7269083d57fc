// A mixture of experts whose batches change in length: planned from a few, served for others.
#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "plan/build.h"
#include "profile/lifetimes.h"
#include "replay/replay.h"
#include "trace_builder.h"

namespace stalloc {
namespace {

using testing::TraceBuilder;
using Lengths = std::vector<std::int64_t>;

constexpr int kLayers = 3;
constexpr int kExperts = 4;
constexpr Bytes kHidden = 512;      // bytes of a token
constexpr Bytes kIndex = 8;         // of a token that an expert gets: from small to large requests
constexpr Bytes kWeight = 600'000;  // of an expert

// Splits two tokens for each of `tokens` among the experts.
std::vector<Bytes> route(std::int64_t tokens, std::mt19937& random) {
  std::vector<Bytes> counts(kExperts, tokens / 4);
  std::uniform_int_distribution<std::size_t> pick(0, kExperts - 1);
  for (std::int64_t rest = tokens; rest > 0; rest -= 8) counts[pick(random)] += 8;
  return counts;
}

// The backward of a layer of experts begins and ends with requests of the hidden size, and so does
// the next layer's: a size alone does not tell where the experts end.
trace::Trace training(const Lengths& lengths, unsigned seed) {
  TraceBuilder t;
  std::mt19937 random(seed);
  const auto brief = [&](Bytes size) { t.free(t.alloc(size)); };
  for (const std::int64_t n : lengths) {
    t.phase(trace::PhaseKind::kForward, 0);
    t.extents({"ids.1"}, {n});
    std::vector<std::vector<std::int32_t>> saved(kLayers);
    std::vector<std::vector<Bytes>> tokens;
    for (int l = 0; l < kLayers; ++l) {
      t.layer(kNone);
      saved[l].push_back(t.alloc(kHidden * n));
      brief(kHidden * n);
      t.layer(l);
      tokens.push_back(route(n, random));
      for (const Bytes count : tokens[l]) {
        saved[l].push_back(t.alloc(kIndex * count));
        saved[l].push_back(t.alloc(kHidden * count));
        brief(2 * kHidden * count);
      }
    }
    t.layer(kNone);
    const auto logits = t.alloc(8 * kHidden * n);
    t.phase(trace::PhaseKind::kBackward, 0);
    std::vector<std::int32_t> gradients;
    brief(8 * kHidden * n);
    t.free(logits);
    for (int l = kLayers - 1; l >= 0; --l) {
      t.layer(l);
      for (const Bytes count : tokens[l]) {
        const auto out = t.alloc(kHidden * count);
        brief(kHidden * n);
        gradients.push_back(t.alloc(kWeight));
        t.free(out);
        brief(kHidden * n);
      }
      t.layer(kNone);
      for (int i = 0; i < 3; ++i) brief(kHidden * n);
      for (const auto r : saved[l]) t.free(r);
    }
    t.phase(trace::PhaseKind::kOptimizer);
    brief(kWeight);
    for (const auto r : gradients) t.free(r);
    t.step();
  }
  return t.finish();
}

plan::Plan planned(const Lengths& lengths, unsigned seed) {
  const trace::Trace trace = training(lengths, seed);
  return plan::make_plan(profile::profile_iteration(trace), {.time_limit = 1});
}

const Lengths kProfiled = {2000, 900, 4000, 1500, 3100};
const Lengths kServed = {700, 3900, 1200, 4000, 2500, 333, 3600, 1800, 4000, 64, 2900};

TEST(ChangingExperts, AreFoundByName) {
  const plan::Plan plan = planned(kProfiled, 1);
  EXPECT_EQ(plan.dynamic, (std::vector<std::string>{"layer0", "layer1", "layer2"}));
  EXPECT_FALSE(plan.groups.empty());
}

// Three sizes fit many laws by chance. A mixture of experts that is profiled in a few iterations
// must not look static.
TEST(ChangingExperts, AreNotMistakenForLaws) {
  for (const Lengths& lengths : {Lengths{2000, 900, 1500}, Lengths{2000, 900, 1500, 1900}}) {
    const plan::Plan plan = planned(lengths, 1);
    EXPECT_EQ(plan.dynamic.size(), static_cast<std::size_t>(kLayers)) << lengths.size();
  }
}

TEST(ChangingExperts, LieInThePlannedPool) {
  for (unsigned seed = 0; seed < 6; ++seed) {
    const plan::Plan plan = planned(kProfiled, seed);
    const replay::ReplayResult result = replay::replay_planned(training(kServed, 100 + seed), plan);
    EXPECT_LE(result.peak_reserved, result.peak_load + result.peak_load / 50) << seed;
  }
}

TEST(ChangingExperts, LongerBatchesAreLaidOutAnew) {
  for (unsigned seed = 0; seed < 6; ++seed) {
    const plan::Plan plan = planned({2000, 900, 1500, 1900}, seed);
    const replay::ReplayResult result =
        replay::replay_planned(training({700, 4000, 1200, 3000}, 100 + seed), plan);
    EXPECT_LE(result.peak_reserved, result.peak_load + result.peak_load / 50) << seed;
  }
}

// The rest of the program is static, as if the experts were tagged by the user.
TEST(ChangingExperts, DisturbNoStaticRequest) {
  for (unsigned seed = 0; seed < 6; ++seed) {
    const replay::ReplayResult result =
        replay::replay_planned(training(kServed, 100 + seed), planned(kProfiled, seed));
    EXPECT_EQ(result.misses, 0) << seed;
  }
}

}  // namespace
}  // namespace stalloc
