// The lifetimes are safe to plan with. The reference's static requests are numbered 0, 1, 2,
// ... in order of allocation (counterparts.h), and `newest_before(tick)` is the largest number that
// a compared iteration had allocated before `tick`. A profiled lifetime lasts until after the
// allocation of number `newest_before(its free)`, the largest such number over all iterations.
//
// So if two static requests were live together in any iteration, their lifetimes in the profile
// overlap: the one that is older in the reference was freed, in that iteration, after the younger
// was allocated. This holds even if phases come in another order in each iteration.
//
// Any tick between that allocation and the next static one is equally safe. The profile takes the
// reference's own tick if it has one. Otherwise it takes the end of the phase that freed the
// request, so that the recorded phase stays right.
//
// Cost: O(n log n) for each compared iteration.
#include "profile/lifetimes.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

#include "base/error.h"
#include "profile/counterparts.h"
#include "profile/dynamic.h"
#include "profile/envelope.h"
#include "profile/law_fit.h"
#include "profile/seen_sizes.h"
#include "profile/short_iterations.h"
#include "profile/size_laws.h"
#include "profile/startup.h"
#include "trace/layers.h"

namespace stalloc::profile {
namespace {

// The lifetime of a request in one iteration.
struct Sighting {
  enum class Kind : std::uint8_t { kFreed, kReplaced, kStillAlive, kTooLong };

  Kind kind = Kind::kStillAlive;
  std::int32_t periods = 0;      // from its birth to its free, in iterations
  std::int32_t newest = kNone;   // static number; the request lives until after its allocation
  Tick tick = kNone;             // of the free, if the reference itself saw it
  PhaseIndex phase_end = kNone;  // index into Trace::phases
  LayerIndex layer_end = kNone;

  // True if this one ends later, or at the same number but at a known tick.
  bool outlives(const Sighting& other) const {
    return std::pair{std::pair{periods, newest}, tick} >
           std::pair{std::pair{other.periods, other.newest}, other.tick};
  }
};

class Profiler {
 public:
  Profiler(const Counterparts& all, const DynamicStays& stays)
      : all_(all), trace_(all.trace()), reference_(all.reference()), dynamic_stays_(stays) {
    has_one_stream_ =
        std::ranges::all_of(trace_.requests, [](const trace::Request& r) { return r.stream == 0; });
  }

  IterationProfile run() const {
    const std::int32_t count = all_.iteration(reference_).count;
    IterationProfile profile;
    profile.iteration = reference_;
    profile.compared = reference_ - all_.first_compared();
    profile.period = all_.period();
    profile.load = load();
    profile.phases = all_.phases().list();
    profile.requests.reserve(count);
    for (std::int32_t i = 0; i < count; ++i) profile.requests.push_back(profiled(i));
    if (!all_.laws().empty()) set_apart(profile);
    return profile;
  }

 private:
  // The lifetime of the counterpart of static request `i` in iteration `t`, which has one.
  Sighting sight(std::int32_t t, std::int32_t i) const {
    const trace::Request& r = all_.request(t, all_.match(t, i));
    Sighting sighting;
    if (t == reference_ && r.upper >= all_.iteration(t).end) return sighting;
    sighting.kind = Sighting::Kind::kTooLong;
    sighting.periods = r.upper < all_.iteration(t).end ? 0 : 1;
    const std::int32_t freed_in = t + sighting.periods;
    if (r.upper >= all_.iteration(freed_in).end) return sighting;
    sighting.newest = all_.newest_before(freed_in, r.upper);
    const bool replaced = sighting.periods == 1 && sighting.newest >= all_.number(i);
    sighting.kind = replaced ? Sighting::Kind::kReplaced : Sighting::Kind::kFreed;
    if (freed_in == reference_) sighting.tick = r.upper - all_.iteration(reference_).begin;
    sighting.phase_end = r.phase_end;
    sighting.layer_end = r.layer_end;
    return sighting;
  }

  // The longest life that any iteration saw. kTooLong if one saw more than a whole period, or if
  // the request outlives the reference and no other iteration tells its end.
  Sighting longest(std::int32_t i) const {
    Sighting result = sight(reference_, i);
    const bool passes_end = result.kind == Sighting::Kind::kStillAlive;
    for (std::int32_t t = all_.first_compared(); t < reference_; ++t) {
      if (all_.match(t, i) == kNone) continue;
      const Sighting sighting = sight(t, i);
      if (sighting.kind == Sighting::Kind::kTooLong) return sighting;
      if (result.kind == Sighting::Kind::kStillAlive || sighting.outlives(result)) {
        result = sighting;
      }
    }
    if (passes_end && result.periods == 0) result.kind = Sighting::Kind::kTooLong;
    return result;
  }

  // The tick, within its iteration, that stands for a sighting.
  Tick free_tick(const Sighting& sighting) const {
    return sighting.tick != kNone ? sighting.tick
                                  : all_.latest(sighting.newest, sighting.phase_end);
  }

  // True if any iteration has the request tagged as dynamic.
  bool is_tagged(std::int32_t i) const {
    for (std::int32_t t = all_.first_compared(); t <= reference_; ++t) {
      const std::int32_t index = all_.match(t, i);
      if (index != kNone && all_.request(t, index).dynamic) return true;
    }
    return false;
  }

  ProfiledRequest profiled(std::int32_t i) const {
    const IterationSpan& iteration = all_.iteration(reference_);
    const Tick period = all_.period();
    const trace::Request& r = all_.request(reference_, i);
    ProfiledRequest result;
    result.request = iteration.first + i;
    result.size = r.size;
    result.law = all_.law(reference_, i);
    result.lower = all_.birth(i);
    result.stream = r.stream;
    result.thread = r.thread;
    result.layer_begin = r.layer_begin;
    result.layer_end = r.layer_end;
    result.phase_begin = all_.phases().find(trace_[r.phase_begin].key);
    if (result.phase_begin == kNone) result.phase_begin = all_.phases().at(result.lower);
    const bool planned = all_.match(reference_, i) != kNone;
    result.dynamic = r.dynamic || is_tagged(i) ||
                     (planned && !all_.is_everywhere(i) && !all_.is_optional(i)) ||
                     dynamic_stays_.contains({trace_[r.phase_begin].key, r.layer_begin});

    bool wraps = false;
    if (all_.number(i) == kNone) {
      if (r.upper >= iteration.end) return persistent(result);
      result.upper = r.upper - iteration.begin;
      result.phase_end = all_.phases().at(result.upper);
    } else {
      const Sighting sighting = longest(i);
      const Tick tick = sighting.kind < Sighting::Kind::kStillAlive ? free_tick(sighting) : kNone;
      if (sighting.kind == Sighting::Kind::kReplaced && tick > result.lower &&
          (!varies(result) || may_take_turns(result))) {
        result.over = tick - result.lower;
        if (varies(result)) result.before = before_largest(result);
      }
      if (sighting.kind != Sighting::Kind::kFreed) return persistent(result);
      result.upper = tick + sighting.periods * period;
      wraps = sighting.periods > 0;
      // The reference's own tick is that of the free. Any other is one past it.
      result.phase_end =
          all_.phases().at(sighting.tick != kNone ? tick : std::max<Tick>(tick - 1, 0));
      result.layer_end = sighting.layer_end;
    }
    if (wraps) {
      result.lifetime = LifetimeClass::kWrapAround;
    } else {
      result.lifetime = result.phase_begin == result.phase_end ? LifetimeClass::kTransient
                                                               : LifetimeClass::kScoped;
    }
    return result;
  }

  // Makes small requests persistent that are all that lives when a microbatch begins, such as a
  // loss that the loop keeps. A larger pool replaces one only while that is empty.
  void set_apart(IterationProfile& profile) const {
    for (const ProfiledPhase& phase : profile.phases) {
      if (phase.key.kind != trace::PhaseKind::kForward) continue;
      std::vector<ProfiledRequest*> live;
      for (ProfiledRequest& r : profile.requests) {
        if (!profile.is_plannable(r)) continue;
        const bool begun = r.lower < phase.begin && phase.begin < r.upper + r.over;
        if (begun || phase.begin + profile.period < r.upper + r.over) live.push_back(&r);
      }
      const auto is_small = [](const ProfiledRequest* r) { return r->size < kSmallRequest; };
      if (!std::ranges::all_of(live, is_small)) continue;
      for (ProfiledRequest* r : live) {
        *r = persistent(*r);
        r->over = 0;
      }
    }
  }

  // True if a request whose size varies can have two places in turns: a layout in which it has the
  // other one comes into force when a forward begins. With several streams that is too expensive.
  bool may_take_turns(const ProfiledRequest& r) const {
    return has_one_stream_ && std::ranges::any_of(all_.phases().list(), [&](const auto& phase) {
             return phase.key.kind == trace::PhaseKind::kForward && phase.begin <= r.lower;
           });
  }

  // The size in the iteration before, of that with the largest size.
  Bytes before_largest(const ProfiledRequest& r) const {
    const SizeLaw& law = all_.laws()[r.law];
    if (law.source != LawSource::kOwn) return 0;
    const trace::PhaseKey& key = all_.phases().list()[r.phase_begin.position()].key;
    std::map<std::int32_t, Bytes> sizes;  // by iteration
    for (std::size_t p = 0; p < trace_.phases.size(); ++p) {
      const trace::PhaseSpan& span = trace_.phases[p];
      const std::vector<Extent>& extents = all_.laws().own[p];
      if (span.key == key && !extents.empty()) {
        sizes[span.iteration] = evaluate_at_least(law, extents);
      }
    }
    std::pair<Bytes, Bytes> largest = {0, 0};  // and the one before
    for (const auto& [iteration, size] : sizes) {
      const auto before = sizes.find(iteration - 1);
      if (before != sizes.end()) largest = std::max(largest, {size, before->second});
    }
    return largest.second;
  }

  bool varies(const ProfiledRequest& r) const {
    return r.law != kNone && !all_.laws()[r.law].terms.empty();
  }

  // Gives a persistent request the longest lifetime that a profile can express: a whole period.
  ProfiledRequest persistent(ProfiledRequest result) const {
    result.lifetime = LifetimeClass::kPersistent;
    result.upper = result.lower + all_.period();
    result.phase_end = result.phase_begin;
    result.layer_end = kNone;
    return result;
  }

  // The largest sum of bytes that are live at once in a compared iteration.
  Bytes load() const {
    Bytes most = 0;
    for (std::int32_t t = all_.first_compared(); t <= reference_; ++t) {
      most = std::max(most, load(all_.iteration(t)));
    }
    return most;
  }

  Bytes load(const IterationSpan& iteration) const {
    std::vector<std::pair<Tick, Bytes>> changes;
    for (const trace::Request& r : trace_.requests) {
      if (r.lower >= iteration.end) break;
      if (r.last() <= iteration.begin) continue;
      changes.emplace_back(std::max(r.lower, iteration.begin), r.size);
      if (r.last() < iteration.end) changes.emplace_back(r.last(), -r.size);
    }
    std::ranges::sort(changes);
    Bytes live = 0;
    Bytes most = 0;
    for (const auto& [tick, bytes] : changes) most = std::max(most, live += bytes);
    return most;
  }

  const Counterparts& all_;
  const trace::Trace& trace_;
  std::int32_t reference_;
  const DynamicStays& dynamic_stays_;
  bool has_one_stream_ = true;
};

// Profiles a trace. `modules` are dynamic, and their requests are tagged. If there are none, looks
// for some: if it finds any, it sets `modules` and returns nothing.
std::optional<IterationProfile> profile_with(const trace::Trace& trace,
                                             std::vector<std::string>& modules) {
  SizeLaws laws = find_size_laws(trace);
  // If no extent varies, the trace is its own envelope and need not be copied.
  std::optional<trace::Trace> enlarged;
  if (!laws.empty()) {
    laws.envelope = planned_extents(trace, laws);
    if (is_repeated(trace, laws)) {
      laws = no_laws(trace);
    } else {
      laws.envelope = fitting_extents(trace, laws);
    }
  }
  if (!laws.empty()) enlarged = at_envelope(trace, laws);
  const Counterparts all(enlarged ? *enlarged : trace, laws, trace);
  const DynamicStays stays = dynamic_stays(all);
  if (modules.empty()) {
    modules = dynamic_modules(all, stays);
    if (!modules.empty()) return std::nullopt;
  }
  IterationProfile profile = Profiler(all, stays).run();
  profile.recorded_load = recorded_load(trace);
  profile.laws = laws.laws;
  find_groups(all, profile);
  add_startup(all, profile);
  profile.dynamic_modules = modules;
  profile.extent_names = std::move(laws.extent_names);
  profile.fixed = std::move(laws.fixed);
  profile.envelope = std::move(laws.envelope);
  profile.seen = std::move(laws.seen);
  return profile;
}

// The trace with the requests of these modules tagged as dynamic.
trace::Trace tag(const trace::Trace& trace, std::span<const std::string> modules) {
  const std::vector<bool> is_dynamic = trace::layers_in(trace, modules);
  trace::Trace tagged = trace;
  for (trace::Request& r : tagged.requests) {
    if (r.layer_begin != kNone && is_dynamic[r.layer_begin.position()]) r.dynamic = true;
  }
  return tagged;
}

// The orders of one iteration, in its ticks.
std::vector<Order> orders_of(const trace::Trace& trace, std::int32_t iteration) {
  const Tick begin = trace.iterations[iteration];
  const Tick end = trace.iterations[iteration + 1];
  std::vector<Order> orders;
  for (Order o : trace.orders) {
    if (o.tick < begin || o.tick >= end) continue;
    o.tick -= begin;
    o.upto -= begin;
    orders.push_back(o);
  }
  return orders;
}

// The orders of a profiled iteration. If the recording ends while a stream is idle, nothing tells
// for how long: then the same row of the iteration before does, if that has the same rows.
std::vector<Order> repeating_orders(const trace::Trace& trace, std::int32_t iteration) {
  std::vector<Order> orders = orders_of(trace, iteration);
  const Tick end = trace.end - trace.iterations[iteration];
  const auto is_cut = [end](const Order& o) { return o.upto >= end; };
  if (iteration == 0 || std::ranges::none_of(orders, is_cut)) return orders;
  const std::vector<Order> before = orders_of(trace, iteration - 1);
  const auto place = [](const Order& o) { return std::tuple{o.tick, o.stream, o.after}; };
  if (!std::ranges::equal(orders, before, {}, place, place)) return orders;
  for (std::size_t i = 0; i < orders.size(); ++i) {
    if (is_cut(orders[i])) orders[i].upto = std::max(orders[i].upto, before[i].upto);
  }
  return orders;
}

}  // namespace

IterationProfile profile_iteration(const trace::Trace& recorded) {
  recorded.check();
  const std::optional<trace::Trace> even = even_out(recorded);
  const trace::Trace& trace = even ? *even : recorded;
  std::vector<std::string> modules;
  auto profile = profile_with(trace, modules);
  if (!profile) profile = profile_with(tag(trace, modules), modules);
  if (!even) profile->orders = repeating_orders(trace, profile->iteration);
  return std::move(*profile);
}

}  // namespace stalloc::profile
