// Follows the order that a program gives the streams of a device, by its own events.
//
// Each stream has a clock: for every other stream, up to which tick its work comes before all that
// this stream gets from now on. An event carries the clock of the stream that recorded it; a stream
// that waits for it takes over what is later there. If the host waits for an event, all streams do.
//
//   stream 0   work  event(tick 5)               work(tick 9)
//   stream 1                  wait(tick 7) work                   row: tick 7, 1 after 0 up to 9
//
// A stream counts as idle from an event that it records to its next allocation, event or wait: its
// work in between, if any, is not seen.
//
// Only a profile does this: plans use it to see where streams may share addresses without a wait
// that the program does not have. No run relies on it.
//
// Cost: O(streams) an event. Not thread-safe: Recorder locks.
#pragma once

#include <map>
#include <unordered_map>
#include <vector>

#include "base/order.h"
#include "base/types.h"
#include "runtime/stream_table.h"

namespace stalloc::runtime {

class ProgramOrder {
 public:
  using Handle = std::uintptr_t;  // of an event or a stream in the device's library

  void record(Handle event, Handle stream, Tick now);
  // Ignores an event that was not recorded.
  void wait(Handle event, Handle stream, Tick now);
  // The event is gone: its handle may name another one.
  void forget(Handle event) { events_.erase(event); }
  // The host has waited.
  void synchronize_event(Handle event, Tick now);
  void synchronize_stream(Handle stream, Tick now);
  void synchronize_device(Tick now);

  // `stream` may have got work: it has allocated.
  void note_work(StreamId stream, Tick now) { allocations_[stream].push_back(now); }

  // The rows between streams that have a number, ascending by tick; forgets everything. `end`: the
  // tick of the recording's end.
  std::vector<Order> take(const StreamTable& table, Tick end);

  // Further streams are not followed.
  static constexpr std::size_t kMostStreams = 64;

 private:
  struct Point {  // in the life of a stream
    Tick tick = 0;
    std::size_t events = 0;  // that it had recorded or awaited
  };
  using Clock = std::map<Handle, Point>;
  struct Row {
    Tick tick = 0;
    Handle stream = 0;
    Handle after = 0;
    Point upto;
  };

  Clock* clock_of(Handle stream, Tick now);
  Clock after_all_of(Handle stream, Tick now);
  void merge(Handle stream, const Clock& later, Tick now);
  void merge_into_all(const Clock& later, Tick now);

  std::map<Handle, Clock> clocks_;
  std::map<Handle, std::vector<Tick>> own_events_;  // recorded or awaited by the stream
  std::map<StreamId, std::vector<Tick>> allocations_;
  Clock host_;
  std::unordered_map<Handle, Clock> events_;
  std::vector<Row> rows_;
};

}  // namespace stalloc::runtime
