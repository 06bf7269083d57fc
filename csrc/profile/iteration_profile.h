// An iteration profile: the one iteration that stands for all of a trace. Which requests come back
// every time, with which lifetime and size law, and which do not.
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

// How long a request lives, from the iteration's point of view.
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

// A dynamic request as one iteration saw it. Ticks of the trace.
struct DynamicSighting {
  Bytes size = 0;  // as asked; at the envelope where there is a law
  Tick lower = 0;
  Tick upper = 0;        // kNever where the trace does not tell
  LawIndex law = kNone;  // as ProfiledRequest's
};

// Sizes below this are told apart from others, and not from each other: room for them costs next to
// nothing, and one that is taken for another kind may get in the way of what is large.
inline constexpr Bytes kSmallRequest = Bytes{32} << 10;

// What is to be seen of a dynamic request before it is served: its size and those of the two
// before it at its place, where they recur, or else their ratios (trace/roles.h).
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

// Where dynamic requests are asked for and how long they live, alike in every iteration; see
// dynamic.h.
struct DynamicPlace {
  PhaseIndex phase = kNone;    // index into IterationProfile::phases
  std::int32_t after = kNone;  // index into IterationProfile::requests, a plannable one of that
                               // phase; kNone at the beginning of the phase
  StreamId stream = 0;
  Tick lower = 0;  // the window, as ProfiledRequest's lifetime
  Tick upper = 0;
  PhaseIndex phase_end = kNone;
  // What tells its requests from those that are asked for at the same place and live longer or
  // shorter: ascending. What no such place knows belongs to the first, which lives longest.
  std::vector<DynamicContext> contexts;
  // By compared iteration, the reference's last: what was asked for, in order.
  std::vector<std::vector<DynamicSighting>> sightings;
};

// Where dynamic requests are asked for that are kept: they outlive the next iteration, and no plan
// has room for them. As DynamicPlace's.
struct KeptPlace {
  PhaseIndex phase = kNone;
  std::int32_t after = kNone;
  StreamId stream = 0;
  std::vector<DynamicContext> contexts;
};

// A request of the opening (start-up and the first iteration) that no later iteration makes, or
// that outlives them all. Ticks of the trace.
struct OpeningSighting {
  Bytes size = 0;        // as asked; at the envelope where there is a law
  LawIndex law = kNone;  // as ProfiledRequest's
  Tick lower = 0;
  Tick upper = 0;              // kNever where it outlives the reference: it stays
  PhaseIndex phase = kNone;    // index into IterationProfile::phases
  std::int32_t after = kNone;  // as DynamicPlace's
  StreamId stream = 0;
  bool recurs = false;  // a later iteration makes its like, which is persistent, too
};

// When a request that can be planned was alive in the first iteration. Ticks of the trace.
struct OpeningStay {
  std::int32_t request = kNone;  // index into IterationProfile::requests
  Tick lower = 0;
  Tick upper = 0;  // kNever where the trace does not tell
};

// What the run's beginning asks for besides an iteration's own requests; see opening.h.
struct Opening {
  std::vector<OpeningSighting> requests;  // in order of `lower`
  std::vector<OpeningStay> stays;         // the same
  Tick work = 0;                          // when start-up is over: the first phase but kOther
  Tick end = 0;                           // of the first iteration
};

struct IterationProfile {
  std::int32_t iteration = kNone;  // the reference, index into Trace::iterations
  std::int32_t compared = 0;       // how many other iterations it was compared with
  Tick period = 0;                 // ticks of one iteration
  Bytes load = 0;                  // M_a of the reference: largest sum of live bytes, as requested
  std::vector<ProfiledPhase> phases;      // those of the opening alone come last, and are empty
  std::vector<ProfiledRequest> requests;  // every request of the reference, in order of `lower`
  std::vector<DynamicPlace> places;       // by phase, `after` and stream, the longest first
  std::vector<KeptPlace> kept;            // by phase, `after` and stream
  Opening opening;                        // empty unless there are three iterations or more
  // The extents that vary between microbatches, and the laws of sizes in them; empty where none
  // varies. See size_laws.h.
  std::vector<std::string> extent_names;
  std::vector<std::pair<std::string, std::string>> coinciding;  // another name, and its equal
  std::vector<Extent> envelope;           // the largest of each that the trace has
  std::vector<std::vector<Extent>> seen;  // the distinct extents of microbatches, ascending
  std::vector<SizeLaw> laws;

  // Requests that can be planned ahead: not dynamic, not persistent, not of an unplanned phase, and
  // of the training thread, whose requests alone come in an order that can be followed.
  bool is_plannable(const ProfiledRequest& r) const;
  // `law` where sizes that follow it vary, else kNone.
  LawIndex varying(LawIndex law) const;
  // Persistent ones that come as reliably; they have no address in a plan, and a place.
  bool is_recognisable(const ProfiledRequest& r) const;
};

}  // namespace stalloc::profile
