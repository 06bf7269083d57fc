#include "runtime/program_order.h"

#include <algorithm>
#include <utility>

namespace stalloc::runtime {
namespace {

// cudaStreamLegacy names the default stream, too.
ProgramOrder::Handle known_as(ProgramOrder::Handle stream) { return stream == 1 ? 0 : stream; }

}  // namespace

ProgramOrder::Clock* ProgramOrder::clock_of(Handle stream, Tick now) {
  if (const auto known = clocks_.find(stream); known != clocks_.end()) return &known->second;
  if (clocks_.size() == kMostStreams) return nullptr;
  Clock& clock = clocks_[stream];
  merge(stream, host_, now);
  return &clock;
}

ProgramOrder::Clock ProgramOrder::after_all_of(Handle stream, Tick now) {
  const Clock* own = clock_of(stream, now);
  if (!own) return {};
  Clock clock = *own;
  clock[stream] = {now, own_events_[stream].size()};
  return clock;
}

void ProgramOrder::merge(Handle stream, const Clock& later, Tick now) {
  Clock& clock = clocks_.at(stream);
  for (const auto& [other, upto] : later) {
    if (other == stream) continue;
    const auto [entry, is_new] = clock.try_emplace(other, upto);
    if (!is_new && entry->second.events >= upto.events) continue;
    entry->second = upto;
    rows_.push_back({now, stream, other, upto});
  }
}

void ProgramOrder::merge_into_all(const Clock& later, Tick now) {
  for (const auto& [other, upto] : later) {
    if (host_[other].events <= upto.events) host_[other] = upto;
  }
  for (const auto& [stream, clock] : clocks_) merge(stream, later, now);
}

void ProgramOrder::record(Handle event, Handle stream, Tick now) {
  stream = known_as(stream);
  own_events_[stream].push_back(now);
  events_[event] = after_all_of(stream, now);
}

void ProgramOrder::wait(Handle event, Handle stream, Tick now) {
  const auto recorded = events_.find(event);
  stream = known_as(stream);
  if (recorded == events_.end() || !clock_of(stream, now)) return;
  own_events_[stream].push_back(now);
  merge(stream, recorded->second, now);
}

void ProgramOrder::synchronize_event(Handle event, Tick now) {
  if (const auto recorded = events_.find(event); recorded != events_.end()) {
    merge_into_all(recorded->second, now);
  }
}

void ProgramOrder::synchronize_stream(Handle stream, Tick now) {
  own_events_[known_as(stream)].push_back(now);
  merge_into_all(after_all_of(known_as(stream), now), now);
}

void ProgramOrder::synchronize_device(Tick now) {
  Clock all;
  for (const auto& [stream, clock] : clocks_) {
    own_events_[stream].push_back(now);
    all[stream] = {now, own_events_[stream].size()};
  }
  merge_into_all(all, now);
}

std::vector<Order> ProgramOrder::take(const StreamTable& table, Tick end) {
  std::vector<Order> orders;
  for (const auto& [tick, stream, after, upto] : std::exchange(rows_, {})) {
    const StreamId id = table.find(reinterpret_cast<device::StreamHandle>(stream));
    const StreamId other = table.find(reinterpret_cast<device::StreamHandle>(after));
    if (id == kNone || other == kNone) continue;
    const std::vector<Tick>& events = own_events_[after];
    const std::vector<Tick>& allocations = allocations_[other];
    Tick busy = upto.events < events.size() ? events[upto.events] : end;
    const auto next = std::ranges::lower_bound(allocations, upto.tick);
    if (next != allocations.end()) busy = std::min(busy, *next);
    orders.push_back({tick, id, other, busy});
  }
  *this = ProgramOrder();
  return orders;
}

}  // namespace stalloc::runtime
