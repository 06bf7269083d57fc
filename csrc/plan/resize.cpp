#include "plan/resize.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <string>

#include "base/align.h"
#include "base/error.h"
#include "plan/slots.h"
#include "plan/startup_slots.h"
#include "solve/core/bound.h"

namespace stalloc::plan {
namespace {

using profile::Extent;
using profile::in_proportion;

// The largest size of a request: rounding it up does not overflow.
constexpr Bytes kLargest = trace::kLargestRequest;

// `extents` with the envelope's for the unknown ones.
std::vector<Extent> completed(const Plan& plan, std::span<const Extent> extents) {
  if (extents.size() != plan.extents.size()) {
    throw PlanError("extents: " + std::to_string(extents.size()) + " values, and the plan has " +
                    std::to_string(plan.extents.size()) + " names");
  }
  std::vector<Extent> all(extents.begin(), extents.end());
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (all[i] < 0) all[i] = plan.extents[i];
  }
  return all;
}

Bytes law_size(const Plan& plan, const profile::SizeLaw& law, std::span<const Extent> extents) {
  if (law.proof == profile::LawProof::kUnexplained) {
    Bytes size = law.constant;
    for (std::size_t i = 0; i < extents.size(); ++i) {
      if (extents[i] > plan.extents[i]) size = in_proportion(size, extents[i], plan.extents[i]);
    }
    return size;
  }
  const Bytes exact = profile::evaluate(law, extents);
  if (exact != kNone || law.divisor == 1) return exact;
  profile::SizeLaw whole = law;
  whole.divisor = 1;
  whole.step = 1;
  const Bytes numerator = profile::evaluate(whole, extents);
  if (numerator == kNone) return kNone;
  return align_up((numerator + law.divisor - 1) / law.divisor, law.step);
}

// Gives every row with a law its size at `extents`.
void set_sizes(Plan& plan, std::span<const Extent> extents) {
  const LawSizes before = law_sizes(plan, plan.extents);
  const LawSizes after = law_sizes(plan, extents);
  const auto set = [&](auto& rows) {
    for (auto& r : rows) {
      if (r.law != kNone) r.size = after[r.law];
    }
  };
  set(plan.decisions);
  set(plan.persistent);
  for (DynamicGroup& g : plan.groups) {
    if (g.law == kNone || g.size == 0) continue;
    g.size = align_up(in_proportion(g.size, after[g.law], before[g.law]), plan.alignment);
  }
  fit_slots(plan);
  plan.extents.assign(extents.begin(), extents.end());
}

// The most bytes of decisions and regions that are live at once, not rounded up.
Bytes load_of(const Plan& plan) {
  std::map<Tick, Bytes> changes;
  const auto add = [&](const auto& r) {
    if (r.upper > plan.period) {
      changes[0] += r.size;
      changes[r.upper - plan.period] -= r.size;
    } else {
      changes[r.upper] -= r.size;
    }
    changes[r.lower] += r.size;
  };
  std::ranges::for_each(plan.decisions, add);
  std::ranges::for_each(plan.groups, add);
  Bytes live = 0;
  Bytes most = 0;
  for (const auto& [tick, change] : changes) most = std::max(most, live += change);
  return most;
}

// Moves the resident region, and the requests in it, with the end of the pool.
void move_startup(Plan& plan, Bytes pool_before, const LawSizes& sizes) {
  for (StartupRequest& r : plan.startup) {
    if (r.offset >= pool_before) {
      r.offset += plan.pool - pool_before;
    } else {
      r.offset = kUnplaced;
      if (r.law != kNone) r.size = sizes[r.law];
    }
  }
}

}  // namespace

LawSizes law_sizes(const Plan& plan, std::span<const Extent> extents) {
  LawSizes sizes;
  sizes.reserve(plan.laws.size());
  for (const profile::SizeLaw& law : plan.laws) {
    const Bytes size = law_size(plan, law, extents);
    if (size < 0 || size > kLargest) {
      throw PlanError("laws, row " + std::to_string(sizes.size()) +
                      ": no size of a request at these extents");
    }
    sizes.push_back(std::max<Bytes>(size, 1));
  }
  return sizes;
}

Bytes bound_at(const Plan& plan, std::span<const Extent> extents) {
  const std::vector<Extent> all = completed(plan, extents);
  Plan sized = plan;
  set_sizes(sized, all);
  const solve::Problem problem = problem_of(sized);
  problem.check();
  return solve::load_bound(problem);
}

Plan resize(const Plan& plan, std::span<const Extent> extents, const ResizeOptions& options) {
  const std::vector<Extent> all = completed(plan, extents);
  Plan resized = plan;
  resized.walls = options.walls;
  set_sizes(resized, all);
  resized.load = std::max<Bytes>(plan.load + load_of(resized) - load_of(plan), 0);
  solve::Budget budget;
  budget.target = options.enough;
  budget.deadline =
      std::chrono::steady_clock::now() + std::chrono::duration_cast<std::chrono::nanoseconds>(
                                             std::chrono::duration<double>(options.time_limit));
  lay_out(resized, options.layout, budget);
  for (std::size_t i = 0; i < plan.groups.size(); ++i) {
    if (plan.is_kept(plan.groups[i])) resized.groups[i].reusable.clear();
  }
  move_startup(resized, plan.pool, law_sizes(plan, all));
  drop_startup_slots(resized);
  resized.check();
  return resized;
}

bool covers(std::span<const Extent> envelope, std::span<const Extent> extents) {
  for (std::size_t i = 0; i < extents.size(); ++i) {
    if (extents[i] > envelope[i]) return false;
  }
  return true;
}

}  // namespace stalloc::plan
