#include "profile/iteration_profile.h"

#include <array>

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
