#include "plan/boxes.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "base/align.h"
#include "base/error.h"
#include "plan/curve.h"
#include "plan/numbers.h"
#include "plan/slots.h"
#include "solve/core/bound.h"
#include "verify/validator.h"

namespace stalloc::plan {
namespace {

// Limits of the planner's time.
constexpr std::int32_t kMostBoxes = 512;
constexpr std::size_t kMostInBox = 256;
constexpr std::size_t kMostInGeneration = 4096;  // in a slot that also holds a generation

// A request much smaller than the slot of one state saves little, and each makes the rest harder to
// lay out. So this many fit side by side at most, except in the slot of a generation.
constexpr Bytes kMostAbreast = 32;

// The slots of a class that no state needs.
Curve spare_of(const Plan& plan, SlotClassIndex c) {
  Curve spare(plan.period);
  spare.add(0, plan.period, plan[c].count);
  for (const StateUse& use : state_uses(plan)) {
    if (use.slots != c) continue;
    const Tick ticks = use.upper - use.lower;
    spare.add(0, plan.period, -(ticks / plan.period));
    spare.add(use.lower, use.lower + ticks % plan.period, -1);
  }
  return spare;
}

// True if the request may lie in a slot of the class that is idle throughout the window.
bool fits(const Decision& d, const SlotClass& c, TickInterval window) {
  return d.stream == c.stream && d.size <= c.size && d.lower >= window.lower &&
         d.upper <= window.upper;
}

// The requests that are put into a box first: the largest, or those where the load is highest.
enum class First : std::uint8_t { kLarge, kTight };

// Fills the idle slots of the classes of one stream; of all where streams share addresses.
class Filler {
 public:
  Filler(Plan& plan, StreamId stream, First first, BoxIndex& next, BoxIndex end)
      : plan_(plan),
        stream_(stream),
        first_(first),
        next_(next),
        end_(end),
        load_(plan.period),
        numbers_(plan),
        holds_generations_(plan.slots.size()) {
    for (const Decision& d : plan.decisions) {
      if (d.over > 0 && d.box != kNone) holds_generations_[d.slots] = true;
    }
    const solve::Problem problem = problem_of(plan);
    for (std::size_t i = 0; i + plan.slots.size() < problem.buffers.size(); ++i) {
      const solve::Buffer& b = problem.buffers[i];
      if (is_own(b.stream)) load_.add(b.lower, b.upper, align_up(b.size, plan.alignment));
    }
    solve::Problem real = real_problem(plan);
    std::erase_if(real.buffers, [&](const solve::Buffer& b) { return !is_own(b.stream); });
    limit_ = solve::load_bound(real);
    for (const SlotClassIndex c : indices<SlotClassIndex>(plan.slots)) {
      if (!is_own(plan[c].stream)) continue;
      limit_ -= plan[c].size * plan[c].count;
      classes_.push_back(c);
    }
    std::ranges::stable_sort(classes_, std::greater{},
                             [&](SlotClassIndex c) { return plan_[c].size; });
  }

  void run() {
    for (const SlotClassIndex c : classes_) {
      const Curve spare = spare_of(plan_, c);
      const std::int64_t most = spare.most();
      for (std::int64_t level = 1; level <= most; ++level) {
        for (const TickInterval& window : spare.at_least(level)) {
          if (load_.most() <= limit_ || next_ >= end_) return;
          if (load_.exceeds(limit_, window) && fill(c, window)) ++next_;
        }
      }
    }
  }

 private:
  bool is_own(StreamId stream) const {
    return plan_.streams == solve::Streams::kOrdered || stream == stream_;
  }

  bool is_candidate(const Decision& d, const SlotClass& c, TickInterval window) const {
    return d.slots == kNone && d.law == kNone && !numbers_.contains(d) && fits(d, c, window);
  }

  // Fills one slot of the class throughout the window.
  bool fill(SlotClassIndex c, TickInterval window) {
    const SlotClass slot = plan_[c];
    const std::size_t most = holds_generations_[c] ? kMostInGeneration : kMostInBox;
    const Bytes least = holds_generations_[c] ? 0 : slot.size / kMostAbreast;
    std::vector<Decision*> candidates;
    for (Decision& d : plan_.decisions) {
      if (d.size >= least && is_candidate(d, slot, window)) candidates.push_back(&d);
    }
    std::ranges::stable_sort(candidates, std::greater{}, &Decision::size);
    if (first_ == First::kTight) {
      // Each load once: it takes a walk over the lifetime.
      std::vector<std::pair<Bytes, Decision*>> tight;
      for (Decision* d : candidates) tight.emplace_back(load_.most_in({d->lower, d->upper}), d);
      std::ranges::stable_sort(tight, std::greater{}, &std::pair<Bytes, Decision*>::first);
      std::ranges::transform(tight, candidates.begin(), &std::pair<Bytes, Decision*>::second);
    }
    std::vector<const Decision*> inside;
    for (Decision* d : candidates) {
      if (inside.size() >= most) break;
      const Offset offset = lowest(*d, inside);
      const Bytes size = align_up(d->size, plan_.alignment);
      if (offset + size > slot.size || !load_.exceeds(limit_, {d->lower, d->upper})) continue;
      d->slots = c;
      d->box = next_;
      d->offset = slot.offset + offset;
      load_.add(d->lower, d->upper, -size);
      inside.push_back(d);
    }
    return !inside.empty();
  }

  // The lowest offset in the box at which a request meets no other.
  Offset lowest(const Decision& d, const std::vector<const Decision*>& inside) const {
    std::vector<std::pair<Offset, Offset>> taken;
    for (const Decision* other : inside) {
      if (other->lower >= d.upper || d.lower >= other->upper) continue;
      const Offset begin = other->offset - plan_[other->slots].offset;
      taken.emplace_back(begin, begin + align_up(other->size, plan_.alignment));
    }
    std::ranges::sort(taken);
    Offset at = 0;
    for (const auto& [begin, end] : taken) {
      if (begin - at >= align_up(d.size, plan_.alignment)) break;
      at = std::max(at, end);
    }
    return at;
  }

  Plan& plan_;
  StreamId stream_;
  First first_;
  BoxIndex& next_;
  BoxIndex end_;
  Curve load_;  // of what lies above the slots
  NumbersApart numbers_;
  Bytes limit_ = 0;  // the load above the slots at which the pool meets the bound
  IndexedVector<SlotClassIndex, bool> holds_generations_;
  std::vector<SlotClassIndex> classes_;  // large slots first
};

// True for state in a box of state, and for a request that is freed in its iteration in any other.
bool may_live_in_box(const Decision& d, bool is_state, Tick period) {
  if (!is_state) return d.over == 0 && d.lower < d.upper && d.upper <= period;
  return d.over > 0 && d.over <= period && d.upper - d.lower == period;
}

void fill_all(Plan& plan, First first) {
  std::set<StreamId> streams;
  for (const SlotClass& c : plan.slots) {
    streams.insert(plan.streams == solve::Streams::kOrdered ? 0 : c.stream);
  }
  BoxIndex next(0);  // after those of generations
  for (const Decision& d : plan.decisions) next = std::max(next, d.box + 1);
  const BoxIndex end = next + kMostBoxes;
  for (const StreamId stream : streams) Filler(plan, stream, first, next, end).run();
}

std::string named(BoxIndex box) { return "box " + to_string(box) + ": "; }

}  // namespace

void add_boxes(Plan& plan) {
  Plan tight = plan;
  fill_all(plan, First::kLarge);
  const Bytes load = solve::load_bound(problem_of(plan));
  if (load <= solve::load_bound(real_problem(tight))) return;
  fill_all(tight, First::kTight);
  if (solve::load_bound(problem_of(tight)) < load) plan = std::move(tight);
}

void drop_boxes(Plan& plan) {
  for (Decision& d : plan.decisions) {
    if (d.box == kNone || d.over > 0) continue;
    d.slots = kNone;
    d.box = kNone;
  }
}

Bytes bound_with_slots(const Plan& plan) {
  std::vector<std::pair<const SlotClass*, TickInterval>> idle;
  Bytes slots = 0;
  for (const SlotClassIndex c : indices<SlotClassIndex>(plan.slots)) {
    slots += plan[c].size * plan[c].count;
    for (const TickInterval& window : spare_of(plan, c).at_least(1)) {
      idle.emplace_back(&plan[c], window);
    }
  }
  const NumbersApart numbers(plan);
  solve::Problem rest = problem_of(plan);
  rest.buffers.resize(rest.buffers.size() - plan.slots.size());
  for (std::size_t i = 0; i < plan.decisions.size(); ++i) {
    const Decision& d = plan.decisions[i];
    const bool may_lie_in_slot =
        !numbers.contains(d) && std::ranges::any_of(idle, [&](const auto& slot) {
          return fits(d, *slot.first, slot.second);
        });
    if (may_lie_in_slot || d.slots != kNone) rest.buffers[i].size = 0;
  }
  for (solve::Buffer& b : rest.buffers) b.fixed = kUnplaced;
  return std::max(solve::load_bound(real_problem(plan)), slots + solve::load_bound(rest));
}

std::vector<verify::SlotUse> check_boxes(const Plan& plan) {
  std::map<BoxIndex, std::vector<const Decision*>> boxes;
  for (const Decision& d : plan.decisions) {
    if (d.box != kNone) boxes[d.box].push_back(&d);
  }
  std::vector<verify::SlotUse> uses;
  for (const auto& [box, inside] : boxes) {
    const SlotClassIndex c = inside.front()->slots;
    if (!box.points_into(plan.decisions) || !c.points_into(plan.slots)) {
      throw PlanError(named(box) + "there are no slots " + to_string(c) + " for it");
    }
    const SlotClass& slots = plan[c];
    const bool is_state = inside.front()->over > 0;
    verify::SlotUse use{.slots = range_of(c),
                        .size = slots.size,
                        .lower = inside.front()->lower,
                        .upper = inside.front()->upper,
                        .stream = slots.stream};
    solve::Problem problem;
    problem.alignment = plan.alignment;
    solve::Layout layout;
    layout.height = slots.size;
    for (const Decision* d : inside) {
      if (d->slots != c || d->stream != slots.stream || d->law != kNone) {
        throw PlanError(named(box) + "a request of " + std::to_string(d->size) +
                        " bytes has another class or stream, or varies");
      }
      if (!may_live_in_box(*d, is_state, plan.period)) {
        throw PlanError(named(box) + "a request of " + std::to_string(d->size) +
                        " bytes lives from tick " + std::to_string(d->lower) + " to " +
                        std::to_string(d->upper) + " and " + std::to_string(d->over) +
                        " beyond, with iterations of " + std::to_string(plan.period));
      }
      const Tick upper = d->upper + d->over;
      use.lower = std::min(use.lower, d->lower);
      use.upper = std::max(use.upper, upper);
      problem.buffers.push_back({.size = d->size, .lower = d->lower, .upper = upper});
      layout.offsets.push_back(d->offset - slots.offset);
    }
    try {
      problem.check();
      verify::validate(problem, layout);
    } catch (const PlanError& error) {
      throw PlanError(named(box) + error.what());
    }
    uses.push_back(use);
  }
  return uses;
}

}  // namespace stalloc::plan
