#include "runtime/static_pool.h"

#include <algorithm>
#include <bit>
#include <string>
#include <tuple>

#include "base/align.h"
#include "base/error.h"

namespace stalloc {

StaticPool::StaticPool(const Plan& plan)
    : size_(plan.pool), alignment_(plan.alignment), decisions_(plan.decisions.size()) {
  const std::size_t n = plan.decisions.size();
  slot_bits_ = std::bit_width(std::max<std::size_t>(2 * n, 2) - 1);
  slots_.resize(std::size_t{1} << slot_bits_);

  // Frees come before allocations of the same tick: lifetimes are half-open. A wrap-around
  // decision's free is the one of the turn before, at the start of this one.
  std::vector<std::tuple<Tick, bool, std::int32_t>> ordered;  // (tick, is allocation, decision)
  ordered.reserve(2 * n);
  for (std::size_t i = 0; i < n; ++i) {
    const Decision& d = plan.decisions[i];
    const auto index = static_cast<std::int32_t>(i);
    const Tick freed = d.upper > plan.period ? d.upper - plan.period : d.upper;
    ordered.emplace_back(d.lower, true, index);
    ordered.emplace_back(freed, false, index);
    decisions_[i].offset = d.offset;
    decisions_[i].size = align_up(d.size, alignment_);
    decisions_[i].requested = d.size;
    decisions_[i].slot = claim_slot(d.offset);
  }
  std::sort(ordered.begin(), ordered.end());
  events_.reserve(ordered.size());
  for (const auto& [tick, is_allocation, index] : ordered) {
    Placed& p = decisions_[static_cast<std::size_t>(index)];
    (is_allocation ? p.allocated_at : p.freed_at) = static_cast<std::int32_t>(events_.size());
    events_.push_back({index, !is_allocation});
  }
}

bool StaticPool::is_current(const Placed& p) const {
  const bool allocated = p.allocated_at < clock_;
  const bool freed = p.freed_at < clock_;
  return p.allocated_at < p.freed_at ? allocated && !freed : allocated || !freed;
}

Offset StaticPool::place(std::int32_t d) {
  Placed& p = decisions_[static_cast<std::size_t>(d)];
  idle_known_ = false;
  if (p.allocated_at >= clock_) {
    advance(p.allocated_at + 1);
  } else if (!is_current(p)) {
    return kUnplaced;
  }
  // Not idle when last iteration's block of this decision is still there.
  if (p.state != State::kIdle) return kUnplaced;
  if (!strays_.empty() && strays_.overlaps(range(p))) return kUnplaced;
  p.state = State::kRegular;
  slots_[static_cast<std::size_t>(p.slot)].live = d;
  ++live_;
  return p.offset;
}

void StaticPool::advance(std::int32_t position) {
  for (; clock_ < position; ++clock_) {
    const Event e = events_[static_cast<std::size_t>(clock_)];
    Placed& p = decisions_[static_cast<std::size_t>(e.decision)];
    if (e.is_free && p.state == State::kRegular) {
      p.state = State::kStray;
      strays_.insert(range(p));
    } else if (!e.is_free && p.state == State::kStray) {
      p.state = State::kRegular;
      strays_.erase(p.offset);
    }
  }
}

void StaticPool::end_iteration() {
  advance(static_cast<std::int32_t>(events_.size()));
  clock_ = 0;
}

Offset StaticPool::place_idle(Bytes size) {
  if (!idle_known_) {
    idle_ = find_idle();
    idle_known_ = true;
  }
  const Bytes rounded = align_up(size, alignment_);
  const Range* fit = idle_.best_fit(rounded);
  if (!fit) return kUnplaced;
  const Range block{fit->begin, fit->begin + rounded};
  idle_.subtract(block);
  strays_.insert(block);
  foreign_.emplace(block.begin, size);
  ++live_;
  return block.begin;
}

Bytes StaticPool::release(Offset offset) {
  Range freed;
  Bytes requested = 0;
  const std::int32_t slot = find_slot(offset);
  if (slot != kNone && slots_[static_cast<std::size_t>(slot)].live != kNone) {
    Slot& s = slots_[static_cast<std::size_t>(slot)];
    Placed& p = decisions_[static_cast<std::size_t>(s.live)];
    freed = range(p);
    requested = p.requested;
    if (p.state == State::kStray) strays_.erase(offset);
    p.state = State::kIdle;
    s.live = kNone;
  } else if (const auto foreign = foreign_.find(offset); foreign != foreign_.end()) {
    freed = *strays_.find(offset);
    requested = foreign->second;
    strays_.erase(offset);
    foreign_.erase(foreign);
  } else {
    return kNotLive;
  }
  if (idle_known_) idle_.insert_merged(freed);
  --live_;
  return requested;
}

RangeSet StaticPool::find_idle() const {
  std::vector<Range> taken = strays_.ranges();
  for (const Slot& s : slots_) {
    if (s.live == kNone) continue;
    const Placed& p = decisions_[static_cast<std::size_t>(s.live)];
    if (p.state == State::kRegular) taken.push_back(range(p));
  }
  std::sort(taken.begin(), taken.end(),
            [](const Range& a, const Range& b) { return a.begin < b.begin; });
  RangeSet idle;
  Offset at = 0;
  for (const Range& t : taken) {
    if (at < t.begin) idle.insert({at, t.begin});
    at = t.end;
  }
  if (at < size_) idle.insert({at, size_});
  return idle;
}

Bytes StaticPool::largest_hole() const { return find_idle().largest(); }

std::size_t StaticPool::hash(Offset offset) const {
  // Fibonacci hashing: offsets are multiples of the alignment, so the low bits say nothing.
  const auto key = static_cast<std::uint64_t>(offset / alignment_);
  return static_cast<std::size_t>((key * 0x9E3779B97F4A7C15u) >> (64 - slot_bits_));
}

// Both searches end: at most half of the slots are claimed.
std::int32_t StaticPool::find_slot(Offset offset) const {
  for (std::size_t i = hash(offset);; i = (i + 1) & (slots_.size() - 1)) {
    if (slots_[i].offset == offset) return static_cast<std::int32_t>(i);
    if (slots_[i].offset == kUnplaced) return kNone;
  }
}

std::int32_t StaticPool::claim_slot(Offset offset) {
  for (std::size_t i = hash(offset);; i = (i + 1) & (slots_.size() - 1)) {
    if (slots_[i].offset == kUnplaced) slots_[i].offset = offset;
    if (slots_[i].offset == offset) return static_cast<std::int32_t>(i);
  }
}

void StaticPool::check() const {
  const auto fail = [](const std::string& what) { throw Error("static pool: " + what); };
  std::vector<Range> taken = strays_.ranges();
  for (std::size_t i = 0; i < decisions_.size(); ++i) {
    const Placed& p = decisions_[i];
    const bool live = p.state != State::kIdle;
    if (live != (slots_[static_cast<std::size_t>(p.slot)].live == static_cast<std::int32_t>(i))) {
      fail("decision " + std::to_string(i) + " and its slot disagree about being live");
    }
    if (p.state == State::kRegular) {
      taken.push_back(range(p));
      if (!is_current(p)) fail("regular decision " + std::to_string(i) + " is past its time");
    }
    if (p.state == State::kStray) {
      const Range* stray = strays_.find(p.offset);
      if (!stray || !(*stray == range(p))) {
        fail("stray decision " + std::to_string(i) + " is not among the strays");
      }
      if (is_current(p)) fail("stray decision " + std::to_string(i) + " is in its time");
    }
  }
  if (taken.size() != live_) fail("the count of live blocks is off");
  std::sort(taken.begin(), taken.end(),
            [](const Range& a, const Range& b) { return a.begin < b.begin; });
  Offset at = 0;
  for (const Range& t : taken) {
    if (t.begin < at) fail("two live blocks share the address " + std::to_string(t.begin));
    at = t.end;
  }
  if (at > size_) fail("a live block ends at " + std::to_string(at) + ", past the pool");
  if (idle_known_ && !(find_idle().ranges() == idle_.ranges())) {
    fail("the idle space is not what is left of the pool");
  }
}

}  // namespace stalloc
