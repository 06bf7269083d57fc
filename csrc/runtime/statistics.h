// The figures that the runtime counts while a plan is enabled.
#pragma once

#include "base/types.h"

namespace stalloc::runtime {

// A quantity that rises and falls, and the highest it has been.
struct Gauge {
  Bytes current = 0;
  Bytes peak = 0;

  void add(Bytes amount) {
    current += amount;
    if (current > peak) peak = current;
  }
  void reset_peak() { peak = current; }
};

// Counts are of requests since enable(); gauges are in bytes. Sizes are those of the requests,
// except in names with "reserved".
struct Statistics {
  std::int64_t iterations = 0;        // completed
  std::int64_t planned = 0;           // decisions of one iteration
  std::int64_t hits = 0;              // decisions served at their planned address
  std::int64_t misses = 0;            // decisions of completed iterations without a hit; a repeated
                                      // phase may make up for them
  std::int64_t startup = 0;           // requests of start-up with an address in the plan
  std::int64_t startup_requests = 0;  // of these, served at this address
  std::int64_t conflicts = 0;  // of requests matched to a decision whose addresses were taken
  std::int64_t dynamic_requests = 0;           // of dynamic groups, wherever they were served
  std::int64_t dynamic_region_requests = 0;    // served from their group's region
  std::int64_t dynamic_reused_requests = 0;    // served from idle space of the static plan
  std::int64_t dynamic_fallback_requests = 0;  // served by the fallback
  std::int64_t idle_requests = 0;              // not in the plan: served from idle pool space
  std::int64_t unplanned_requests = 0;         // of evaluations and the like, wherever served
  std::int64_t evaluation_requests = 0;        // of these, where the layout of evaluations has them
  std::int64_t persistent_requests = 0;        // served by the fallback, as the plan has it
  std::int64_t fallback_requests = 0;          // served by the fallback
  std::int64_t relayouts = 0;                  // exchanges of the layout; for tests
  std::int64_t stream_waits = 0;  // of one stream for another, which an ordered plan requires
  std::int64_t handed_back = 0;   // blocks freed before the streams that still used them were done
  std::int64_t moves = 0;         // of memory within the pool; each waits for the device
  std::int64_t pools_left = 0;    // no request gets memory of such a pool any more
  Gauge allocated;                // all live blocks: M_a
  Gauge reserved;                 // pool and fallback segments: M_r
  Bytes run_peak_allocated = 0;   // since enable(), whatever reset the gauges' peaks
  Bytes run_peak_reserved = 0;
  Gauge fallback;        // live blocks of the fallback
  Gauge dynamic;         // live dynamic blocks, wherever they are
  Gauge dynamic_region;  // of these, in regions
  Gauge dynamic_reused;  // of these, in idle space of the static plan
  Bytes pool = 0;
  Bytes resident = 0;  // of the resident region, when it was reserved
  Bytes fallback_reserved = 0;
  std::int64_t live_blocks = 0;  // in the pool
  std::int64_t strays = 0;       // of these, outside their planned lifetime

  // All requests. Each is counted once.
  std::int64_t requests() const {
    return hits + startup_requests + dynamic_region_requests + dynamic_reused_requests +
           evaluation_requests + idle_requests + fallback_requests;
  }
  // Requests that were served as planned.
  std::int64_t served_as_planned() const {
    return hits + startup_requests + dynamic_region_requests + dynamic_reused_requests +
           evaluation_requests + persistent_requests;
  }
};

}  // namespace stalloc::runtime
