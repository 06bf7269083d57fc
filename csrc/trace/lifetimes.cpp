// Why the lifetimes are safe to plan with. Number the reference's static requests of the training
// thread, the only ones that are planned, 0, 1, 2, ... in order of allocation. For a compared
// iteration, `newest_before(tick)` is the largest number that iteration had allocated before
// `tick`. A request is taken to live until after the allocation of number `newest_before(its
// free)`, the largest such number over all iterations. So wherever two static requests were alive
// together in any of them, their lifetimes in the profile overlap too, also when phases come in
// another order from one iteration to the next: whichever of the two is older in the reference was
// freed, in that iteration, after the younger was allocated.
//
// Between that allocation and the next static one any tick is as safe as any other. The reference's
// own tick is taken where it has one, else the end of the phase that freed the request, so that its
// phases stay true.
//
// Cost: O(n log n) for each compared iteration, and alignment.h's.
#include "trace/lifetimes.h"

#include <algorithm>
#include <array>
#include <map>
#include <utility>

#include "base/error.h"
#include "trace/alignment.h"

namespace stalloc {
namespace {

// A complete iteration: [begin, end) in ticks and the requests born in it.
struct Turn {
  Tick begin = 0;
  Tick end = 0;
  std::int32_t first = 0;  // index into Trace::requests
  std::int32_t count = 0;
};

std::int32_t first_request_at(const Trace& trace, Tick tick) {
  const auto it = std::ranges::lower_bound(trace.requests, tick, {}, &Request::lower);
  return static_cast<std::int32_t>(it - trace.requests.begin());
}

std::vector<Turn> complete_turns(const Trace& trace) {
  std::vector<Turn> turns;
  for (std::size_t i = 1; i < trace.iterations.size(); ++i) {
    Turn turn{trace.iterations[i - 1], trace.iterations[i]};
    turn.first = first_request_at(trace, turn.begin);
    turn.count = first_request_at(trace, turn.end) - turn.first;
    turns.push_back(turn);
  }
  return turns;
}

// The planned requests of one iteration by where they are asked for, each list in order.
using Place = std::pair<PhaseKey, ThreadOrdinal>;
struct Sequence {
  std::vector<Token> tokens;
  std::vector<std::int32_t> requests;  // relative to Turn::first
};

std::map<Place, Sequence> by_place(const Trace& trace, const Turn& turn) {
  std::map<Place, Sequence> places;
  Sequence* current = nullptr;
  PhaseIndex phase = kNone;
  ThreadOrdinal thread = kNone;
  for (std::int32_t i = 0; i < turn.count; ++i) {
    const Request& r = trace.requests[turn.first + i];
    const PhaseKey& key = trace.phases[r.phase_begin].key;
    if (key.kind == PhaseKind::kUnplanned) continue;
    if (!current || r.phase_begin != phase || r.thread != thread) {
      phase = r.phase_begin;
      thread = r.thread;
      current = &places[{key, thread}];
    }
    current->tokens.push_back({r.size, r.stream});
    current->requests.push_back(i);
  }
  return places;
}

// For each request of the iteration with places `a`, which has `count`, its counterpart in that
// with places `b`, or kNone. All relative to Turn::first.
std::vector<std::int32_t> counterparts(const std::map<Place, Sequence>& a, std::int32_t count,
                                       const std::map<Place, Sequence>& b) {
  std::vector<std::int32_t> result(count, kNone);
  for (const auto& [place, ours] : a) {
    const auto theirs = b.find(place);
    if (theirs == b.end()) continue;
    const auto matches = align_sequences(ours.tokens, theirs->second.tokens);
    for (std::size_t i = 0; i < matches.size(); ++i) {
      if (matches[i] != kNone) result[ours.requests[i]] = theirs->second.requests[matches[i]];
    }
  }
  return result;
}

// The reference's phases, one for each key, and which of them it is at any tick.
class Phases {
 public:
  Phases(const Trace& trace, const Turn& turn) {
    for (const PhaseSpan& span : trace.phases) {
      const bool empty_within =
          span.begin == span.end && turn.begin <= span.begin && span.begin < turn.end;
      if (!empty_within && (span.begin >= turn.end || span.end <= turn.begin)) continue;
      add(span.key, std::max(span.begin, turn.begin) - turn.begin,
          std::min(span.end, turn.end) - turn.begin);
    }
    if (list_.empty()) add({}, 0, turn.end - turn.begin);
  }

  // The phase at `tick` of the iteration; before the first and after the last, that one.
  PhaseIndex at(Tick tick) const {
    const auto after = std::ranges::upper_bound(spans_, tick, {}, &Span::begin);
    return after == spans_.begin() ? spans_.front().phase : std::prev(after)->phase;
  }

  // The phase of that key, or kNone.
  PhaseIndex find(const PhaseKey& key) const {
    const auto it = index_.find(key);
    return it == index_.end() ? kNone : it->second;
  }

  const std::vector<ProfiledPhase>& list() const { return list_; }

 private:
  struct Span {
    Tick begin;
    PhaseIndex phase;
  };

  void add(const PhaseKey& key, Tick begin, Tick end) {
    const auto [it, is_new] = index_.try_emplace(key, static_cast<PhaseIndex>(list_.size()));
    if (is_new) list_.push_back({key, begin, end});
    list_[it->second].end = end;
    spans_.push_back({begin, it->second});
  }

  std::vector<ProfiledPhase> list_;
  std::vector<Span> spans_;
  std::map<PhaseKey, PhaseIndex> index_;
};

// How long one iteration saw a request live.
struct Sighting {
  enum class Kind : std::uint8_t { kFreed, kStillAlive, kTooLong };

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
  explicit Profiler(const Trace& trace)
      : trace_(trace),
        turns_(complete_turns(trace)),
        reference_(last(turns_)),
        first_compared_(turns_.size() >= 3 ? 1 : 0),
        phases_(trace, turns_[reference_]) {
    align();
    number_statics();
  }

  IterationProfile run() const {
    const Turn& turn = turns_[reference_];
    IterationProfile profile;
    profile.iteration = reference_;
    profile.compared = reference_ - first_compared_;
    profile.period = turn.end - turn.begin;
    profile.load = load();
    profile.phases = phases_.list();
    profile.requests.reserve(turn.count);
    for (std::int32_t i = 0; i < turn.count; ++i) profile.requests.push_back(profiled(i));
    return profile;
  }

 private:
  static std::int32_t last(const std::vector<Turn>& turns) {
    if (turns.empty()) {
      throw TraceError(
          "the trace holds no complete iteration: profile at least one, better three, and mark the "
          "end of each with step()");
    }
    return static_cast<std::int32_t>(turns.size()) - 1;
  }

  const Request& request(std::int32_t turn, std::int32_t index) const {
    return trace_.requests[turns_[turn].first + index];
  }

  void align() {
    const auto count = turns_[reference_].count;
    const auto ours = by_place(trace_, turns_[reference_]);
    matches_.resize(turns_.size());
    for (std::int32_t t = first_compared_; t < reference_; ++t) {
      matches_[t] = counterparts(ours, count, by_place(trace_, turns_[t]));
    }
    matches_[reference_] = std::vector<std::int32_t>(count, kNone);
    for (const auto& [place, sequence] : ours) {
      for (const std::int32_t i : sequence.requests) matches_[reference_][i] = i;
    }
  }

  bool is_everywhere(std::int32_t i) const {
    for (std::int32_t t = first_compared_; t <= reference_; ++t) {
      if (matches_[t][i] == kNone) return false;
    }
    return true;
  }

  void number_statics() {
    const auto count = turns_[reference_].count;
    number_.assign(count, kNone);
    for (std::int32_t i = 0; i < count; ++i) {
      if (request(reference_, i).thread != 0 || !is_everywhere(i)) continue;
      number_[i] = static_cast<std::int32_t>(statics_.size());
      statics_.push_back(i);
    }
    newest_.resize(turns_.size());
    for (std::int32_t t = first_compared_; t <= reference_; ++t) {
      std::vector<std::int32_t> number(turns_[t].count, kNone);
      for (const std::int32_t i : statics_) number[matches_[t][i]] = number_[i];
      auto& newest = newest_[t];
      newest.reserve(number.size() + 1);
      newest.push_back(kNone);
      for (const std::int32_t n : number) newest.push_back(std::max(newest.back(), n));
    }
  }

  // The largest static number that iteration `t` had allocated before `tick`, or kNone.
  std::int32_t newest_before(std::int32_t t, Tick tick) const {
    const std::int32_t allocated = first_request_at(trace_, tick) - turns_[t].first;
    return newest_[t][std::clamp(allocated, 0, turns_[t].count)];
  }

  // What iteration `t` saw of its counterpart to the static request `i`.
  Sighting sight(std::int32_t t, std::int32_t i) const {
    const Request& r = request(t, matches_[t][i]);
    Sighting sighting;
    if (t == reference_ && r.upper >= turns_[t].end) return sighting;
    sighting.kind = Sighting::Kind::kTooLong;
    sighting.turn = r.upper < turns_[t].end ? 0 : 1;
    const std::int32_t freed_in = t + sighting.turn;
    if (r.upper >= turns_[freed_in].end) return sighting;
    sighting.newest = newest_before(freed_in, r.upper);
    if (sighting.turn == 1 && sighting.newest >= number_[i]) return sighting;
    sighting.kind = Sighting::Kind::kFreed;
    if (freed_in == reference_) sighting.tick = r.upper - turns_[reference_].begin;
    sighting.phase_end = r.phase_end;
    sighting.layer_end = r.layer_end;
    return sighting;
  }

  // The longest life any iteration saw. kTooLong where one saw more than a whole turn, or where
  // the reference saw it pass its end and no other can tell what comes then.
  Sighting longest(std::int32_t i) const {
    Sighting result = sight(reference_, i);
    const bool passes_end = result.kind == Sighting::Kind::kStillAlive;
    for (std::int32_t t = first_compared_; t < reference_; ++t) {
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
    if (sighting.tick != kNone) return sighting.tick;
    const auto next = static_cast<std::size_t>(sighting.newest + 1);
    const Tick latest = next < statics_.size() ? birth(statics_[next])
                                               : turns_[reference_].end - turns_[reference_].begin;
    const Tick earliest = sighting.newest == kNone ? 0 : birth(statics_[sighting.newest]) + 1;
    const PhaseIndex phase = phases_.find(trace_.phases[sighting.phase_end].key);
    const Tick phase_end = phase == kNone ? latest : phases_.list()[phase].end;
    return phase_end >= earliest ? std::min(latest, phase_end) : latest;
  }

  Tick birth(std::int32_t i) const {
    return request(reference_, i).lower - turns_[reference_].begin;
  }

  ProfiledRequest profiled(std::int32_t i) const {
    const Turn& turn = turns_[reference_];
    const Tick period = turn.end - turn.begin;
    const Request& r = request(reference_, i);
    ProfiledRequest result;
    result.request = turn.first + i;
    result.size = r.size;
    result.lower = birth(i);
    result.stream = r.stream;
    result.thread = r.thread;
    result.layer_begin = r.layer_begin;
    result.layer_end = r.layer_end;
    result.phase_begin = phases_.find(trace_.phases[r.phase_begin].key);
    if (result.phase_begin == kNone) result.phase_begin = phases_.at(result.lower);
    const bool planned = matches_[reference_][i] != kNone;
    result.dynamic = r.dynamic || (planned && !is_everywhere(i));

    bool wraps = false;
    if (number_[i] == kNone) {
      if (r.upper >= turn.end) return persistent(result);
      result.upper = r.upper - turn.begin;
      result.phase_end = phases_.at(result.upper);
    } else {
      const Sighting sighting = longest(i);
      if (sighting.kind != Sighting::Kind::kFreed) return persistent(result);
      const Tick tick = free_tick(sighting);
      result.upper = tick + sighting.turn * period;
      wraps = sighting.turn > 0;
      // A tick of the reference's own is that of the free; any other is the one after it.
      result.phase_end = phases_.at(sighting.tick != kNone ? tick : std::max<Tick>(tick - 1, 0));
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
    result.upper = result.lower + turns_[reference_].end - turns_[reference_].begin;
    result.phase_end = result.phase_begin;
    result.layer_end = kNone;
    return result;
  }

  // The largest sum of bytes alive at once within the reference.
  Bytes load() const {
    const Turn& turn = turns_[reference_];
    std::vector<std::pair<Tick, Bytes>> changes;
    for (const Request& r : trace_.requests) {
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

  const Trace& trace_;
  std::vector<Turn> turns_;
  std::int32_t reference_;
  std::int32_t first_compared_;
  Phases phases_;
  std::vector<std::vector<std::int32_t>> matches_;  // by turn: of each of the reference's requests
  std::vector<std::int32_t> number_;                // of each of the reference's requests, or kNone
  std::vector<std::int32_t> statics_;               // request of each number
  std::vector<std::vector<std::int32_t>> newest_;   // by turn: after so many of its requests
};

constexpr std::array<std::string_view, 4> kLifetimeClasses = {"transient", "scoped", "wrap-around",
                                                              "persistent"};

}  // namespace

std::string_view to_string(LifetimeClass c) {
  return kLifetimeClasses.at(static_cast<std::size_t>(c));
}

bool IterationProfile::is_plannable(const ProfiledRequest& r) const {
  return !r.dynamic && r.thread == 0 && r.lifetime != LifetimeClass::kPersistent &&
         phases[r.phase_begin].key.kind != PhaseKind::kUnplanned;
}

IterationProfile profile_iteration(const Trace& trace) {
  trace.check();
  return Profiler(trace).run();
}

}  // namespace stalloc
