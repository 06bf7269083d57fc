#include "plan/generations.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>
#include <vector>

#include "base/align.h"
#include "plan/slots.h"

namespace stalloc::plan {
namespace {

using Generation = std::vector<DecisionIndex>;

// The requests of one stream that are handed over together, two or more each. `state`: those of the
// stream.
std::vector<Generation> generations_of(const Plan& plan, const std::vector<DecisionIndex>& state) {
  std::vector<std::tuple<Tick, bool, DecisionIndex>> events;  // (tick, is allocation, decision)
  for (const DecisionIndex d : state) {
    events.emplace_back(plan[d].lower, true, d);
    events.emplace_back((plan[d].upper + plan[d].over) % plan.period, false, d);
  }
  std::ranges::sort(events);
  std::vector<Generation> all(1);
  for (const auto& [tick, is_allocation, d] : events) {
    if (!is_allocation) {
      if (!all.back().empty()) all.emplace_back();
    } else if (plan[d].law == kNone) {
      all.back().push_back(d);
    }
  }
  std::erase_if(all, [](const Generation& g) { return g.size() < 2; });
  return all;
}

// Puts the requests of a generation one above the other into a box. Returns the bytes of its slot.
Bytes stack(Plan& plan, const Generation& generation, SlotClassIndex slots, BoxIndex box) {
  Offset end = 0;
  for (const DecisionIndex d : generation) {
    plan[d].slots = slots;
    plan[d].box = box;
    plan[d].offset = end;
    end += align_up(plan[d].size, plan.alignment);
  }
  return end;
}

// Removes the classes that no request has.
void drop_unused(Plan& plan) {
  IndexedVector<SlotClassIndex, SlotClassIndex> kept(plan.slots.size(), kNone);
  for (const Decision& d : plan.decisions) {
    if (d.slots != kNone) kept[d.slots] = d.slots;
  }
  std::vector<SlotClass> slots;
  for (const SlotClassIndex c : kept.indices()) {
    if (kept[c] == kNone) continue;
    kept[c] = SlotClassIndex(slots.size());
    slots.push_back(plan[c]);
  }
  plan.slots = std::move(slots);
  for (Decision& d : plan.decisions) {
    if (d.slots != kNone) d.slots = kept[d.slots];
  }
}

}  // namespace

bool join_generations(Plan& plan) {
  std::map<StreamId, std::vector<DecisionIndex>> state;
  for (const DecisionIndex d : indices<DecisionIndex>(plan.decisions)) {
    if (plan[d].slots != kNone) state[plan[d].stream].push_back(d);
  }
  std::map<std::pair<Bytes, StreamId>, SlotClassIndex> classes;
  BoxIndex next(0);
  for (const auto& [stream, members] : state) {
    for (const Generation& generation : generations_of(plan, members)) {
      const SlotClassIndex own(plan.slots.size());
      const Bytes size = stack(plan, generation, own, next++);
      const auto [it, is_new] = classes.try_emplace({size, stream}, own);
      if (is_new) plan.slots.push_back({.size = size, .stream = stream});
      for (const DecisionIndex d : generation) plan[d].slots = it->second;
    }
  }
  if (next == BoxIndex(0)) return false;
  drop_unused(plan);
  count_slots(plan);
  return true;
}

}  // namespace stalloc::plan
