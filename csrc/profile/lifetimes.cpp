// Why the lifetimes are safe to plan with. The reference's static requests are numbered 0, 1, 2,
// ... in order of allocation (counterparts.h), and `newest_before(tick)` is the largest number that
// a compared iteration had allocated before `tick`. A request is taken to live until after the
// allocation of number `newest_before(its free)`, the largest such number over all iterations. So
// wherever two static requests were alive together in any of them, their lifetimes in the profile
// overlap too, also when phases come in another order from one iteration to the next: whichever of
// the two is older in the reference was freed, in that iteration, after the younger was allocated.
//
// Between that allocation and the next static one any tick is as safe as any other. The reference's
// own tick is taken where it has one, else the end of the phase that freed the request, so that its
// phases stay true.
//
// Cost: O(n log n) for each compared iteration.
#include "profile/lifetimes.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "base/error.h"
#include "profile/counterparts.h"
#include "profile/dynamic.h"
#include "profile/opening.h"
#include "profile/size_laws.h"

namespace stalloc::profile {
namespace {

// How long one iteration saw a request live.
struct Sighting {
  enum class Kind : std::uint8_t { kFreed, kReplaced, kStillAlive, kTooLong };

  Kind kind = Kind::kStillAlive;
  std::int32_t turn = 0;         // iterations after that of its birth
  std::int32_t newest = kNone;   // static number; the request lives until after its allocation
  Tick tick = kNone;             // of the free, where the reference itself saw it
  PhaseIndex phase_end = kNone;  // index into Trace::phases
  LayerIndex layer_end = kNone;

  // Later than, and at the same place better known than.
  bool outlives(const Sighting& other) const {
    return std::pair{std::pair{turn, newest}, tick} >
           std::pair{std::pair{other.turn, other.newest}, other.tick};
  }
};

class Profiler {
 public:
  explicit Profiler(const Counterparts& all)
      : all_(all),
        trace_(all.trace()),
        reference_(all.reference()),
        dynamic_stays_(dynamic_stays(all)) {}

  IterationProfile run() const {
    const std::int32_t count = all_.turn(reference_).count;
    IterationProfile profile;
    profile.iteration = reference_;
    profile.compared = reference_ - all_.first_compared();
    profile.period = all_.period();
    profile.load = load();
    profile.phases = all_.phases().list();
    profile.requests.reserve(count);
    for (std::int32_t i = 0; i < count; ++i) profile.requests.push_back(profiled(i));
    return profile;
  }

 private:
  // What iteration `t` saw of its counterpart to the static request `i`.
  Sighting sight(std::int32_t t, std::int32_t i) const {
    const trace::Request& r = all_.request(t, all_.match(t, i));
    Sighting sighting;
    if (t == reference_ && r.upper >= all_.turn(t).end) return sighting;
    sighting.kind = Sighting::Kind::kTooLong;
    sighting.turn = r.upper < all_.turn(t).end ? 0 : 1;
    const std::int32_t freed_in = t + sighting.turn;
    if (r.upper >= all_.turn(freed_in).end) return sighting;
    sighting.newest = all_.newest_before(freed_in, r.upper);
    const bool replaced = sighting.turn == 1 && sighting.newest >= all_.number(i);
    sighting.kind = replaced ? Sighting::Kind::kReplaced : Sighting::Kind::kFreed;
    if (freed_in == reference_) sighting.tick = r.upper - all_.turn(reference_).begin;
    sighting.phase_end = r.phase_end;
    sighting.layer_end = r.layer_end;
    return sighting;
  }

  // The longest life any iteration saw. kTooLong where one saw more than a whole turn, or where
  // the reference saw it pass its end and no other can tell what comes then.
  Sighting longest(std::int32_t i) const {
    Sighting result = sight(reference_, i);
    const bool passes_end = result.kind == Sighting::Kind::kStillAlive;
    for (std::int32_t t = all_.first_compared(); t < reference_; ++t) {
      const Sighting sighting = sight(t, i);
      if (sighting.kind == Sighting::Kind::kTooLong) return sighting;
      if (result.kind == Sighting::Kind::kStillAlive || sighting.outlives(result)) {
        result = sighting;
      }
    }
    if (passes_end && result.turn == 0) result.kind = Sighting::Kind::kTooLong;
    return result;
  }

  // The tick, within its turn, that stands for a sighting.
  Tick free_tick(const Sighting& sighting) const {
    return sighting.tick != kNone ? sighting.tick
                                  : all_.latest(sighting.newest, sighting.phase_end);
  }

  // Whether any iteration has it tagged as dynamic.
  bool is_tagged(std::int32_t i) const {
    for (std::int32_t t = all_.first_compared(); t <= reference_; ++t) {
      const std::int32_t index = all_.match(t, i);
      if (index != kNone && all_.request(t, index).dynamic) return true;
    }
    return false;
  }

  ProfiledRequest profiled(std::int32_t i) const {
    const Turn& turn = all_.turn(reference_);
    const Tick period = all_.period();
    const trace::Request& r = all_.request(reference_, i);
    ProfiledRequest result;
    result.request = turn.first + i;
    result.size = r.size;
    result.law = all_.law(reference_, i);
    result.lower = all_.birth(i);
    result.stream = r.stream;
    result.thread = r.thread;
    result.layer_begin = r.layer_begin;
    result.layer_end = r.layer_end;
    result.phase_begin = all_.phases().find(trace_.phases[r.phase_begin].key);
    if (result.phase_begin == kNone) result.phase_begin = all_.phases().at(result.lower);
    const bool planned = all_.match(reference_, i) != kNone;
    result.dynamic = r.dynamic || is_tagged(i) || (planned && !all_.is_everywhere(i)) ||
                     dynamic_stays_.contains({trace_.phases[r.phase_begin].key, r.layer_begin});

    bool wraps = false;
    if (all_.number(i) == kNone) {
      if (r.upper >= turn.end) return persistent(result);
      result.upper = r.upper - turn.begin;
      result.phase_end = all_.phases().at(result.upper);
    } else {
      const Sighting sighting = longest(i);
      const Tick tick = sighting.kind < Sighting::Kind::kStillAlive ? free_tick(sighting) : kNone;
      if (sighting.kind == Sighting::Kind::kReplaced && tick > result.lower) {
        result.over = tick - result.lower;
      }
      if (sighting.kind != Sighting::Kind::kFreed) return persistent(result);
      result.upper = tick + sighting.turn * period;
      wraps = sighting.turn > 0;
      // A tick of the reference's own is that of the free; any other is the one after it.
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

  // A whole turn is all that the profile can say of it.
  ProfiledRequest persistent(ProfiledRequest result) const {
    result.lifetime = LifetimeClass::kPersistent;
    result.upper = result.lower + all_.period();
    result.phase_end = result.phase_begin;
    result.layer_end = kNone;
    return result;
  }

  // The largest sum of bytes alive at once within the reference.
  Bytes load() const {
    const Turn& turn = all_.turn(reference_);
    std::vector<std::pair<Tick, Bytes>> changes;
    for (const trace::Request& r : trace_.requests) {
      if (r.lower >= turn.end) break;
      if (r.upper <= turn.begin) continue;
      changes.emplace_back(std::max(r.lower, turn.begin), r.size);
      if (r.upper < turn.end) changes.emplace_back(r.upper, -r.size);
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
  std::set<std::pair<trace::PhaseKey, LayerIndex>> dynamic_stays_;
};

}  // namespace

IterationProfile profile_iteration(const trace::Trace& trace) {
  trace.check();
  SizeLaws laws = find_size_laws(trace);
  // Where no extent varies, the trace is its own envelope and need not be copied.
  std::optional<trace::Trace> enlarged;
  if (!laws.empty()) enlarged = at_envelope(trace, laws);
  const Counterparts all(enlarged ? *enlarged : trace, laws);
  IterationProfile profile = Profiler(all).run();
  find_places(all, profile);
  add_opening(all, profile);
  profile.extent_names = std::move(laws.extent_names);
  profile.coinciding = std::move(laws.coinciding);
  profile.envelope = std::move(laws.envelope);
  profile.seen = std::move(laws.seen);
  profile.laws = std::move(laws.laws);
  return profile;
}

}  // namespace stalloc::profile
