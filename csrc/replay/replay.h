// What allocators would have done with a trace: the same allocations and frees, in their order,
// with no device behind them.
//
// Replay stops at the first request that does not fit. A free is what the trace says it is, so one
// that waits for another stream is at the tick at which it was completed.
#pragma once

#include <cstdint>

#include "base/types.h"
#include "plan/plan.h"
#include "replay/caching_model.h"
#include "replay/placements.h"
#include "trace/trace.h"

namespace stalloc::replay {

struct ReplayResult {
  // Over the last complete iteration, or over all when there is none: what training goes on with.
  Bytes load = 0;       // the most bytes live at once, as asked: M_a
  Bytes reserved = 0;   // the most bytes held of the device: M_r
  Bytes peak_load = 0;  // the same two over all, start-up and warm-up included
  Bytes peak_reserved = 0;
  std::int64_t mallocs = 0;
  std::int64_t frees = 0;
  std::int64_t maps = 0;
  std::int64_t unmaps = 0;
  std::int32_t failed = kNone;  // the request that did not fit, index into Trace::requests
  // Of a plan: static requests of complete iterations served at their planned address, and not.
  std::int64_t hits = 0;
  std::int64_t misses = 0;

  std::int64_t native_calls() const { return mallocs + frees + maps + unmaps; }
  double efficiency() const {
    return reserved > 0 ? static_cast<double>(load) / static_cast<double>(reserved) : 1.0;
  }
};

// Under torch's policy. Where everything lay is noted in `placements`, unless that is null. Throws
// TraceError when the trace fails check().
ReplayResult replay_caching(const trace::Trace& trace, const CachingSettings& settings,
                            Placements* placements = nullptr);

struct PlannedReplay {
  Bytes capacity = CachingSettings::kUnlimited;  // of the device
  bool reuse = true;                             // as PlannedAllocator::Scope's
  // False: the plan comes into force after start-up, and nothing lies in its resident region.
  bool startup = true;
};

// Under stalloc's own runtime with this plan; with `startup` from the beginning of the run, if the
// trace begins there. Throws TraceError as above, and PlanError when the plan is not sound.
ReplayResult replay_planned(const trace::Trace& trace, const plan::Plan& plan,
                            const PlannedReplay& options = {}, Placements* placements = nullptr);

// The iteration that a plan lays out, `turns` times in a row: its static requests and, with
// `opening`, in the first one what the opening makes for good. For replaying a plan whose trace is
// not at hand.
trace::Trace unroll(const plan::Plan& plan, std::int32_t turns, bool opening = true);

}  // namespace stalloc::replay
