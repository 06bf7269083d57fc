// From a profiled iteration to its plan.
#pragma once

#include <atomic>
#include <functional>
#include <string>

#include "plan/plan.h"
#include "profile/lifetimes.h"

namespace stalloc::plan {

struct PlanOptions {
  std::string algorithm = {};  // empty: the portfolio
  Bytes alignment = kDefaultAlignment;
  double time_limit = 10.0;  // seconds
  bool regions = true;       // off: groups have only what the static requests leave idle
  bool dynamic = true;       // off: no groups
  solve::Streams streams = solve::Streams::kSeparate;
};

// Plans one profiled iteration. The result has been validated; its `info` and `fingerprint` are the
// caller's to fill. Throws PlanError for options that make no sense.
Plan make_plan(const profile::IterationProfile& profile, const PlanOptions& options,
               const std::atomic<bool>* cancel = nullptr,
               const std::function<void(double)>& progress = {});

}  // namespace stalloc::plan
