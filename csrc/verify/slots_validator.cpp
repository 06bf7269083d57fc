#include "verify/slots_validator.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"

namespace stalloc::verify {
namespace {

std::string named(std::string_view table, std::size_t row) {
  return std::string(table) + ", row " + std::to_string(row) + ": ";
}

void check_range(const SlotRange& r, std::size_t row, Bytes alignment, Bytes pool) {
  const bool sound = r.size > 0 && r.size % alignment == 0 && r.count > 0 && r.stream >= 0 &&
                     r.offset >= 0 && r.offset % alignment == 0 && r.offset <= pool &&
                     r.count <= (pool - r.offset) / r.size;
  if (sound) return;
  throw PlanError(named("slots", row) + std::to_string(r.count) + " slots of " +
                  std::to_string(r.size) + " bytes at " + std::to_string(r.offset) + " on stream " +
                  std::to_string(r.stream) + " are empty, not aligned, or outside the pool of " +
                  std::to_string(pool));
}

void check_use(const SlotUse& use, std::size_t row, std::span<const SlotRange> classes,
               Tick period) {
  if (!use.slots.points_into(classes)) {
    throw PlanError(named("slot uses", row) + "there are no slots " + to_string(use.slots));
  }
  const SlotRange& range = classes[use.slots.position()];
  if (use.size <= 0 || use.size > range.size || use.stream != range.stream) {
    throw PlanError(named("slot uses", row) + std::to_string(use.size) + " bytes on stream " +
                    std::to_string(use.stream) + " do not fit the slots of " +
                    std::to_string(range.size) + " bytes on stream " +
                    std::to_string(range.stream));
  }
  const bool sound = use.lower >= 0 && use.lower < period && use.upper > use.lower &&
                     (use.upper - use.lower + 1) / 2 <= period;
  if (!sound) {
    throw PlanError(named("slot uses", row) + "lives from tick " + std::to_string(use.lower) +
                    " to " + std::to_string(use.upper) + ", with iterations of " +
                    std::to_string(period));
  }
}

// The most uses of class `c` that are live at one moment of an endless repetition.
std::int64_t most_live(std::span<const SlotUse> uses, SlotRangeIndex c, Tick period) {
  std::vector<std::pair<Tick, std::int64_t>> changes;
  std::int64_t live = 0;
  for (const SlotUse& use : uses) {
    if (use.slots != c) continue;
    const Tick ticks = use.upper - use.lower;
    live += ticks / period;  // at every moment
    const Tick over = ticks % period;
    if (over == 0) continue;
    changes.emplace_back(use.lower, 1);
    const Tick left = period - use.lower;  // of the iteration
    if (over <= left) {
      changes.emplace_back(use.lower + over, -1);
    } else {
      changes.emplace_back(0, 1);
      changes.emplace_back(over - left, -1);
    }
  }
  std::ranges::sort(changes);  // frees before births: lifetimes are half-open
  std::int64_t most = live;
  for (const auto& [tick, change] : changes) most = std::max(most, live += change);
  return most;
}

}  // namespace

void validate_slots(std::span<const SlotRange> classes, std::span<const SlotUse> uses, Tick period,
                    Bytes alignment, Bytes pool) {
  for (std::size_t i = 0; i < classes.size(); ++i) check_range(classes[i], i, alignment, pool);
  for (std::size_t i = 0; i < uses.size(); ++i) check_use(uses[i], i, classes, period);
  for (std::size_t i = 0; i < classes.size(); ++i) {
    const std::int64_t needed = most_live(uses, SlotRangeIndex(i), period);
    if (needed > classes[i].count) {
      throw PlanError(named("slots", i) + std::to_string(classes[i].count) + " slots, and up to " +
                      std::to_string(needed) + " requests live at once");
    }
  }
}

}  // namespace stalloc::verify
