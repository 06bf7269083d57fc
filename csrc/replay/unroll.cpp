// The first iteration also has the requests of start-up. Each comes right after its site and moves
// all later events by a tick.
#include <algorithm>
#include <utility>
#include <vector>

#include "base/error.h"
#include "replay/replay.h"

namespace stalloc::replay {
namespace {

// The position of a permanent start-up request, in the plan's ticks: before the events of that tick
// and after the beginning of its phase.
struct Insertion {
  Tick tick = 0;
  PhaseIndex phase = kNone;
  std::size_t row = 0;  // of Plan::startup
};

std::vector<Insertion> insertions(const plan::Plan& plan) {
  std::vector<Insertion> result;
  for (std::size_t i = 0; i < plan.startup.size(); ++i) {
    const plan::StartupRequest& r = plan.startup[i];
    if (!r.stays() || r.offset == kUnplaced) continue;
    const Tick tick = r.after == kNone ? plan[r.phase].begin : plan[r.after].lower + 1;
    result.push_back({tick, r.phase, i});
  }
  std::ranges::stable_sort(result, {},
                           [](const Insertion& i) { return std::pair{i.tick, i.phase}; });
  return result;
}

}  // namespace

trace::Trace unroll(const plan::Plan& plan, std::int32_t repetitions, bool startup) {
  plan.check();
  trace::Trace trace;
  trace.info = plan.info;
  const std::vector<Insertion> inserted = startup ? insertions(plan) : std::vector<Insertion>();
  const auto extra = static_cast<Tick>(inserted.size());
  Tick end = 0;
  if (__builtin_mul_overflow(plan.period, repetitions, &end) || end >= kNever - extra - 1) {
    throw PlanError("a period of " + std::to_string(plan.period) + " ticks is too long to replay");
  }
  // The tick of an event, and of the beginning of a phase, after the insertions.
  const auto moved = [&](Tick tick) {
    const auto after = std::ranges::upper_bound(inserted, tick, {}, &Insertion::tick);
    return tick + (after - inserted.begin());
  };
  const auto begun = [&](Tick tick, PhaseIndex phase) {
    const auto after =
        std::ranges::lower_bound(inserted, std::pair{tick, phase}, {},
                                 [](const Insertion& i) { return std::pair{i.tick, i.phase}; });
    return tick + (after - inserted.begin());
  };
  trace.end = end + extra + 1;
  for (Tick t = 0; t <= repetitions; ++t) {
    const Tick start = t * plan.period;
    trace.iterations.push_back(t == 0 ? 0 : start + extra);
    if (t == repetitions) break;
    for (std::size_t p = 0; p < plan.phases.size(); ++p) {
      const Tick begin = start + plan.phases[p].begin;
      trace.phases.push_back({plan.phases[p].key, static_cast<std::int32_t>(t),
                              t == 0 ? begun(begin, PhaseIndex(p)) : begin + extra, end + extra});
    }
  }
  for (std::size_t i = 1; i < trace.phases.size(); ++i) {
    trace.phases[i - 1].end = trace.phases[i].begin;
  }
  const auto span_at = [&](Tick tick) {
    const auto after = std::ranges::upper_bound(trace.phases, tick, {}, &trace::PhaseSpan::begin);
    return PhaseIndex(std::max<std::ptrdiff_t>(after - trace.phases.begin() - 1, 0));
  };
  for (std::int32_t t = 0; t < repetitions; ++t) {
    for (const plan::Decision& d : plan.decisions) {
      const Tick start = t * plan.period;
      trace::Request r;
      r.size = d.size;
      r.lower = moved(start + d.lower);
      r.phase_begin = d.phase + t * std::ssize(plan.phases);
      r.stream = d.stream;
      if (start + d.lower < end && d.upper <= end - start && d.over <= end - start - d.upper) {
        r.upper = moved(start + d.upper + d.over);
        r.phase_end = span_at(r.upper);
      }
      trace.requests.push_back(r);
    }
  }
  for (std::size_t i = 0; repetitions > 0 && i < inserted.size(); ++i) {
    const plan::StartupRequest& o = plan.startup[inserted[i].row];
    trace::Request r;
    r.size = o.size;
    r.lower = inserted[i].tick + static_cast<Tick>(i);
    r.phase_begin = o.phase;
    r.stream = o.stream;
    trace.requests.push_back(r);
  }
  std::ranges::stable_sort(trace.requests, {}, &trace::Request::lower);
  return trace;
}

}  // namespace stalloc::replay
