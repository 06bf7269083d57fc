#include "plan/boxes.h"

#include <algorithm>
#include <limits>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "base/align.h"
#include "base/error.h"
#include "plan/slots.h"
#include "solve/core/bound.h"
#include "verify/validator.h"

namespace stalloc::plan {
namespace {

// The runtime looks through the live requests of a box, and requests much smaller than the slot
// save little. So this many fit side by side at most.
constexpr Bytes kMostAbreast = 32;

constexpr BoxIndex kMostBoxes(512);
constexpr std::size_t kMostInBox = 256;

struct Interval {
  Tick lower = 0;
  Tick upper = 0;
};

// A sum over one period that changes at ticks.
class Curve {
 public:
  explicit Curve(Tick period) : period_(period) { values_[0] = 0; }

  // `upper` may lie in the next period.
  void add(Tick lower, Tick upper, std::int64_t value) {
    if (upper <= lower) return;
    if (upper > period_) {
      change(0, upper - period_, value);
      upper = period_;
    }
    change(lower, upper, value);
  }

  std::int64_t most() const {
    std::int64_t most = std::numeric_limits<std::int64_t>::min();
    for (const auto& [tick, value] : values_) most = std::max(most, value);
    return most;
  }

  // True if it is above `limit` anywhere in the interval, which lies within the period.
  bool exceeds(std::int64_t limit, Interval in) const {
    for (auto at = std::prev(values_.upper_bound(in.lower));
         at != values_.end() && at->first < in.upper; ++at) {
      if (at->second > limit) return true;
    }
    return false;
  }

  // The longest intervals in which it is at least `limit`.
  std::vector<Interval> at_least(std::int64_t limit) const {
    std::vector<Interval> result;
    bool inside = false;
    for (const auto& [tick, value] : values_) {
      if (value >= limit && !inside) result.push_back({tick, period_});
      if (value < limit && inside) result.back().upper = tick;
      inside = value >= limit;
    }
    return result;
  }

 private:
  std::map<Tick, std::int64_t>::iterator split(Tick tick) {
    const auto after = values_.upper_bound(tick);
    return values_.try_emplace(after, tick, std::prev(after)->second);
  }

  void change(Tick lower, Tick upper, std::int64_t value) {
    if (upper <= lower) return;
    const auto end = upper >= period_ ? values_.end() : split(upper);
    for (auto at = split(lower); at != end; ++at) at->second += value;
  }

  Tick period_;
  std::map<Tick, std::int64_t> values_;  // each until the next
};

// Fills the idle slots of the classes of one stream; of all where streams share addresses.
class Filler {
 public:
  Filler(Plan& plan, StreamId stream, BoxIndex& next)
      : plan_(plan), stream_(stream), next_(next), load_(plan.period) {
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
      const Curve spare = spare_of(c);
      const std::int64_t most = spare.most();
      for (std::int64_t level = 1; level <= most; ++level) {
        for (const Interval& window : spare.at_least(level)) {
          if (load_.most() <= limit_ || next_ >= kMostBoxes) return;
          if (load_.exceeds(limit_, window) && fill(c, window)) ++next_;
        }
      }
    }
  }

 private:
  bool is_own(StreamId stream) const {
    return plan_.streams == solve::Streams::kOrdered || stream == stream_;
  }

  Curve spare_of(SlotClassIndex c) const {
    Curve spare(plan_.period);
    spare.add(0, plan_.period, plan_[c].count);
    for (const Decision& d : plan_.decisions) {
      if (d.slots != c || d.box != kNone) continue;
      spare.add(0, plan_.period, -1);
      spare.add(d.lower, d.lower + d.over, -1);
    }
    return spare;
  }

  bool fits(const Decision& d, const SlotClass& c, Interval window) const {
    return d.slots == kNone && d.law == kNone && d.stream == c.stream && d.size <= c.size &&
           d.size >= c.size / kMostAbreast && d.lower >= window.lower && d.upper <= window.upper;
  }

  // Fills one slot of the class throughout the window.
  bool fill(SlotClassIndex c, Interval window) {
    const SlotClass slot = plan_[c];
    std::vector<Decision*> candidates;
    for (Decision& d : plan_.decisions) {
      if (fits(d, slot, window)) candidates.push_back(&d);
    }
    std::ranges::stable_sort(candidates, std::greater{}, &Decision::size);
    std::vector<const Decision*> inside;
    for (Decision* d : candidates) {
      if (inside.size() >= kMostInBox) break;
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
  BoxIndex& next_;
  Curve load_;       // of what lies above the slots
  Bytes limit_ = 0;  // the load above the slots at which the pool meets the bound
  std::vector<SlotClassIndex> classes_;  // large slots first
};

std::string named(BoxIndex box) { return "box " + to_string(box) + ": "; }

}  // namespace

void add_boxes(Plan& plan) {
  std::set<StreamId> streams;
  for (const SlotClass& c : plan.slots) {
    streams.insert(plan.streams == solve::Streams::kOrdered ? 0 : c.stream);
  }
  BoxIndex next(0);
  for (const StreamId stream : streams) Filler(plan, stream, next).run();
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
      if (d->slots != c || d->stream != slots.stream || d->over != 0 || d->law != kNone ||
          d->upper > plan.period || d->upper <= d->lower) {
        throw PlanError(named(box) + "a request of " + std::to_string(d->size) +
                        " bytes has another class or stream, or lives too long");
      }
      use.lower = std::min(use.lower, d->lower);
      use.upper = std::max(use.upper, d->upper);
      problem.buffers.push_back({.size = d->size, .lower = d->lower, .upper = d->upper});
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
