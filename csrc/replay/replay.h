// Replays a trace with an allocator: the same allocations and frees, in their order, without a
// device.
//
// Replay stops at the first request that does not fit. It takes the ticks of frees from the trace,
// so a free that waits for another stream comes when that wait was over.
#pragma once

#include <cstdint>
#include <optional>

#include "base/types.h"
#include "plan/plan.h"
#include "replay/caching_model.h"
#include "replay/placements.h"
#include "replay/stitching_model.h"
#include "trace/trace.h"

namespace stalloc::replay {

struct ReplayResult {
  // Over the last complete iteration, which stands for the rest of training; over the whole trace
  // if there is none.
  Bytes load = 0;       // the most bytes live at once, as asked: M_a
  Bytes reserved = 0;   // the most bytes held of the device: M_r
  Bytes peak_load = 0;  // the same two over all, start-up and warm-up included
  Bytes peak_reserved = 0;
  std::int64_t mallocs = 0;
  std::int64_t frees = 0;
  std::int64_t maps = 0;
  std::int64_t unmaps = 0;
  std::int32_t failed = kNone;  // the request that did not fit, index into Trace::requests
  // With a plan: the static requests of complete iterations that got their planned address, and
  // those that did not.
  std::int64_t hits = 0;
  std::int64_t misses = 0;
  // Likewise: the pool, and the most bytes that were live beside it in the last complete iteration
  // if stalloc's own fallback served them.
  Bytes pool = 0;
  Bytes beside = 0;
  std::int64_t moves = 0;  // of memory within the pool; on a device each waits for its work

  std::int64_t native_calls() const { return mallocs + frees + maps + unmaps; }
  double efficiency() const {
    return reserved > 0 ? static_cast<double>(load) / static_cast<double>(reserved) : 1.0;
  }
};

// Replays under torch's policy. Records all addresses in `placements` unless it is null. Throws
// TraceError if the trace fails check().
ReplayResult replay_caching(const trace::Trace& trace, const CachingSettings& settings,
                            Placements* placements = nullptr);

// Replays under GMLake's policy. Throws as replay_caching().
ReplayResult replay_stitching(const trace::Trace& trace, const StitchingSettings& settings);

struct PlannedReplay {
  Bytes capacity = CachingSettings::kUnlimited;  // of the device
  bool reuse = true;                             // as Serving::Scope's
  // False: the plan is enabled after start-up, and its resident region stays empty.
  bool startup = true;
  // Torch's settings where its allocator serves the requests outside the pool, as in native mode.
  // `capacity` above replaces theirs. Empty: stalloc's own fallback serves them, as in compat mode.
  std::optional<CachingSettings> torch = {};
  // True if stalloc has turned their expandable segments on: then what is idle in them goes before
  // a new peak (runtime/thrift_policy.h).
  bool thrifty = false;
  // Each piece of memory counts as a multiple of this in ReplayResult's reserved bytes: a power of
  // two.
  Bytes page = 1;
};

// Replays under stalloc's own runtime with this plan. With `startup` the plan is enabled from the
// beginning of the run, if the trace begins there. `placements` gets no address of a request that
// torch serves. Throws TraceError as above, and PlanError if the plan is not valid.
ReplayResult replay_planned(const trace::Trace& trace, const plan::Plan& plan,
                            const PlannedReplay& options = {}, Placements* placements = nullptr);

// Makes a trace of a plan, to replay a plan whose trace is not available. The trace has the planned
// iteration `repetitions` times: its static requests and, with `startup`, the permanent requests of
// start-up in the first iteration.
trace::Trace unroll(const plan::Plan& plan, std::int32_t repetitions, bool startup = true);

}  // namespace stalloc::replay
