// Plan::check(): the conditions that a plan meets before it serves a request.
#include <algorithm>
#include <limits>
#include <set>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>

#include "base/error.h"
#include "plan/boxes.h"
#include "plan/covered.h"
#include "plan/plan.h"
#include "plan/slots.h"
#include "plan/startup.h"
#include "plan/startup_slots.h"
#include "plan/turns.h"
#include "profile/roles.h"
#include "verify/idle_validator.h"
#include "verify/validator.h"

namespace stalloc::plan {
namespace {

std::string named(std::string_view table, std::size_t row) {
  return std::string(table) + ", row " + std::to_string(row) + ": ";
}

void check_phases(const Plan& plan) {
  std::set<trace::PhaseKey> seen;
  for (std::size_t i = 0; i < plan.phases.size(); ++i) {
    const trace::PhaseKey& key = plan.phases[i].key;
    const Tick begin = plan.phases[i].begin;
    const Tick end = plan.phases[i].end;
    if (key.kind == trace::PhaseKind::kUnplanned) {
      throw PlanError(named("phases", i) + "an unplanned phase in a plan");
    }
    if (key.microbatch < kNone || key.chunk < 0 || key.occurrence < 0) {
      throw PlanError(named("phases", i) + "a negative microbatch, chunk or occurrence");
    }
    if (begin < 0 || end < begin || end > plan.period) {
      throw PlanError(named("phases", i) + "runs from tick " + std::to_string(begin) + " to " +
                      std::to_string(end) + ", outside the iteration's " +
                      std::to_string(plan.period));
    }
    if (!seen.insert(key).second) throw PlanError(named("phases", i) + "the phase is there twice");
  }
}

// Checks a decision or a group.
void check_lifetime(const Plan& plan, const auto& d, std::string_view table, std::size_t row) {
  const bool ends = d.phase_end == kNone || d.phase_end.points_into(plan.phases);
  if (!d.phase.points_into(plan.phases) || !ends) {
    throw PlanError(named(table, row) + "lives from phase " + to_string(d.phase) + " to " +
                    to_string(d.phase_end) + ", but there are " +
                    std::to_string(plan.phases.size()) + " phases");
  }
  if (d.stream < 0) throw PlanError(named(table, row) + "a negative stream");
  if (d.lower < 0 || d.lower >= plan.period || d.upper <= d.lower ||
      d.upper - d.lower > plan.period) {
    throw PlanError(named(table, row) + "lives from tick " + std::to_string(d.lower) + " to " +
                    std::to_string(d.upper) + ", which an iteration of " +
                    std::to_string(plan.period) + " ticks cannot hold");
  }
}

void check_decisions(const Plan& plan) {
  for (std::size_t i = 0; i < plan.decisions.size(); ++i) {
    const Decision& d = plan.decisions[i];
    if (d.size <= 0) {
      throw PlanError(named("decisions", i) + "a size of " + std::to_string(d.size) +
                      " bytes is not positive");
    }
    check_lifetime(plan, d, "decisions", i);
    if (i == 0) continue;
    const Decision& before = plan.decisions[i - 1];
    if (std::pair{before.phase, before.lower} >= std::pair{d.phase, d.lower}) {
      throw PlanError(named("decisions", i) + "out of order: they go by phase, then by tick");
    }
  }
}

void check_reusable(const Plan& plan, std::size_t row) {
  Offset last = kNone;  // where the range before it ends
  for (const auto& [begin, end] : plan.groups[row].reusable) {
    if (begin <= last || end <= begin || end > plan.pool || begin % plan.alignment != 0) {
      throw PlanError(named("groups", row) + "the reusable range from " + std::to_string(begin) +
                      " to " + std::to_string(end) +
                      " is out of order, empty, not aligned or outside the pool");
    }
    last = end;
  }
}

void check_contexts(const Plan& plan, std::size_t row) {
  const auto& contexts = plan.groups[row].contexts;
  for (std::size_t i = 0; i < contexts.size(); ++i) {
    const auto& [size, before, earlier] = contexts[i];
    const auto is_one_before = [](Bytes of) {
      return of >= profile::DynamicContext::kIgnored || of == profile::DynamicContext::kUnsure ||
             profile::Ratio::is_code(of);
    };
    const bool is_size = size >= profile::DynamicContext::kVaries ||
                         size == profile::DynamicContext::kSmall ||
                         size == profile::DynamicContext::kUnsure || profile::Ratio::is_code(size);
    if (!is_size || !is_one_before(before) || !is_one_before(earlier)) {
      throw PlanError(named("groups", row) + "a context's sizes are " + std::to_string(size) +
                      ", " + std::to_string(before) + " and " + std::to_string(earlier));
    }
    if (i > 0 && contexts[i - 1] >= contexts[i]) {
      throw PlanError(named("groups", row) + "its contexts are out of order");
    }
  }
}

// Checks a group or a persistent request.
void check_after(const Plan& plan, const auto& r, std::string_view table, std::size_t row) {
  const bool follows = r.after.points_into(plan.decisions) && plan[r.after].phase == r.phase;
  if (r.after != kNone && !follows) {
    throw PlanError(named(table, row) + "comes after decision " + to_string(r.after) +
                    ", which is none of its phase");
  }
}

void check_host(const Plan& plan, std::size_t row) {
  const DynamicGroup& g = plan.groups[row];
  if (g.host == kNone) return;
  const bool is_row = g.host >= GroupIndex(0) && g.host <= GroupIndex(row);
  const bool fits = is_row && plan[g.host].host == g.host && plan[g.host].stream == g.stream &&
                    plan[g.host].phase <= g.phase && plan[g.host].lower <= g.lower &&
                    plan[g.host].upper >= g.upper;
  if (!fits || (g.host != GroupIndex(row) && g.size > 0)) {
    throw PlanError(named("groups", row) + "cannot use the region of group " + to_string(g.host));
  }
}

void check_groups(const Plan& plan) {
  for (std::size_t i = 0; i < plan.groups.size(); ++i) {
    const DynamicGroup& g = plan.groups[i];
    if (g.size < 0 || g.size % plan.alignment != 0) {
      throw PlanError(named("groups", i) + "a region of " + std::to_string(g.size) +
                      " bytes is negative or no multiple of " + std::to_string(plan.alignment));
    }
    check_lifetime(plan, g, "groups", i);
    check_after(plan, g, "groups", i);
    check_host(plan, i);
    check_contexts(plan, i);
    check_reusable(plan, i);
    if (i == 0) continue;
    const DynamicGroup& before = plan.groups[i - 1];
    if (std::tie(before.phase, before.after, before.stream) >
        std::tie(g.phase, g.after, g.stream)) {
      throw PlanError(named("groups", i) +
                      "out of order: they go by phase, then by decision, then by stream");
    }
  }
}

void check_persistent(const Plan& plan) {
  for (std::size_t i = 0; i < plan.persistent.size(); ++i) {
    const PersistentRequest& r = plan.persistent[i];
    if (!r.phase.points_into(plan.phases)) {
      throw PlanError(named("persistent", i) + "belongs to phase " + to_string(r.phase) +
                      ", but there are " + std::to_string(plan.phases.size()) + " phases");
    }
    if (r.size <= 0 || r.stream < 0) {
      throw PlanError(named("persistent", i) + "a size of " + std::to_string(r.size) +
                      " bytes on stream " + std::to_string(r.stream));
    }
    check_after(plan, r, "persistent", i);
    if (i == 0) continue;
    const PersistentRequest& before = plan.persistent[i - 1];
    if (std::tie(before.phase, before.after) > std::tie(r.phase, r.after)) {
      throw PlanError(named("persistent", i) + "out of order: they go by phase, then by decision");
    }
  }
}

void check_law(const Plan& plan, const auto& rows, std::string_view table) {
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const profile::LawIndex law = rows[i].law;
    if (law != kNone && !law.points_into(plan.laws)) {
      throw PlanError(named(table, i) + "follows law " + to_string(law) + ", but there are " +
                      std::to_string(plan.laws.size()));
    }
  }
}

void check_extents(const Plan& plan) {
  const std::size_t names = plan.extent_names.size();
  const auto check_row = [&](const std::vector<profile::Extent>& row, const std::string& where) {
    if (row.size() != names) {
      throw PlanError(where + std::to_string(row.size()) + " values for " + std::to_string(names) +
                      " names of extents");
    }
    for (const profile::Extent value : row) {
      if (value < kNone || value > trace::kLargestRequest) {
        throw PlanError(where + "an extent of " + std::to_string(value));
      }
    }
  };
  check_row(plan.extents, "extents: ");
  for (const auto& [name, value] : plan.fixed_extents) {
    if (value < kNone || value > trace::kLargestRequest) {
      throw PlanError("fixed_extents, " + name + ": an extent of " + std::to_string(value));
    }
  }
  for (std::size_t i = 0; i < plan.seen.size(); ++i) check_row(plan.seen[i], named("seen", i));
}

void check_laws(const Plan& plan) {
  check_extents(plan);
  for (std::size_t i = 0; i < plan.laws.size(); ++i) {
    const profile::SizeLaw& law = plan.laws[i];
    if (law.divisor <= 0 || law.step <= 0) {
      throw PlanError(named("laws", i) + "a divisor of " + std::to_string(law.divisor) +
                      " and a step of " + std::to_string(law.step) + " must be positive");
    }
    for (const profile::LawTerm& term : law.terms) {
      for (const profile::ExtentIndex factor : term.factors) {
        if (factor != kNone && !factor.points_into(plan.extent_names)) {
          throw PlanError(named("laws", i) + "extent " + to_string(factor) + ", but there are " +
                          std::to_string(plan.extent_names.size()));
        }
      }
    }
  }
  check_law(plan, plan.decisions, "decisions");
  check_law(plan, plan.groups, "groups");
  check_law(plan, plan.persistent, "persistent");
  check_law(plan, plan.startup, "startup");
}

// Checks that nothing lies in the reusable space.
void check_idle(const Plan& plan, const solve::Problem& problem, const solve::Layout& layout) {
  std::vector<verify::IdleClaim> claims;
  for (const DynamicGroup& g : plan.groups) {
    for (const auto& [begin, end] : g.reusable) {
      claims.push_back({begin, end, g.lower, g.upper, g.stream});
    }
  }
  try {
    verify::validate_idle(problem, layout, claims);
  } catch (const PlanError& error) {
    throw PlanError("groups, reusable ranges (as claims on buffers: decisions, then groups): " +
                    std::string(error.what()));
  }
}

}  // namespace

void Plan::check() const {
  if (alignment <= 0) throw PlanError("alignment: " + std::to_string(alignment) + " bytes");
  if (period < 0) throw PlanError("period: " + std::to_string(period) + " ticks");
  if (load < 0) throw PlanError("load: " + std::to_string(load) + " bytes");
  if (recorded_load < 0 || recorded_load > std::numeric_limits<Bytes>::max() / 2) {
    throw PlanError("recorded_load: " + std::to_string(recorded_load) + " bytes");
  }
  if (bound < 0 || pool < bound) {
    throw PlanError("pool: " + std::to_string(pool) + " bytes, less than the bound of " +
                    std::to_string(bound));
  }
  check_phases(*this);
  check_decisions(*this);
  check_groups(*this);
  check_persistent(*this);
  check_laws(*this);
  check_turns(*this);
  if (headroom < 0) throw PlanError("headroom: " + std::to_string(headroom) + " per cent");
  const solve::Problem problem = problem_of(*this);
  problem.check();
  const solve::Layout layout = layout_of(*this);
  try {
    verify::validate(problem, layout);
  } catch (const PlanError& error) {
    throw PlanError("decisions, then groups (as buffers, by row): " + std::string(error.what()));
  }
  check_idle(*this, problem, layout);
  check_covered(*this);
  check_startup(*this);
  check_slots(*this, check_boxes(*this));
  check_startup_slots(*this);
}

}  // namespace stalloc::plan
