// Plans for tests: from given decisions, and of random training programs.
#pragma once

#include <algorithm>
#include <random>
#include <vector>

#include "base/align.h"
#include "plan/plan.h"
#include "plan/reusable.h"
#include "solve/core/planner.h"
#include "solve/portfolio.h"

namespace stalloc::testing {

inline plan::Decision decision(Bytes size, Offset offset, Tick lower, Tick upper) {
  plan::Decision d;
  d.size = size;
  d.offset = offset;
  d.lower = lower;
  d.upper = upper;
  return d;
}

// `count` decisions of `size` bytes side by side, made every other tick, that live to `upper`.
inline std::vector<plan::Decision> side_by_side(int count, Bytes size, Tick upper) {
  std::vector<plan::Decision> decisions;
  for (int i = 0; i < count; ++i) decisions.push_back(decision(size, i * size, 2 * i, upper));
  return decisions;
}

// A group of the first phase with a region, behind decision `after`.
inline plan::DynamicGroup group(std::int32_t after, Bytes size, Offset offset, Tick lower,
                                Tick upper) {
  plan::DynamicGroup g;
  g.phase = g.phase_end = 0;
  g.after = after;
  g.size = size;
  g.offset = offset;
  g.lower = lower;
  g.upper = upper;
  return g;
}

// A plan with one phase (forward, microbatch 0) unless the decisions name others. Pool and bound
// come from the decisions.
inline plan::Plan plan_of(std::vector<plan::Decision> decisions, Tick period,
                          std::int32_t phases = 1) {
  plan::Plan plan;
  plan.period = period;
  for (std::int32_t p = 0; p < phases; ++p) {
    plan.phases.push_back({{trace::PhaseKind::kForward, p, 0, 0}, 0, period});
  }
  for (plan::Decision& d : decisions) {
    if (d.phase == kNone) d.phase = 0;
    if (d.phase_end == kNone) d.phase_end = d.phase;
    plan.pool = std::max(plan.pool, d.offset + align_up(d.size, plan.alignment));
  }
  plan.bound = plan.pool;
  std::stable_sort(decisions.begin(), decisions.end(),
                   [](const plan::Decision& a, const plan::Decision& b) {
                     return std::pair(a.phase, a.lower) < std::pair(b.phase, b.lower);
                   });
  plan.decisions = std::move(decisions);
  return plan;
}

// A plan for 16 tokens: a decision of as many times `unit` bytes as the batch has tokens.
inline plan::Plan block_of_tokens(Bytes unit) {
  plan::Decision d = decision(16 * unit, 0, 0, 10);
  d.law = 0;
  plan::Plan plan = plan_of({d}, 10);
  plan.extent_names = {"ids.0"};
  plan.extents = {16};
  plan.seen = {{16}};
  profile::SizeLaw law;
  law.terms = {{unit, {0, kNone, kNone}}};
  plan.laws = {law};
  return plan;
}

// A plan of `requests` random requests over `phases` phases and several streams, which may share
// addresses or not. Some requests wrap round. Sizes repeat, as in training.
inline plan::Plan random_plan(std::mt19937& random, int requests, std::int32_t phases,
                              StreamId streams = 1,
                              solve::Streams reuse = solve::Streams::kSeparate, Bytes scale = 300) {
  const auto pick = [&](int low, int high) {
    return std::uniform_int_distribution<int>(low, high)(random);
  };
  std::vector<Bytes> sizes;
  for (int i = 0; i < std::max(1, requests / 6); ++i) sizes.push_back(pick(1, 64) * scale);

  // Two ticks a request: a random order of allocations and frees on the circle.
  const Tick period = 2 * requests;
  std::vector<Tick> ticks(static_cast<std::size_t>(period));
  for (Tick t = 0; t < period; ++t) ticks[static_cast<std::size_t>(t)] = t;
  std::vector<plan::Decision> decisions;
  std::shuffle(ticks.begin(), ticks.end(), random);
  for (int i = 0; i < requests; ++i) {
    plan::Decision d;
    d.size = sizes[static_cast<std::size_t>(pick(0, static_cast<int>(sizes.size()) - 1))];
    const Tick a = ticks[static_cast<std::size_t>(2 * i)];
    const Tick b = ticks[static_cast<std::size_t>(2 * i + 1)];
    d.lower = pick(0, 9) == 0 ? std::max(a, b) : std::min(a, b);
    d.upper = d.lower == a ? b : a;
    // Most lifetimes are short.
    if (d.upper > d.lower && pick(0, 3) > 0)
      d.upper = std::min<Tick>(d.upper, d.lower + pick(1, 9));
    if (d.upper < d.lower) d.upper += period;
    if (streams > 1) d.stream = pick(0, streams - 1);
    decisions.push_back(d);
  }
  solve::Problem problem;
  problem.period = period;
  problem.streams = reuse;
  for (const plan::Decision& d : decisions) {
    solve::Buffer b;
    b.size = d.size;
    b.lower = d.lower;
    b.upper = d.upper;
    b.stream = d.stream;
    problem.buffers.push_back(b);
  }
  const solve::Layout layout =
      streams > 1 ? solve::solve(problem, {.search_steps = 0}, solve::Budget{}).layout
                  : solve::planners().front()->plan(problem, solve::Budget{});
  const Tick per_phase = (period + phases - 1) / phases;
  for (std::size_t i = 0; i < decisions.size(); ++i) {
    decisions[i].offset = layout.offsets[i];
    decisions[i].phase = decisions[i].lower / per_phase;
    decisions[i].phase_end = (decisions[i].upper % period) / per_phase;
  }
  plan::Plan plan = plan_of(std::move(decisions), period, phases);
  plan.streams = reuse;
  Tick begin = 0;
  for (profile::ProfiledPhase& phase : plan.phases) {
    phase.begin = begin;
    phase.end = begin = std::min(period, begin + per_phase);
  }
  return plan;
}

// Turns every `nth` decision of a plan into a group of dynamic requests with the decision's
// addresses as its region. One of the group's sizes recurs (512 to 2048 bytes). Its reusable space
// is all addresses that are idle through its window.
inline plan::Plan with_groups(plan::Plan plan, std::size_t nth) {
  solve::Problem problem;
  problem.period = plan.period;
  solve::Layout layout;
  layout.height = plan.pool;
  std::vector<plan::Decision> decisions;
  std::vector<plan::Window> windows;
  for (std::size_t i = 0; i < plan.decisions.size(); ++i) {
    const plan::Decision& d = plan.decisions[i];
    problem.buffers.push_back(
        {.size = d.size, .lower = d.lower, .upper = d.upper, .stream = d.stream});
    layout.offsets.push_back(d.offset);
    if (i % nth != 0) {
      decisions.push_back(d);
      continue;
    }
    plan::DynamicGroup group;
    group.phase = group.phase_end = d.phase;
    group.after = decisions.empty() || decisions.back().phase != d.phase
                      ? kNone
                      : plan::DecisionIndex(decisions.size()) - 1;
    group.size = align_up(d.size, plan.alignment);
    group.offset = d.offset;
    group.lower = d.lower;
    group.upper = d.upper;
    group.stream = d.stream;
    group.contexts = {{.size = 512 * static_cast<Bytes>(1 + i % 4), .before = 0}};
    plan.groups.push_back(group);
    windows.push_back({d.lower, d.upper, d.stream});
  }
  const auto reusable = plan::reusable_space(problem, layout, windows);
  for (std::size_t g = 0; g < plan.groups.size(); ++g) plan.groups[g].reusable = reusable[g];
  plan.decisions = std::move(decisions);
  return plan;
}

// Lets each group use the region of an earlier one whose window holds its own, if there is one.
inline void share_regions(plan::Plan& plan) {
  for (plan::GroupIndex g(0); g.points_into(plan.groups); ++g) {
    plan::DynamicGroup& group = plan[g];
    group.host = g;
    for (plan::GroupIndex h(0); h < g; ++h) {
      const plan::DynamicGroup& host = plan[h];
      if (host.host != h || host.stream != group.stream || host.lower > group.lower ||
          host.upper < group.upper) {
        continue;
      }
      group.host = h;
      group.size = group.offset = 0;
      break;
    }
  }
}

}  // namespace stalloc::testing
