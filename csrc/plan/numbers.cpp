#include "plan/numbers.h"

#include <algorithm>
#include <map>
#include <vector>

#include "base/align.h"

namespace stalloc::plan {
namespace {

// Numbers that take turns have so many units at least: one that is kept blocks few others.
constexpr std::size_t kUnits = 8;

using Unit = std::vector<Decision*>;  // by `lower`; none lives beyond the next one's beginning

Bytes unit_of(const Plan& plan) { return align_up(kNumber, plan.alignment); }

// True if the decisions, which have one address, fill a period side by side.
bool fill_period(std::vector<const Decision*>& unit, Tick period) {
  std::ranges::sort(unit, {}, &Decision::lower);
  Tick end = unit.front()->lower;
  for (const Decision* d : unit) {
    if (d->lower != end) return false;
    end = d->upper;
  }
  return end == unit.front()->lower + period;
}

// The units of numbers that take turns, in order of their allocation. Each takes the free unit of
// its stream that was used least recently, once there are `least` of them.
std::vector<Unit> in_turns(const std::vector<Decision*>& numbers, std::size_t least) {
  std::vector<Unit> units;
  for (Decision* d : numbers) {
    Unit* unit = nullptr;
    for (Unit& u : units) {
      if (u.back()->upper > d->lower || u.back()->stream != d->stream) continue;
      if (!unit || u.back()->upper < unit->back()->upper) unit = &u;
    }
    if (!unit || units.size() < least) unit = &units.emplace_back();
    unit->push_back(d);
  }
  return units;
}

}  // namespace

void set_numbers_apart(Plan& plan) {
  if (plan.alignment <= 0) return;  // such a plan is refused
  std::vector<Decision*> lasting;   // beyond their phase
  std::vector<Decision*> brief;
  for (Decision& d : plan.decisions) {
    if (!NumbersApart::is_number(d)) continue;
    (d.phase != d.phase_end || d.upper > plan.period ? lasting : brief).push_back(&d);
  }
  std::ranges::stable_sort(brief, {}, &Decision::lower);
  const Bytes most = plan.load / kNumberParts / unit_of(plan);  // units
  std::vector<Unit> units = in_turns(brief, std::min<std::size_t>(kUnits, brief.size()));
  if (std::ssize(units) + std::ssize(lasting) > most) units = in_turns(brief, 0);
  for (Decision* d : lasting) units.push_back({d});
  if (std::ssize(units) > most) return;
  for (std::size_t i = 0; i < units.size(); ++i) {
    const Unit& unit = units[i];
    for (std::size_t k = 0; k < unit.size(); ++k) {
      const bool is_last = k + 1 == unit.size();
      unit[k]->offset = static_cast<Offset>(i) * unit_of(plan);
      unit[k]->upper = is_last ? unit.front()->lower + plan.period : unit[k + 1]->lower;
    }
  }
}

NumbersApart::NumbersApart(const Plan& plan) {
  if (plan.alignment <= 0) return;
  std::map<Offset, std::vector<const Decision*>> units;
  for (const Decision& d : plan.decisions) {
    if (is_number(d)) units[d.offset].push_back(&d);
  }
  if (units.empty()) return;
  begin_ = units.begin()->first;
  Offset end = begin_;
  for (auto& [offset, unit] : units) {
    if (offset != end || !fill_period(unit, plan.period)) return;
    end += unit_of(plan);
  }
  size_ = end - begin_;
}

Offset NumbersApart::place(Plan& plan, Offset begin) const {
  for (Decision& d : plan.decisions) {
    if (contains(d)) d.offset += begin - begin_;
  }
  return begin + size_;
}

}  // namespace stalloc::plan
