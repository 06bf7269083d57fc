#include "runtime/startup_guide.h"

#include <algorithm>

namespace stalloc::runtime {

plan::Plan resident_region(const plan::Plan& plan) {
  plan::Plan region;
  region.alignment = plan.alignment;
  region.pool = plan.resident;
  for (const plan::StartupRequest& r : plan.startup) {
    if (r.offset == kUnplaced || !r.stays()) continue;
    region.decisions.push_back({.size = r.size,
                                .offset = r.offset - plan.pool,
                                .lower = static_cast<Tick>(region.decisions.size()),
                                .upper = 0,
                                .phase = PhaseIndex(0),
                                .phase_end = PhaseIndex(0),
                                .stream = r.stream});
  }
  region.period = static_cast<Tick>(region.decisions.size());
  for (plan::Decision& d : region.decisions) d.upper = d.lower + region.period;
  return region;
}

StartupGuide::StartupGuide(const plan::Plan& plan)
    : matcher_(plan, Matcher::Part::kStartup),
      requests_(plan.startup),
      region_begin_(plan.pool),
      resident_(plan.startup.size()),
      served_(plan.startup.size()),
      absent_(std::ssize(plan.absent)) {
  plan::DecisionIndex resident(0);
  for (const plan::StartupIndex i : requests_.indices()) {
    const bool in_slot = requests_[i].slots != kNone;
    if (in_slot || requests_[i].offset != kUnplaced) ++placeable_;
    if (requests_[i].offset == kUnplaced) continue;
    if (requests_[i].stays()) {
      resident_[i] = resident++;
    } else {
      by_end_.push_back(i);
    }
  }
  std::ranges::sort(by_end_, {}, [this](plan::StartupIndex i) { return requests_[i].upper; });
  late_.reserve(by_end_.size());
}

StartupGuide::Place StartupGuide::place_of(plan::StartupIndex i) const {
  const Offset offset = requests_[i].offset;
  const bool in_region = offset >= region_begin_;
  return {in_region, in_region ? offset - region_begin_ : offset};
}

StartupGuide::Place StartupGuide::place(plan::StartupIndex i, Bytes size, StaticPool& pool,
                                        StaticPool& region) {
  const plan::StartupRequest& r = requests_[i];
  if (r.decision != kNone) return {false, pool.place_before(r.decision, size)};
  if (r.slots != kNone) return {false, pool.place_in_slots(r.slots, size)};
  if (r.offset == kUnplaced || size > r.size) return {};
  Place place = place_of(i);
  if (r.stays()) {
    place.offset = region.place(resident_[i], size);
  } else {
    StaticPool& space = place.in_region ? region : pool;
    if (overstayed(r.lower, pool, region) || !space.place_at(place.offset, size, r.stream)) {
      return {};
    }
    served_[i] = true;
  }
  return place;
}

Range StartupGuide::lacking_in_region(plan::StartupIndex i, Bytes size,
                                      const StaticPool& region) const {
  const plan::StartupRequest& r = requests_[i];
  if (r.offset == kUnplaced || size > r.size) return {};
  const auto [in_region, offset] = place_of(i);
  if (!in_region) return {};
  if (r.stays()) return region.lacking_memory(resident_[i], size);
  return region.lacking_memory(Range{offset, offset + region.round_up(size)});
}

// See Note [Overstayed].
bool StartupGuide::overstayed(Tick now, const StaticPool& pool, const StaticPool& region) {
  for (; ended_ < by_end_.size(); ++ended_) {
    const plan::StartupIndex i = by_end_[ended_];
    if (requests_[i].upper > now) break;
    if (served_[i]) late_.push_back(i);
  }
  std::erase_if(late_, [&](plan::StartupIndex i) {
    if (requests_[i].offset == kUnplaced) return true;  // the new layout has no address for it
    const auto [in_region, offset] = place_of(i);
    const StaticPool::Block block = (in_region ? region : pool).at(offset);
    return block.size == StaticPool::kNotLive || block.kind != StaticPool::Kind::kStartup;
  });
  return !late_.empty();
}

}  // namespace stalloc::runtime
