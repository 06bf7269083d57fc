// The bounds of a window, and the proof that they are safe. Let `m` be the newest number at a birth
// and `n` the newest at a free, m <= n if both are in one iteration.
//
// The window ends with the birth of number n + 1, or with the phase if that comes first. So it
// overlaps everything that was born before the free.
//
// The window begins before the birth of number m + 1. So it overlaps everything that was freed
// after number m + 1 was born. A free between the births of m and m + 1 may come before or after
// the dynamic birth, and the numbers cannot tell. Two rules cover it. The window begins no later
// than the reference's own birth. And it begins before the end of each plannable request that some
// iteration frees after the birth.
#include "profile/dynamic.h"

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <utility>

#include "profile/group_law.h"
#include "profile/roles.h"
#include "trace/layers.h"

namespace stalloc::profile {
namespace {

// A request is momentary if it outlives the next static one's birth by less than this.
constexpr Tick kMoment = 4;
// A momentary request is brief if no more than this many requests are born in its lifetime.
constexpr std::int32_t kBornMeanwhile = 2;

using Key = std::tuple<PhaseIndex, std::int32_t, StreamId>;  // phase, after, stream

struct Asked {
  std::int32_t iteration = 0;
  std::int32_t request = 0;  // within its iteration
};

// A free of a plannable request in one iteration.
struct Free {
  Tick tick = 0;
  Tick upper = 0;  // the end of its planned lifetime, since that iteration began
};

class GroupFinder {
 public:
  GroupFinder(const Counterparts& all, const IterationProfile& profile)
      : all_(all), profile_(profile), first_(all.first_compared()), last_(all.reference()) {}

  struct Found {
    std::vector<ProfiledGroup> groups;
    std::vector<std::optional<SizeLaw>> laws;  // by group
    std::vector<KeptGroup> kept;
  };

  Found run() {
    for (std::int32_t t = first_; t <= last_; ++t) {
      collect(t);
      frees_.push_back(frees_in(t));
    }
    Found found;
    for (const auto& [key, requests] : found_) add_groups(key, requests, found);
    return found;
  }

 private:
  bool is_dynamic(std::int32_t t, std::int32_t index) const {
    const std::int32_t number = all_.number_in(t, index);
    return number == kNone || profile_.requests[all_.request_of(number)].dynamic;
  }

  // Adds each dynamic request of iteration `t` to its site.
  void collect(std::int32_t t) {
    std::map<PhaseIndex, std::int32_t> newest;  // plannable request by the profile's phase
    PhaseIndex span = kNone;
    PhaseIndex phase = kNone;
    for (std::int32_t index = 0; index < all_.iteration(t).count; ++index) {
      const trace::Request& r = all_.request(t, index);
      if (r.thread != 0) continue;
      if (r.phase_begin != span) {
        span = r.phase_begin;
        const trace::PhaseKey& key = all_.trace()[span].key;
        phase = key.kind == trace::PhaseKind::kUnplanned ? kNone : all_.phases().find(key);
      }
      if (phase == kNone) continue;
      if (is_dynamic(t, index)) {
        const auto it = newest.find(phase);
        found_[{phase, it == newest.end() ? kNone : it->second, r.stream}].push_back({t, index});
      } else {
        const std::int32_t i = all_.request_of(all_.number_in(t, index));
        if (profile_.is_plannable(profile_.requests[i])) newest[phase] = i;
      }
    }
  }

  std::vector<Free> frees_in(std::int32_t t) const {
    std::vector<Free> frees;
    for (std::int32_t born = std::max(t - 1, first_); born <= t; ++born) {
      const Tick periods = t - born;
      for (std::size_t i = 0; i < profile_.requests.size(); ++i) {
        const ProfiledRequest& planned = profile_.requests[i];
        if (!profile_.is_plannable(planned)) continue;
        const std::int32_t index = all_.match(born, static_cast<std::int32_t>(i));
        if (index == kNone) continue;
        const trace::Request& r = all_.request(born, index);
        if (r.upper < all_.iteration(t).begin || r.upper >= all_.iteration(t).end) continue;
        frees.push_back({r.upper, planned.upper - periods * profile_.period});
      }
    }
    std::ranges::sort(frees, {}, &Free::tick);
    return frees;
  }

  // The last tick of the reference at which the window may begin, for a first birth in `t`.
  Tick beginning(std::int32_t t, std::int32_t index) const {
    const trace::Request& r = all_.request(t, index);
    const std::int32_t newest = all_.newest_before(t, r.lower);
    Tick result = all_.latest(newest, r.phase_begin) - 1;
    if (t == last_) result = std::min(result, all_.birth(index));
    const std::vector<Free>& frees = frees_[t - first_];
    for (auto it = std::ranges::upper_bound(frees, r.lower, {}, &Free::tick);
         it != frees.end() && all_.newest_before(t, it->tick) == newest; ++it) {
      result = std::min(result, it->upper - 1);
    }
    return result;
  }

  // Adds a group for each role of the site's requests, the longest first.
  void add_groups(const Key& key, const std::vector<Asked>& asked, Found& found) const {
    std::vector<std::vector<RoleSample>> visits(static_cast<std::size_t>(last_ - first_ + 1));
    for (const auto& [t, index] : asked) {
      visits[t - first_].push_back({all_.asked(t, index), longevity(t, index)});
    }
    const auto& [phase, after, stream] = key;
    if (makes_data(phase)) keep_small_data(visits);
    const Roles roles = tell_roles(visits, !all_.laws().empty());
    std::vector<std::vector<Asked>> by_role(roles.contexts.size());
    std::vector<std::size_t> next(visits.size());
    for (const Asked& a : asked) {
      const auto visit = static_cast<std::size_t>(a.iteration - first_);
      const std::size_t i = next[visit]++;
      const std::int32_t role = roles.of[visit][i];
      // The exceptions of a role outlive it and belong to no group.
      if (visits[visit][i].longevity <= roles.longevity[role]) by_role[role].push_back(a);
    }
    const std::size_t others = found.groups.size();
    for (std::size_t role = 0; role < by_role.size(); ++role) {
      if (roles.longevity[role] == kKept) continue;
      std::optional<SizeLaw> law;
      ProfiledGroup group = make_group(key, by_role[role], law);
      if (group.upper == kNone) continue;
      group.contexts = roles.contexts[role];
      found.groups.push_back(std::move(group));
      found.laws.push_back(std::move(law));
    }
    // The run does not repeat requests that only its warm-up made.
    const auto is_later = [](const Asked& a) { return a.iteration > 0; };
    if (found.groups.size() == others && std::ranges::none_of(asked, is_later)) return;
    for (std::size_t role = 0; role < by_role.size(); ++role) {
      if (roles.longevity[role] != kKept) continue;
      found.kept.push_back({phase, after, stream, roles.contexts[role]});
    }
  }

  // True for a phase between microbatches. The clipping of gradients inside an optimizer's step
  // makes no data.
  bool makes_data(PhaseIndex phase) const {
    const auto is_optimizer = [this](PhaseIndex p) {
      return p.points_into(profile_.phases) && profile_[p].key.kind == trace::PhaseKind::kOptimizer;
    };
    return profile_[phase].key.kind == trace::PhaseKind::kOther && profile_.phases.size() > 1 &&
           !(is_optimizer(phase - 1) && is_optimizer(phase + 1));
  }

  // Between microbatches the next batch is made, of a shape that no profile has seen. All small
  // requests count as kept there: one that lives longer than others of its site displaces large
  // ones, and beside the pool it takes next to nothing.
  static void keep_small_data(std::vector<std::vector<RoleSample>>& visits) {
    for (std::vector<RoleSample>& visit : visits) {
      for (RoleSample& s : visit) {
        if (s.size < kSmallRequest) s.longevity = kKept;
      }
    }
  }

  // The longevity in ticks of the reference, from the next static request's birth or the end of the
  // phase.
  Longevity longevity(std::int32_t t, std::int32_t index) const {
    const trace::Request& r = all_.request(t, index);
    const End end = end_of(t, r);
    if (end.upper == kNone) return end.kept ? kKept : kUnknownLongevity;
    const Tick ticks = end.upper - all_.latest(all_.newest_before(t, r.lower), r.phase_begin);
    if (ticks >= profile_.period) return kKept;
    if (ticks >= kMoment) return ticks;
    const std::int32_t next = index + kBornMeanwhile + 1;
    const bool brief = next >= all_.iteration(t).count || all_.request(t, next).lower > r.upper;
    return brief ? kBrief : kMomentary;
  }

  struct End {
    Tick upper = kNone;  // since the iteration of the birth began; kNone: longer than is known
    PhaseIndex phase_end = kNone;  // the profile's
    bool kept = false;             // it outlives the next iteration
  };

  End end_of(std::int32_t t, const trace::Request& r) const {
    const std::int32_t periods = r.upper < all_.iteration(t).end ? 0 : 1;
    const std::int32_t freed_in = t + periods;
    if (freed_in > last_) return {};
    if (r.upper >= all_.iteration(freed_in).end) return {.kept = true};
    const Tick tick = all_.latest(all_.newest_before(freed_in, r.upper), r.phase_end);
    return {tick + periods * profile_.period, all_.phases().at(std::max<Tick>(tick - 1, 0))};
  }

  // The bytes of these requests by iteration, as asked for.
  std::vector<GroupSum> sums_of(const std::vector<Asked>& served) const {
    std::vector<GroupSum> sums;
    std::int32_t iteration = kNone;
    for (const auto& [t, index] : served) {
      if (t != iteration) sums.push_back({.extents = all_.extents(t, index)});
      iteration = t;
      sums.back().bytes += all_.asked(t, index);
    }
    return sums;
  }

  // Gives the group's sightings, of requests without a law of their own, the sizes in the batch
  // that needs most. Batches of a budget never have the largest of all extents at once.
  void enlarge(ProfiledGroup& group, const std::vector<Asked>& served, const SizeLaw& law) const {
    Bytes most = 0;
    for (const std::vector<Extent>& row : all_.laws().seen) {
      most = std::max(most, evaluate(law, row));
    }
    std::vector<std::size_t> next(group.sightings.size());
    for (const auto& [t, index] : served) {
      const auto visit = static_cast<std::size_t>(t - first_);
      DynamicSighting& sighting = group.sightings[visit][next[visit]++];
      if (all_.law(t, index) != kNone) continue;
      sighting.size = in_proportion(sighting.size, most, evaluate(law, all_.extents(t, index)));
    }
  }

  // Makes a group and finds its law. `upper` stays kNone if none of its requests can be served.
  ProfiledGroup make_group(const Key& key, const std::vector<Asked>& found,
                           std::optional<SizeLaw>& law) const {
    ProfiledGroup group;
    std::tie(group.phase, group.after, group.stream) = key;
    group.lower = profile_.period;
    group.upper = kNone;
    group.sightings.resize(static_cast<std::size_t>(last_ - first_ + 1));
    std::int32_t iteration = kNone;
    for (const auto& [t, index] : found) {
      if (t != iteration) group.lower = std::min(group.lower, beginning(t, index));
      iteration = t;
    }
    for (const auto& [t, index] : found) {
      const End end = end_of(t, all_.request(t, index));
      if (end.upper - group.lower > profile_.period || end.upper <= group.upper) continue;
      group.upper = end.upper;
      group.phase_end = end.phase_end;
    }
    if (group.upper == kNone) return group;
    std::vector<Asked> served;
    for (const auto& [t, index] : found) {
      const trace::Request& r = all_.request(t, index);
      const End end = end_of(t, r);
      const bool passes_last = t == last_ && r.upper >= all_.iteration(t).end;
      // The reference does not see this end. The other iterations' ends stand for it.
      const bool wraps = passes_last && group.upper > profile_.period;
      if (!wraps && (end.upper == kNone || end.upper > group.upper)) continue;
      group.sightings[t - first_].push_back({r.size, r.lower, wraps ? kNever : r.upper});
      served.push_back({t, index});
    }
    law = find_group_law(sums_of(served), all_.laws().envelope);
    if (law) enlarge(group, served, *law);
    if (group.lower < 0) {
      group.lower += profile_.period;
      group.upper += profile_.period;
    }
    return group;
  }

  const Counterparts& all_;
  const IterationProfile& profile_;
  std::int32_t first_;
  std::int32_t last_;
  std::map<Key, std::vector<Asked>> found_;
  std::vector<std::vector<Free>> frees_;  // by iteration
};

// A module is static if less than one of kMostlyStatic requests varies, or if fewer than kFewVary
// vary in an iteration.
constexpr std::int64_t kMostlyStatic = 8;
constexpr std::int64_t kFewVary = 4;

// The index of the law with these sizes, which is added if there is none.
LawIndex find_or_add(std::vector<SizeLaw>& laws, SizeLaw law) {
  for (std::size_t i = 0; i < laws.size(); ++i) {
    law.proof = laws[i].proof;
    if (law == laws[i] && law.proof != LawProof::kUnexplained) return LawIndex(i);
  }
  law.proof = LawProof::kUnproven;
  laws.push_back(std::move(law));
  return LawIndex(laws.size() - 1);
}

}  // namespace

DynamicStays dynamic_stays(const Counterparts& all) {
  struct Count {
    std::int64_t requests = 0;
    std::int64_t varying = 0;
  };
  std::map<std::pair<trace::PhaseKey, LayerIndex>, Count> counts;
  for (std::int32_t t = all.first_compared(); t <= all.reference(); ++t) {
    for (std::int32_t index = 0; index < all.iteration(t).count; ++index) {
      const trace::Request& r = all.request(t, index);
      const trace::PhaseKey& phase = all.trace()[r.phase_begin].key;
      const bool planned = phase.kind != trace::PhaseKind::kUnplanned && r.thread == 0;
      if (!planned || r.layer_begin == kNone) continue;
      Count& count = counts[{phase, r.layer_begin}];
      ++count.requests;
      // A request that follows a law belongs to a variant of the program.
      count.varying += all.number_in(t, index) == kNone && all.law(t, index) == kNone;
    }
  }
  DynamicStays stays;
  for (const auto& [stay, count] : counts) {
    const bool often = count.varying >= kFewVary * (all.reference() - all.first_compared() + 1);
    if (often && kMostlyStatic * count.varying >= count.requests) stays.insert(stay);
  }
  // Adds the modules inside them, which their names tell.
  const std::vector<std::string>& names = all.trace().layers;
  std::map<trace::PhaseKey, trace::LayerNames> outer;
  for (const auto& [phase, layer] : stays) outer[phase].insert(names[layer.position()]);
  for (const auto& [stay, count] : counts) {
    const auto modules = outer.find(stay.first);
    if (modules == outer.end()) continue;
    if (trace::lies_inside(names[stay.second.position()], modules->second)) stays.insert(stay);
  }
  return stays;
}

std::vector<std::string> dynamic_modules(const Counterparts& all, const DynamicStays& stays) {
  if (stays.empty()) return {};
  std::set<LayerIndex> layers;
  std::set<LayerIndex> static_in_a_phase;
  for (std::int32_t t = all.first_compared(); t <= all.reference(); ++t) {
    for (std::int32_t index = 0; index < all.iteration(t).count; ++index) {
      const trace::Request& r = all.request(t, index);
      const trace::PhaseKey& phase = all.trace()[r.phase_begin].key;
      if (phase.kind == trace::PhaseKind::kUnplanned || r.thread != 0) continue;
      if (!stays.contains({phase, r.layer_begin})) {
        static_in_a_phase.insert(r.layer_begin);
      } else if (!r.dynamic) {
        layers.insert(r.layer_begin);
      }
    }
  }
  for (const LayerIndex layer : static_in_a_phase) layers.erase(layer);
  for (const LayerIndex layer : trace::layers_with_guests(all.trace())) layers.erase(layer);
  trace::LayerNames names;
  for (const LayerIndex layer : layers) names.insert(all.trace().layers[layer.position()]);
  std::vector<std::string> outermost;
  for (const std::string& name : names) {
    if (!trace::lies_inside(name, names)) outermost.push_back(name);
  }
  return outermost;
}

void find_groups(const Counterparts& all, IterationProfile& profile) {
  auto [groups, laws, kept] = GroupFinder(all, profile).run();
  profile.groups = std::move(groups);
  profile.kept = std::move(kept);
  for (std::size_t g = 0; g < laws.size(); ++g) {
    if (laws[g]) profile.groups[g].law = find_or_add(profile.laws, *laws[g]);
  }
}

}  // namespace stalloc::profile
