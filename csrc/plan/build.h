// Makes the plan of a profiled iteration.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <optional>
#include <string>

#include "plan/plan.h"
#include "profile/lifetimes.h"

namespace stalloc::plan {

struct PlanOptions {
  std::string algorithm = {};  // empty: the portfolio
  Bytes alignment = kDefaultAlignment;
  // Seconds for all layouts. Without a limit, the work of each is limited: the plan depends neither
  // on the machine nor on its load.
  std::optional<double> time_limit = {};
  bool regions = true;  // false: groups have reusable space only
  bool dynamic = true;  // false: the plan has no groups
  solve::Streams streams = solve::Streams::kSeparate;
  // Separate streams share addresses all the same where the program orders them itself (shared.h).
  bool share = false;
  // The envelope, by name. Missing extents keep their profiled values. docs/changing-batches.md
  // explains the names.
  std::map<std::string, profile::Extent> extents = {};
};

// Plans one profiled iteration and validates the plan. The caller fills its `info` and
// `fingerprint`. Throws PlanError for invalid options.
Plan make_plan(const profile::IterationProfile& profile, const PlanOptions& options,
               const std::atomic<bool>* cancel = nullptr,
               const std::function<void(double)>& progress = {});

}  // namespace stalloc::plan
