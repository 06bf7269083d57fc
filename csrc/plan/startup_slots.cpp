#include "plan/startup_slots.h"

#include <algorithm>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/align.h"
#include "base/error.h"
#include "plan/occupancy.h"

namespace stalloc::plan {
namespace {

struct Use {
  SlotClassIndex slots = kNone;
  Tick lower = 0;
  Tick upper = 0;
};

// The slots of each class that the first iteration takes.
Occupancies taken_slots(const Plan& plan, const profile::Startup& startup,
                        std::span<const DecisionIndex> row_of) {
  Occupancies taken(plan.slots.size());
  std::map<BoxIndex, Use> boxes;
  for (const profile::StartupStay& stay : startup.stays) {
    const Decision& d = plan[row_of[stay.request]];
    if (d.slots == kNone) continue;
    if (d.box == kNone) {
      taken[d.slots].add(stay.lower, stay.upper);
      continue;
    }
    Use& use = boxes.try_emplace(d.box, Use{d.slots, stay.lower, stay.upper}).first->second;
    use.lower = std::min(use.lower, stay.lower);
    use.upper = std::max(use.upper, stay.upper);
  }
  for (const auto& [box, use] : boxes) taken[use.slots].add(use.lower, use.upper);
  return taken;
}

// Gives requests of start-up the places of decisions in one generation.
class Predecessors {
 public:
  Predecessors(Plan& plan, Occupancies& taken) : plan_(plan), taken_(taken) {
    std::vector<DecisionIndex> members;
    for (const DecisionIndex d : indices<DecisionIndex>(plan.decisions)) {
      if (plan[d].over > 0 && plan[d].box != kNone) members.push_back(d);
    }
    std::ranges::stable_sort(members, std::greater{},
                             [&](DecisionIndex d) { return plan[d].upper + plan[d].over; });
    for (const DecisionIndex d : members) places_[kind_of(plan[d])].push_back(d);
  }

  // In the order of frees, so that requests that are freed together come into one generation.
  void place(std::vector<StartupRequest*> requests) {
    std::ranges::stable_sort(requests, {}, &StartupRequest::upper);
    for (StartupRequest* r : requests) {
      const auto places = places_.find(kind_of(*r));
      if (places == places_.end() || places->second.empty()) continue;
      const DecisionIndex d = places->second.back();
      if (!extend(plan_[d], r->lower, r->upper)) continue;
      places->second.pop_back();
      r->slots = plan_[d].slots;
      r->decision = d;
    }
  }

 private:
  using Kind = std::pair<Bytes, StreamId>;

  Kind kind_of(const auto& r) const { return {align_up(r.size, plan_.alignment), r.stream}; }

  // Lets the generation before the decision's own one be live in [lower, upper), too. False if the
  // class has no slot for it.
  bool extend(const Decision& d, Tick lower, Tick upper) {
    Occupancy& taken = taken_[d.slots];
    const auto known = uses_.find(d.box);
    Use use{d.slots, lower, upper};
    if (known != uses_.end()) {
      use.lower = std::min(use.lower, known->second.lower);
      use.upper = std::max(use.upper, known->second.upper);
      taken.remove(known->second.lower, known->second.upper);
    }
    taken.add(use.lower, use.upper);
    if (taken.most() <= plan_[d.slots].count) {
      uses_[d.box] = use;
      return true;
    }
    taken.remove(use.lower, use.upper);
    if (known != uses_.end()) taken.add(known->second.lower, known->second.upper);
    return false;
  }

  Plan& plan_;
  Occupancies& taken_;
  std::map<Kind, std::vector<DecisionIndex>> places_;  // the one that is freed first comes last
  std::map<BoxIndex, Use> uses_;                       // by start-up
};

// Gives a request a slot for itself, if there is one.
void take_slot(const Plan& plan, Occupancies& taken, StartupRequest& r) {
  const auto fits = [&](const SlotClass& c) {
    return c.stream == r.stream && c.size == align_up(r.size, plan.alignment);
  };
  const auto found = std::ranges::find_if(plan.slots, fits);
  if (found == plan.slots.end()) return;
  const SlotClassIndex c(found - plan.slots.begin());
  taken[c].add(r.lower, r.upper);
  if (taken[c].most() > found->count) {
    taken[c].remove(r.lower, r.upper);
  } else {
    r.slots = c;
  }
}

}  // namespace

void add_startup_slots(Plan& plan, const profile::Startup& startup,
                       std::span<const DecisionIndex> row_of) {
  if (plan.slots.empty()) return;
  Occupancies taken = taken_slots(plan, startup, row_of);
  std::vector<StartupRequest*> replaced;
  for (StartupRequest& r : plan.startup) {
    if (!r.stays() && r.offset == kUnplaced) replaced.push_back(&r);
  }
  Predecessors(plan, taken).place(replaced);
  for (StartupRequest* r : replaced) {
    if (r->slots == kNone) take_slot(plan, taken, *r);
  }
}

void drop_startup_slots(Plan& plan) {
  for (StartupRequest& r : plan.startup) {
    if (r.slots == kNone) continue;
    const Bytes size = r.decision == kNone ? plan[r.slots].size : plan[r.decision].size;
    if (align_up(r.size, plan.alignment) > align_up(size, plan.alignment)) {
      r.slots = kNone;
      r.decision = kNone;
    }
  }
}

void check_startup_slots(const Plan& plan) {
  IndexedVector<DecisionIndex, bool> has_predecessor(plan.decisions.size());
  for (const StartupRequest& r : plan.startup) {
    if (r.slots == kNone && r.decision == kNone) continue;
    const auto fits = [&](const auto& place) {
      return r.stream == place.stream &&
             align_up(r.size, plan.alignment) <= align_up(place.size, plan.alignment);
    };
    if (!r.slots.points_into(plan.slots) || r.offset != kUnplaced || !fits(plan[r.slots])) {
      throw PlanError("startup: a request of " + std::to_string(r.size) +
                      " bytes does not fit the slots " + to_string(r.slots));
    }
    if (r.decision == kNone) continue;
    const bool sound = r.decision.points_into(plan.decisions) &&
                       plan[r.decision].slots == r.slots && plan[r.decision].box != kNone &&
                       plan[r.decision].over > 0 && fits(plan[r.decision]) &&
                       !has_predecessor[r.decision];
    if (!sound) {
      throw PlanError("startup: a request of " + std::to_string(r.size) +
                      " bytes cannot take the place of decision " + to_string(r.decision));
    }
    has_predecessor[r.decision] = true;
  }
}

}  // namespace stalloc::plan
