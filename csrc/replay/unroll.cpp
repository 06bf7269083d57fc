#include <algorithm>

#include "base/error.h"
#include "replay/replay.h"

namespace stalloc {

Trace unroll(const Plan& plan, std::int32_t turns) {
  plan.check();
  Trace trace;
  trace.info = plan.info;
  Tick end = 0;
  if (__builtin_mul_overflow(plan.period, turns, &end) || end == kNever) {
    throw PlanError("a period of " + std::to_string(plan.period) + " ticks is too long to replay");
  }
  trace.end = end + 1;
  for (Tick t = 0; t <= turns; ++t) {
    trace.iterations.push_back(t * plan.period);
    if (t == turns) break;
    for (const ProfiledPhase& p : plan.phases) {
      trace.phases.push_back({p.key, static_cast<std::int32_t>(t), t * plan.period + p.begin, end});
    }
  }
  for (std::size_t i = 1; i < trace.phases.size(); ++i) {
    trace.phases[i - 1].end = trace.phases[i].begin;
  }
  const auto span_at = [&](Tick tick) {
    const auto after = std::ranges::upper_bound(trace.phases, tick, {}, &PhaseSpan::begin);
    return static_cast<PhaseIndex>(std::max<std::ptrdiff_t>(after - trace.phases.begin() - 1, 0));
  };
  for (std::int32_t t = 0; t < turns; ++t) {
    for (const Decision& d : plan.decisions) {
      const Tick turn = t * plan.period;
      Request r;
      r.size = d.size;
      r.lower = turn + d.lower;
      r.phase_begin = d.phase + t * static_cast<PhaseIndex>(plan.phases.size());
      r.stream = d.stream;
      if (turn + d.lower < end && d.upper <= end - turn) {
        r.upper = turn + d.upper;
        r.phase_end = span_at(r.upper);
      }
      trace.requests.push_back(r);
    }
  }
  std::ranges::stable_sort(trace.requests, {}, &Request::lower);
  return trace;
}

}  // namespace stalloc
