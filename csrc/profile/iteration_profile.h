// The iteration profile: one iteration that stands for all of a trace. It says which requests come
// in every iteration, with which lifetime and size law, and which do not.
//
// Plain data. Thread-safe for concurrent reads.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/types.h"
#include "profile/size_law.h"
#include "trace/trace.h"

namespace stalloc::profile {

// Classes of lifetimes, from the iteration's point of view.
enum class LifetimeClass : std::uint8_t {
  kTransient,   // born and freed in one phase
  kScoped,      // born in one phase, freed in a later one of the same iteration
  kWrapAround,  // freed in the next iteration, before it is born again: circular
  kPersistent,  // outlives the next iteration, or was never freed: cannot be planned
};

std::string_view to_string(LifetimeClass c);

struct ProfiledRequest {
  std::int32_t request = kNone;  // index into Trace::requests
  Bytes size = 0;                // at the envelope
  LawIndex law = kNone;  // index into IterationProfile::laws; kNone: no law, the size as seen
  Tick lower = 0;        // 0 <= lower < period, ticks since the iteration began
  Tick upper = 0;  // lower < upper <= lower + period, as which kPersistent counts; past `period` it
                   // wraps round
  PhaseIndex phase_begin = kNone;  // index into IterationProfile::phases
  PhaseIndex phase_end = kNone;
  LayerIndex layer_begin = kNone;  // index into Trace::layers
  LayerIndex layer_end = kNone;
  StreamId stream = 0;
  ThreadOrdinal thread = 0;
  LifetimeClass lifetime = LifetimeClass::kTransient;
  // The ticks that a persistent request lives beyond `upper` if the next iteration replaces it and
  // frees it after it has made its like. 0 for any other.
  Tick over = 0;
  // If its size varies: that of the block that it replaces, where the request itself is largest. 0
  // if unknown.
  Bytes before = 0;
  bool dynamic = false;  // size or presence differs between iterations, or tagged
};

// A phase of the reference iteration, from its first span's beginning to its last one's end.
struct ProfiledPhase {
  trace::PhaseKey key;
  Tick begin = 0;  // since the iteration began
  Tick end = 0;
  // The microbatches whose extents the phase's requests follow, by their law's source. `own` is the
  // phase's own microbatch, else the one that began last before it, kNone before the first.
  // `upcoming` is the one that begins next in the iteration, kNone after the last: then it is the
  // first of the next iteration.
  std::int32_t own = kNone;
  std::int32_t upcoming = kNone;
};

// Fills `own` and `upcoming` of the phases of an iteration of `period` ticks, in order of their
// beginning. Phases of the first iteration alone, which add_startup() puts behind them, have none.
void tell_microbatches(std::vector<ProfiledPhase>& phases, Tick period);

// A dynamic request as one iteration saw it. Ticks of the trace.
struct DynamicSighting {
  // As asked; at the envelope if the request has a law; in the profiled batch that needs most if
  // its group has one.
  Bytes size = 0;
  Tick lower = 0;
  Tick upper = 0;  // kNever where the trace does not tell
};

// Requests below this size form one class of their own. A region for them costs next to nothing,
// and a small request in the region of a large one could block it.
inline constexpr Bytes kSmallRequest = Bytes{32} << 10;

// The observable features of a dynamic request before it is served: its size and those of the two
// requests before it at its site. A size that does not recur is replaced by its ratio to another
// (profile/roles.h).
struct DynamicContext {
  static constexpr Bytes kVaries = 0;    // neither recurs
  static constexpr Bytes kStart = -1;    // there is none before
  static constexpr Bytes kIgnored = -2;  // whatever it is
  static constexpr Bytes kSmall = -3;    // any below kSmallRequest
  static constexpr Bytes kUnsure = -4;   // one that recurs, but not after the one before it

  Bytes size = kIgnored;
  Bytes before = kIgnored;
  Bytes earlier = kIgnored;

  auto operator<=>(const DynamicContext&) const = default;
};

// A group of dynamic requests: their site and their window, the same in every iteration. See
// dynamic.h.
struct ProfiledGroup {
  PhaseIndex phase = kNone;    // index into IterationProfile::phases
  std::int32_t after = kNone;  // index into IterationProfile::requests, a plannable one of that
                               // phase; kNone at the beginning of the phase
  StreamId stream = 0;
  Tick lower = 0;  // the window, as ProfiledRequest's lifetime
  Tick upper = 0;
  PhaseIndex phase_end = kNone;
  // The contexts that tell its requests from those of the site's other groups, ascending. A request
  // whose context no group has belongs to the first group, which lives longest.
  std::vector<DynamicContext> contexts;
  LawIndex law = kNone;  // its need grows in proportion to it; kNone: the same for all extents
  // The requests by compared iteration, the reference last, each in order.
  std::vector<std::vector<DynamicSighting>> sightings;
};

// A group of dynamic requests that are kept: they outlive the next iteration, and no plan has a
// region for them. Members as in ProfiledGroup.
struct KeptGroup {
  PhaseIndex phase = kNone;
  std::int32_t after = kNone;
  StreamId stream = 0;
  std::vector<DynamicContext> contexts;
};

// A request of start-up or the first iteration that no later iteration makes, or that outlives them
// all. Ticks of the trace.
struct StartupSighting {
  Bytes size = 0;        // as asked; at the envelope where there is a law
  LawIndex law = kNone;  // as ProfiledRequest's
  Tick lower = 0;
  Tick upper = 0;              // kNever if it outlives the reference: it is permanent
  PhaseIndex phase = kNone;    // index into IterationProfile::phases
  std::int32_t after = kNone;  // as ProfiledGroup's
  StreamId stream = 0;
  bool recurs = false;  // later iterations make a counterpart, which is persistent too
};

// The lifetime of a plannable request in the first iteration. Ticks of the trace.
struct StartupStay {
  std::int32_t request = kNone;  // index into IterationProfile::requests
  Tick lower = 0;
  Tick upper = 0;  // kNever where the trace does not tell
};

// The requests of start-up and of the first iteration that are no plannable ones of every
// iteration, and the first iteration's lifetimes of those. See startup.h.
struct Startup {
  std::vector<StartupSighting> requests;  // in order of `lower`
  std::vector<StartupStay> stays;         // the same
  Tick work = 0;                          // when start-up is over: the first phase but kOther
  Tick end = 0;                           // of the first iteration
};

struct IterationProfile {
  std::int32_t iteration = kNone;         // the reference, index into Trace::iterations
  std::int32_t compared = 0;              // how many other iterations it was compared with
  Tick period = 0;                        // ticks of one iteration
  Bytes load = 0;                         // M_a: the largest sum of live bytes, as requested
  Bytes recorded_load = 0;                // the same in the whole trace, with its own extents
  std::vector<ProfiledPhase> phases;      // those of start-up alone come last, and are empty
  std::vector<ProfiledRequest> requests;  // every request of the reference, in order of `lower`
  std::vector<ProfiledGroup> groups;      // by phase, `after` and stream, the longest first
  std::vector<KeptGroup> kept;            // by phase, `after` and stream
  // The modules, by name, that were found to be dynamic in all their phases: their requests count
  // as tagged.
  std::vector<std::string> dynamic_modules;
  Startup startup;  // empty unless there are three iterations or more
  // The extents that vary between microbatches, and the laws of sizes in them. Empty if no extent
  // varies. See size_laws.h.
  std::vector<std::string> extent_names;
  std::vector<std::pair<std::string, Extent>> fixed;  // other extents, and the largest of each
  std::vector<Extent> envelope;                       // the largest of each that the trace has
  std::vector<std::vector<Extent>> seen;  // the distinct extents of microbatches, ascending
  std::vector<SizeLaw> laws;
  // The order of the program's streams in the reference iteration, in its ticks: `upto` is negative
  // where it only reaches into an earlier iteration.
  std::vector<Order> orders;

  const ProfiledPhase& operator[](PhaseIndex p) const { return phases[p.position()]; }
  const SizeLaw& operator[](LawIndex l) const { return laws[l.position()]; }

  // True if the request can be planned: it is not dynamic, not persistent, not of an unplanned
  // phase, and of the training thread. Only that thread's requests come in an order that can be
  // followed.
  bool is_plannable(const ProfiledRequest& r) const;
  // True if the law tells a size from extents.
  bool follows_extents(LawIndex law) const { return law != kNone && !(*this)[law].terms.empty(); }
  // `law` if sizes that follow it vary, else kNone.
  LawIndex varying(LawIndex law) const;
  // True for persistent requests that come in every iteration. They have no address in a plan, but
  // the matcher knows their position.
  bool is_recognisable(const ProfiledRequest& r) const;
};

}  // namespace stalloc::profile
