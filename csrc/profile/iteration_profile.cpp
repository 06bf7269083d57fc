#include "profile/iteration_profile.h"

#include <array>
#include <set>

namespace stalloc::profile {
namespace {

constexpr std::array<std::string_view, 4> kLifetimeClasses = {"transient", "scoped", "wrap-around",
                                                              "persistent"};

}  // namespace

std::string_view to_string(LifetimeClass c) {
  return kLifetimeClasses.at(static_cast<std::size_t>(c));
}

namespace {

// True if the request comes in every iteration where the runtime can follow it.
bool recurs(const IterationProfile& profile, const ProfiledRequest& r) {
  return !r.dynamic && r.thread == 0 &&
         profile[r.phase_begin].key.kind != trace::PhaseKind::kUnplanned;
}

}  // namespace

// A microbatch begins with its first forward.
void tell_microbatches(std::vector<ProfiledPhase>& phases, Tick period) {
  std::size_t count = phases.size();
  while (count > 0 && phases[count - 1].begin == period) --count;
  std::set<std::int32_t> begun;
  std::vector<bool> begins(count);
  std::int32_t latest = kNone;
  for (std::size_t p = 0; p < count; ++p) {
    const trace::PhaseKey& key = phases[p].key;
    begins[p] = key.kind == trace::PhaseKind::kForward && begun.insert(key.microbatch).second;
    if (begins[p]) latest = key.microbatch;
    phases[p].own = key.microbatch != kNone ? key.microbatch : latest;
  }
  std::int32_t upcoming = kNone;
  for (std::size_t p = count; p-- > 0;) {
    phases[p].upcoming = upcoming;
    if (begins[p]) upcoming = phases[p].key.microbatch;
  }
}

bool IterationProfile::is_plannable(const ProfiledRequest& r) const {
  return recurs(*this, r) && (r.lifetime != LifetimeClass::kPersistent || r.over > 0);
}

LawIndex IterationProfile::varying(LawIndex law) const {
  if (law == kNone) return kNone;
  const SizeLaw& known = (*this)[law];
  return known.terms.empty() && known.proof != LawProof::kUnexplained ? kNone : law;
}

bool IterationProfile::is_recognisable(const ProfiledRequest& r) const {
  return recurs(*this, r) && r.lifetime == LifetimeClass::kPersistent && r.over == 0;
}

}  // namespace stalloc::profile
