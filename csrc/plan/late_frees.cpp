#include "plan/late_frees.h"

#include <algorithm>

#include "base/align.h"
#include "base/range_set.h"
#include "plan/numbers.h"

namespace stalloc::plan {
namespace {

// Addresses that are tried for a request, and later events that it may live through.
constexpr int kTries = 8;
constexpr std::size_t kMostEvents = 128;

struct Event {
  Tick tick = 0;
  bool is_allocation = false;  // frees come first
  DecisionIndex decision = kNone;

  auto operator<=>(const Event&) const = default;
};

// Moves the requests while it walks through the iteration.
class Mover {
 public:
  Mover(Plan& plan, const IndexedVector<DecisionIndex, Offset>& fixed,
        const std::vector<solve::Buffer>& obstacles)
      : plan_(plan), fixed_(fixed), numbers_(plan) {
    for (const profile::ProfiledPhase& phase : plan.phases) {
      if (phase.key.kind == trace::PhaseKind::kBackward) backwards_.push_back(phase.begin);
    }
    std::ranges::sort(backwards_);
    for (const DecisionIndex d : indices<DecisionIndex>(plan.decisions)) {
      if (is_freed_late(plan[d])) cover(late_, range(plan[d]));
    }
    never_ = late_;
    for (const solve::Buffer& b : obstacles) {
      cover(never_, {b.fixed, b.fixed + align_up(b.size, plan.alignment)});
    }
    for (const Offset wall : plan.walls) cover(never_, {wall, wall + plan.alignment});
    for (const SlotClass& c : plan.slots) cover(never_, {c.offset, c.offset + c.size * c.count});
    for (const Turn& t : plan.turns) {
      cover(never_, {t.offset, t.offset + align_up(t.size, plan.alignment)});
    }
  }

  void run() {
    if (late_.empty()) return;
    add_events();
    return_idle({0, plan_.pool});
    for (const DecisionIndex d : indices<DecisionIndex>(plan_.decisions)) {
      if (is_placed(plan_[d]) && end_of(plan_[d]) > plan_.period) idle_.remove(range(plan_[d]));
    }
    for (std::size_t i = 0; i < events_.size(); ++i) {
      Decision& d = plan_[events_[i].decision];
      if (!events_[i].is_allocation) {
        return_idle(range(d));
        continue;
      }
      if (may_move(events_[i].decision)) move(d, i);
      idle_.remove(range(d));
    }
  }

 private:
  static void cover(RangeSet& set, Range r) {
    set.remove(r);
    set.insert_merged(r);
  }
  Range range(const Decision& d) const {
    return {d.offset, d.offset + align_up(d.size, plan_.alignment)};
  }
  static bool is_placed(const Decision& d) { return d.slots == kNone && d.size > 0; }
  // As in the plan's problem: the block of a turn lies elsewhere once its iteration has ended.
  Tick end_of(const Decision& d) const { return d.over > 0 ? plan_.period : d.upper; }

  // True if a microbatch after its own frees the request, in no backward.
  bool is_freed_late(const Decision& d) const {
    if (!is_placed(d) || d.over > 0 || d.upper > plan_.period || d.phase_end == kNone) return false;
    const trace::PhaseKind end = plan_[d.phase_end].key.kind;
    if (end == trace::PhaseKind::kBackward || end == trace::PhaseKind::kOptimizer) return false;
    // One backward begins while it is live, and one after the free.
    const auto next = std::ranges::upper_bound(backwards_, d.lower);
    return next != backwards_.end() && *next < d.upper && d.upper <= backwards_.back();
  }

  bool may_move(DecisionIndex i) const {
    const Decision& d = plan_[i];
    const bool is_fixed = i.points_into(fixed_) && fixed_[i] != kUnplaced;
    return !is_fixed && d.over == 0 && !numbers_.contains(d) && d.upper <= plan_.period &&
           is_small(plan_, d.size) && late_.overlaps(range(d)) && !is_freed_late(d);
  }

  void add_events() {
    for (const DecisionIndex i : indices<DecisionIndex>(plan_.decisions)) {
      const Decision& d = plan_[i];
      const Tick end = end_of(d);
      if (!is_placed(d) || end <= d.lower) continue;
      events_.push_back({d.lower, true, i});
      events_.push_back({end > plan_.period ? end - plan_.period : end, false, i});
    }
    std::ranges::sort(events_);
  }

  // Moves the request that event `at` allocates to addresses that are idle for its life, in the
  // smallest range that has them.
  void move(Decision& d, std::size_t at) {
    const Bytes size = align_up(d.size, plan_.alignment);
    Range whole = smallest_idle(size);
    Range rest = whole;
    for (int i = 0; i < kTries && rest.size() >= size; ++i) {
      const Range place{rest.begin, rest.begin + size};
      const Offset end = end_of_next(place, d.upper, at);
      if (end == kUnplaced) {
        d.offset = place.begin;
        return;
      }
      rest.begin = end;
      if (rest.size() < size) rest = whole = smallest_idle(whole.size() + 1);
    }
  }

  Range smallest_idle(Bytes size) const {
    const Offset offset = idle_.best_fit(size);
    return offset == kUnplaced ? Range{} : idle_.find(offset);
  }

  // The end of a request that needs some of the addresses after event `at` and before `upper`;
  // kUnplaced if none does. All addresses if there are too many events.
  Offset end_of_next(Range place, Tick upper, std::size_t at) const {
    for (std::size_t i = at + 1; i < events_.size() && events_[i].tick < upper; ++i) {
      if (i - at > kMostEvents) return plan_.pool;
      const Range needed = range(plan_[events_[i].decision]);
      if (events_[i].is_allocation && needed.overlaps(place)) return needed.end;
    }
    return kUnplaced;
  }

  void return_idle(Range r) {
    visit_outside(never_, r, [this](Range gap) { idle_.insert_merged(gap); });
  }

  Plan& plan_;
  const IndexedVector<DecisionIndex, Offset>& fixed_;
  NumbersApart numbers_;
  std::vector<Tick> backwards_;  // their beginnings
  RangeSet late_;                // of the blocks that may be freed late
  RangeSet never_;               // nothing moves there
  HoleSet idle_;
  std::vector<Event> events_;
};

bool has_one_stream(const Plan& plan) {
  return std::ranges::all_of(
      plan.decisions, [&](const Decision& d) { return d.stream == plan.decisions.front().stream; });
}

}  // namespace

void make_room_for_late_frees(Plan& plan, const IndexedVector<DecisionIndex, Offset>& fixed,
                              const std::vector<solve::Buffer>& obstacles) {
  if (plan.groups.empty() && has_one_stream(plan)) Mover(plan, fixed, obstacles).run();
}

}  // namespace stalloc::plan
