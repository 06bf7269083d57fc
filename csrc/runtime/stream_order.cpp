#include "runtime/stream_order.h"

#include <algorithm>
#include <iterator>

#include "base/align.h"
#include "plan/waits.h"

namespace stalloc {

StreamOrder::StreamOrder(const Plan& plan, DeviceStreams& streams, const StreamTable& table)
    : streams_(streams), table_(table), has_shared_(plan.decisions.size(), false) {
  const Problem problem = problem_of(plan);
  const Layout layout = layout_of(plan);
  const auto range = [&](std::size_t i) {
    return Range{layout.offsets[i],
                 layout.offsets[i] + align_up(problem.buffers[i].size, problem.alignment)};
  };
  // Time is a circle: where two streams have an address, each of them waits for the other there.
  for (const auto& [buffer, after] : find_waits(problem, layout)) {
    const Range mine = range(static_cast<std::size_t>(buffer));
    const Range before = range(static_cast<std::size_t>(after));
    const Range both{std::max(mine.begin, before.begin), std::min(mine.end, before.end)};
    shared_.remove(both);
    shared_.insert_merged(both);
    if (static_cast<std::size_t>(after) < has_shared_.size()) awaited_.try_emplace(after);
  }
  for (std::size_t i = 0; i < has_shared_.size(); ++i) has_shared_[i] = shared_.overlaps(range(i));
  for (const Buffer& b : problem.buffers) {
    if (b.stream < StreamTable::kStreams) ids_.push_back(b.stream);  // no other ever comes
  }
  std::ranges::sort(ids_);
  ids_.erase(std::unique(ids_.begin(), ids_.end()), ids_.end());
  needed_.resize(ids_.size());
  seen_.resize(ids_.size() * ids_.size());
}

StreamOrder::~StreamOrder() {
  for (const auto& [decision, awaited] : awaited_) {
    if (awaited.event) streams_.recycle(awaited.event);
  }
}

bool StreamOrder::concerns(const Block& block) const {
  return block.decision != kNone ? has_shared_[static_cast<std::size_t>(block.decision)]
                                 : shared_.overlaps(block.range);
}

std::size_t StreamOrder::index(StreamId stream) const {
  return static_cast<std::size_t>(std::ranges::lower_bound(ids_, stream) - ids_.begin());
}

bool StreamOrder::take(const Block& block, bool capturing) {
  if (!concerns(block)) return true;
  std::ranges::fill(needed_, Last{});
  auto it = last_.upper_bound(block.range.begin);
  if (it != last_.begin() && std::prev(it)->second.end > block.range.begin) --it;
  for (; it != last_.end() && it->first < block.range.end; ++it) {
    const Last& last = it->second;
    Last& needed = needed_[index(last.stream)];
    if (last.stream != block.stream && last.number > needed.number) needed = last;
  }
  for (const Last& last : needed_) {
    if (last.number > 0 && !wait_for(block.stream, last, capturing)) return false;
  }
  return true;
}

bool StreamOrder::wait_for(StreamId stream, const Last& last, bool capturing) {
  std::int64_t& seen = this->seen(stream, last.stream);
  if (seen >= last.number) return true;
  if (capturing) return false;
  const auto awaited = awaited_.find(last.decision);
  const bool recorded =
      awaited != awaited_.end() && awaited->second.event && awaited->second.number == last.number;
  const EventHandle event =
      recorded ? awaited->second.event : streams_.record(table_.handle_of(last.stream));
  if (!event) return false;
  const bool waits = streams_.wait(table_.handle_of(stream), event);
  if (!recorded) streams_.recycle(event);
  if (!waits) return false;
  ++waits_;
  seen = recorded ? last.number : frees_;
  return true;
}

void StreamOrder::release(const Block& block, bool capturing) {
  if (!concerns(block)) return;
  ++frees_;
  remember(block.range, {block.range.end, block.stream, block.decision, frees_});
  const auto awaited = awaited_.find(block.decision);
  if (awaited == awaited_.end() || capturing) return;
  // Whoever waits for the event of an earlier turn has been told to.
  if (awaited->second.event) streams_.recycle(awaited->second.event);
  awaited->second = {streams_.record(table_.handle_of(block.stream)), frees_};
}

void StreamOrder::remember(Range r, const Last& last) {
  cut(r.begin);
  cut(r.end);
  last_.erase(last_.lower_bound(r.begin), last_.lower_bound(r.end));
  last_[r.begin] = last;
}

// Nothing reaches across `at` any more.
void StreamOrder::cut(Offset at) {
  const auto above = last_.lower_bound(at);
  if (above == last_.begin()) return;
  Last& below = std::prev(above)->second;
  if (below.end <= at) return;
  last_.emplace_hint(above, at, below);
  below.end = at;
}

}  // namespace stalloc
