#include "runtime/stream_order.h"

#include <algorithm>

#include "base/align.h"
#include "solve/waits.h"

namespace stalloc::runtime {

StreamOrder::StreamOrder(const plan::Plan& plan, device::DeviceStreams& streams,
                         const StreamTable& table, std::span<const Range> unplanned)
    : streams_(streams), table_(table), places_(plan.decisions.size()) {
  const solve::Problem problem = plan::problem_of(plan);
  const solve::Layout layout = plan::layout_of(plan);
  const auto range = [&](std::size_t i) {
    return Range{layout.offsets[i],
                 layout.offsets[i] + align_up(problem.buffers[i].size, problem.alignment)};
  };
  const auto share = [this](Range r) {
    shared_.remove(r);
    shared_.insert_merged(r);
  };
  // Time is circular: of two streams that share an address, each waits for the other.
  for (const auto& [buffer, after] : solve::find_waits(problem, layout)) {
    const Range mine = range(buffer);
    const Range before = range(after);
    share({std::max(mine.begin, before.begin), std::min(mine.end, before.end)});
    const plan::DecisionIndex d(after);  // decisions are the first buffers
    if (d.points_into(places_)) awaited_.try_emplace(d);
  }
  std::ranges::for_each(unplanned, share);
  for (const plan::DecisionIndex d : places_.indices()) {
    places_[d] = {range(d.position()), shared_.overlaps(range(d.position()))};
  }
  for (const solve::Buffer& b : problem.buffers) {
    if (b.stream < StreamTable::kStreams) ids_.push_back(b.stream);  // others make no requests
  }
  std::ranges::sort(ids_);
  ids_.erase(std::unique(ids_.begin(), ids_.end()), ids_.end());
  seen_.resize(ids_.size());
}

StreamOrder::~StreamOrder() {
  for (auto& [decision, awaited] : awaited_) recycle(awaited.events);
}

bool StreamOrder::concerns(const Block& block) const {
  if (block.decision != kNone) {
    const auto& [place, is_shared] = places_[block.decision];
    // An earlier layout had it elsewhere, or it lies in another slot.
    const bool is_there = block.range.begin == place.begin && block.range.end <= place.end;
    if (is_there) return is_shared;
  }
  return shared_.overlaps(block.range);
}

std::int64_t& StreamOrder::seen(StreamId stream) {
  return seen_[static_cast<std::size_t>(std::ranges::lower_bound(ids_, stream) - ids_.begin())];
}

bool StreamOrder::take(const Block& block, bool capturing) {
  if (!concerns(block)) return true;
  Freed needed;
  bool can_wait = true;
  last_.visit(block.range, [&](const Freed& last) {
    if (last.stream == block.stream) return;
    if (last.number > needed.number) needed = last;
    if (last.stream != kNone && table_.may_vanish(last.stream)) can_wait = false;
  });
  if (!can_wait) return false;
  std::int64_t& seen = this->seen(block.stream);
  // Another stream may have the handle of a destroyed one, and has not waited.
  if (needed.number == 0 || (seen >= needed.number && !table_.may_vanish(block.stream))) {
    return true;
  }
  if (capturing) return false;
  const auto awaited = awaited_.find(needed.decision);
  if (awaited != awaited_.end() && awaited->second.number == needed.number) {
    if (!wait_for_all(block.stream, awaited->second.events)) return false;
    seen = needed.number;
    return true;
  }
  record_all(late_);
  const bool waits = wait_for_all(block.stream, late_);
  recycle(late_);
  if (waits) seen = frees_;
  return waits;
}

void StreamOrder::record_all(Events& events) {
  table_.visit([&](StreamId i) {
    events.push_back({i, table_.may_vanish(i) ? nullptr : streams_.record(table_.handle_of(i))});
  });
}

void StreamOrder::recycle(Events& events) {
  for (const auto& [stream, event] : events) {
    if (event) streams_.recycle(event);
  }
  events.clear();
}

bool StreamOrder::wait_for_all(StreamId stream, const Events& events) {
  for (const auto& [other, event] : events) {
    if (other == stream || table_.may_vanish(other)) continue;
    if (!event || !streams_.wait(table_.handle_of(stream), event)) return false;
    ++waits_;
  }
  return true;
}

void StreamOrder::release(const Block& block, bool capturing) {
  if (!concerns(block)) return;
  if (const auto noted = noted_.find(block.range.begin); noted != noted_.end()) {
    last_.assign(block.range, {block.stream, block.decision, noted->second});
    noted_.erase(noted);
    return;
  }
  ++frees_;
  last_.assign(block.range, {block.stream, block.decision, frees_});
  if (!capturing) record_awaited(block);
}

void StreamOrder::note_free(const Block& block, bool capturing) {
  if (!concerns(block) || capturing || !awaited_.contains(block.decision)) return;
  noted_[block.range.begin] = ++frees_;
  record_awaited(block);
}

bool StreamOrder::covers_users(const Block& block) const {
  return noted_.contains(block.range.begin) && shared_.holds(block.range);
}

void StreamOrder::release_in_use(const Block& block) {
  const auto noted = noted_.find(block.range.begin);
  last_.assign(block.range, {kNone, block.decision, noted->second});
  noted_.erase(noted);
}

// Records the events of the free with the number frees_, if another stream is known to wait for it.
void StreamOrder::record_awaited(const Block& block) {
  const auto awaited = awaited_.find(block.decision);
  if (awaited == awaited_.end()) return;
  // Streams that wait for an earlier iteration's events have received the wait already.
  recycle(awaited->second.events);
  record_all(awaited->second.events);
  awaited->second.number = frees_;
}

}  // namespace stalloc::runtime
