#include "profile/startup.h"

#include <map>
#include <set>
#include <tuple>
#include <vector>

#include "profile/alignment.h"

namespace stalloc::profile {
namespace {

constexpr std::int32_t kFirst = 0;  // the iteration that start-up belongs to

class Finder {
 public:
  Finder(const Counterparts& all, IterationProfile& profile) : all_(all), profile_(profile) {
    for (const ProfiledGroup& p : profile.groups) sites_.insert({p.phase, p.after, p.stream});
  }

  void run() {
    align();
    profile_.startup.end = all_.iteration(kFirst).end;
    std::map<PhaseIndex, std::int32_t> newest;  // plannable request, by phase
    for (const trace::PhaseSpan& span : all_.trace().phases) {
      if (span.key.kind == trace::PhaseKind::kOther ||
          span.key.kind == trace::PhaseKind::kUnplanned)
        continue;
      profile_.startup.work = span.begin;
      break;
    }
    for (std::int32_t index = 0; index < all_.iteration(kFirst).count; ++index) {
      if (!is_followed(index)) continue;
      const trace::Request& r = all_.request(kFirst, index);
      const std::int32_t match = matches_[index];
      const bool recurs = match != kNone;
      if (recurs && profile_.is_plannable(profile_.requests[match])) {
        newest[profile_.requests[match].phase_begin] = match;
        profile_.startup.stays.push_back({match, r.lower, r.upper});
        continue;
      }
      StartupSighting sighting{
          .size = r.size, .law = all_.law(kFirst, index), .lower = r.lower, .upper = r.upper};
      sighting.phase = phase_of(index);
      const auto it = newest.find(sighting.phase);
      sighting.after = it == newest.end() ? kNone : it->second;
      sighting.stream = r.stream;
      sighting.recurs = recurs;
      if (r.upper >= all_.iteration(all_.reference()).end) sighting.upper = kNever;
      // At a site of dynamic requests, a request that is freed again is one of them, unless later
      // iterations make it, too. Before the first forward there are many that make the model.
      const bool dynamic = r.lower >= profile_.startup.work &&
                           sites_.contains({sighting.phase, sighting.after, sighting.stream});
      if (sighting.upper != kNever && dynamic && !recurs) continue;
      profile_.startup.requests.push_back(sighting);
    }
  }

 private:
  struct Sequence {
    std::vector<Token> tokens;
    std::vector<std::int32_t> requests;
  };

  const trace::PhaseKey& key_of(std::int32_t index) const {
    return all_.trace()[all_.request(kFirst, index).phase_begin].key;
  }

  // True if the runtime can follow the request.
  bool is_followed(std::int32_t index) const {
    const trace::Request& r = all_.request(kFirst, index);
    return r.thread == 0 && !r.dynamic && key_of(index).kind != trace::PhaseKind::kUnplanned;
  }

  // The end of iteration before which a request is freed: its own, the next one's, or a later
  // one's.
  enum class Until : std::uint8_t { kOwnEnd, kNextEnd, kLater };

  Until until(std::int32_t t, const trace::Request& r) const {
    if (r.upper < all_.iteration(t).end) return Until::kOwnEnd;
    return r.upper < all_.iteration(t + 1).end ? Until::kNextEnd : Until::kLater;
  }

  // The same for the reference's request `i`. If it is persistent, the first compared iteration
  // tells whether its counterpart was replaced in the next iteration or kept.
  Until until(std::int32_t i) const {
    const ProfiledRequest& r = profile_.requests[i];
    if (r.lifetime == LifetimeClass::kWrapAround) return Until::kNextEnd;
    if (r.lifetime != LifetimeClass::kPersistent) return Until::kOwnEnd;
    const std::int32_t t = all_.first_compared();
    const std::int32_t index = all_.match(t, i);
    return index == kNone ? Until::kLater : until(t, all_.request(t, index));
  }

  // Marks a token with the end of life, so that only requests with the same end are alike.
  static Token marked(Token token, Until until) {
    if (until == Until::kLater) token.size = -token.size;
    if (until == Until::kNextEnd) token.stream = ~token.stream;
    return token;
  }

  void align() {
    std::map<trace::PhaseKey, Sequence> first;
    for (std::int32_t index = 0; index < all_.iteration(kFirst).count; ++index) {
      if (!is_followed(index)) continue;
      const trace::Request& r = all_.request(kFirst, index);
      Sequence& s = first[key_of(index)];
      s.tokens.push_back(marked(all_.token(kFirst, index), until(kFirst, r)));
      s.requests.push_back(index);
    }
    std::map<trace::PhaseKey, Sequence> reference;
    for (std::size_t i = 0; i < profile_.requests.size(); ++i) {
      const ProfiledRequest& r = profile_.requests[i];
      if (!profile_.is_recognisable(r) && !profile_.is_plannable(r)) continue;
      Sequence& s = reference[profile_[r.phase_begin].key];
      const auto index = static_cast<std::int32_t>(i);
      s.tokens.push_back(marked(all_.token(all_.reference(), index), until(index)));
      s.requests.push_back(index);
    }
    matches_.assign(all_.iteration(kFirst).count, kNone);
    for (const auto& [key, ours] : first) {
      const auto theirs = reference.find(key);
      if (theirs == reference.end()) continue;
      const auto matched = align_sequences(ours.tokens, theirs->second.tokens);
      for (std::size_t i = 0; i < matched.size(); ++i) {
        if (matched[i] != kNone) matches_[ours.requests[i]] = theirs->second.requests[matched[i]];
      }
    }
  }

  // The profile's phase of a request. Appends a phase that the reference does not have.
  PhaseIndex phase_of(std::int32_t index) {
    const trace::PhaseKey& key = key_of(index);
    if (const PhaseIndex known = all_.phases().find(key); known != kNone) return known;
    const auto [it, is_new] = added_.try_emplace(key, profile_.phases.size());
    if (is_new) profile_.phases.push_back({key, profile_.period, profile_.period});
    return it->second;
  }

  const Counterparts& all_;
  IterationProfile& profile_;
  std::set<std::tuple<PhaseIndex, std::int32_t, StreamId>> sites_;
  std::vector<std::int32_t> matches_;  // by request of the first iteration, the profile's
  std::map<trace::PhaseKey, PhaseIndex> added_;
};

}  // namespace

void add_startup(const Counterparts& all, IterationProfile& profile) {
  if (all.first_compared() > kFirst) Finder(all, profile).run();
}

}  // namespace stalloc::profile
