// Training that replaces state instead of updating it, as a trace and as its plan.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <random>
#include <vector>

#include "plan/build.h"
#include "profile/lifetimes.h"
#include "replay/replay.h"
#include "trace/trace.h"

namespace stalloc::testing {

inline constexpr Bytes kUnit = 512;

// Training that replaces `states` states of several sizes in each iteration, besides activations
// that live in between.
struct FunctionalTraining {
  int ahead = 1;             // states that are made before the first old one is freed
  Bytes activation = kUnit;  // bytes of the smallest activation
  bool startup = false;      // start-up makes the states that the first iteration replaces
};

inline trace::Trace functional_training(int states, int iterations, std::mt19937& random,
                                        const FunctionalTraining& options = {}) {
  trace::Trace trace;
  trace.info["device"] = "cuda";
  Tick now = 0;
  const auto request = [&](Bytes size) {
    trace.requests.push_back({.size = size, .lower = now++, .phase_begin = 0});
    return trace.requests.size() - 1;
  };
  const auto release = [&](std::size_t i) { trace.requests[i].upper = now++; };
  std::vector<Bytes> sizes;
  for (int i = 0; i < states; ++i) {
    sizes.push_back(kUnit * std::vector<Bytes>{1, 4, 16}[random() % 3]);
  }
  std::vector<std::size_t> live;
  for (int t = 0; t < iterations; ++t) {
    trace.iterations.push_back(now);
    if (t == 0 && options.startup) {
      for (const Bytes size : sizes) live.push_back(request(size));
    }
    std::vector<std::size_t> activations;
    for (int i = 0; i < 20; ++i) activations.push_back(request(options.activation * (1 + i % 7)));
    for (const std::size_t i : activations) release(i);
    std::vector<std::size_t> next;
    for (int i = 0; i < states + options.ahead; ++i) {
      if (i < states) next.push_back(request(sizes[static_cast<std::size_t>(i)]));
      const int old = i - options.ahead + 1;
      if (old >= 0 && old < states && !live.empty()) release(live[static_cast<std::size_t>(old)]);
    }
    live = next;
  }
  trace.iterations.push_back(now);
  trace.end = now + 1;
  for (int t = 0; t < iterations; ++t) {
    trace.phases.push_back({{trace::PhaseKind::kForward, 0, 0, 0},
                            t,
                            trace.iterations[static_cast<std::size_t>(t)],
                            trace.iterations[static_cast<std::size_t>(t) + 1]});
  }
  const auto phase_at = [&](Tick tick) {
    const auto after = std::ranges::upper_bound(trace.iterations, tick);
    return std::min(static_cast<PhaseIndex>(after - trace.iterations.begin()) - 1,
                    static_cast<PhaseIndex>(iterations) - 1);
  };
  trace.phases.back().end = trace.end;
  for (trace::Request& r : trace.requests) {
    r.phase_begin = phase_at(r.lower);
    if (r.upper != kNever) r.phase_end = phase_at(r.upper);
  }
  return trace;
}

inline plan::Plan plan_of_trace(const trace::Trace& trace) {
  return plan::make_plan(profile::profile_iteration(trace), {.time_limit = 1});
}

// Replays `trace` under `plan`, and fails the test if two live requests share an address. O(n^2).
inline void expect_no_shared_address(const trace::Trace& trace, const plan::Plan& plan) {
  replay::Placements placements(trace.requests.size());
  replay::replay_planned(trace, plan, {}, &placements);
  const std::vector<Offset>& at = placements.addresses();
  for (std::size_t i = 0; i < at.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      const trace::Request& a = trace.requests[i];
      const trace::Request& b = trace.requests[j];
      const bool meet = a.lower < b.upper && b.lower < a.upper;
      EXPECT_FALSE(meet && at[i] < at[j] + b.size && at[j] < at[i] + a.size) << i << " " << j;
    }
  }
}

}  // namespace stalloc::testing
