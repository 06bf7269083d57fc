// Orders the streams of a plan that lets addresses go from one stream to another
// (Streams::kOrdered).
//
// Freed only means that the host has let go of a block: its stream may still be at work on it, and
// so may others, for which it was to wait later. So it is remembered who was freed last at every
// address that several streams have, and when a block of another stream gets the address, that
// stream waits on the device for all that any stream had been given by the free. The host never
// waits.
//
//   stream 0   [ a ] event                    what is given to them from here on is not waited for
//   stream 1         event
//   stream 2                 wait for both [ b, where a lay ]
//
// The last user is known from what has happened, not from the plan: requests that are late, missing
// or unknown to the plan change nothing. The plan tells which frees will be waited for if all goes
// by it: with these, events are recorded. Where another is waited for, events are recorded when
// they are needed: after more work than need be, never after less.
//
// A stream that has waited waits for nothing that was freed earlier. During a capture no event is
// recorded or waited for.
//
// Cost: for a decision whose addresses are one stream's, a look at its entry; for others O(log n)
// and a handful of calls of the device's library for each stream that the process has used. Not
// thread-safe: PlannedAllocator locks.
#pragma once

#include <cstdint>
#include <map>
#include <memory_resource>
#include <vector>

#include "base/range_map.h"
#include "base/range_set.h"
#include "base/types.h"
#include "device/streams.h"
#include "plan/plan.h"
#include "runtime/stream_table.h"

namespace stalloc::runtime {

class StreamOrder {
 public:
  // `plan` has passed check(). The others outlive this. O(n log n) for n decisions.
  StreamOrder(const plan::Plan& plan, device::DeviceStreams& streams, const StreamTable& table);
  StreamOrder(const StreamOrder&) = delete;
  StreamOrder& operator=(const StreamOrder&) = delete;
  ~StreamOrder();

  struct Block {
    Range range;
    StreamId stream = 0;                   // one of the plan's, with a number in the table
    plan::DecisionIndex decision = kNone;  // if it is one
  };

  // True if `block`, on its way to a request, may be used by what its stream is given from now on:
  // false when the stream could not be made to wait for those before it.
  bool take(const Block& block, bool capturing);

  // `block` is free: a stream that is given its addresses next waits for what all have been given.
  void release(const Block& block, bool capturing);

  // The number of times that a stream was made to wait for another.
  std::int64_t waits() const { return waits_; }

  // After a fork the device is out of reach: forgets all events.
  void abandon() { awaited_.clear(); }

 private:
  struct Freed {
    StreamId stream = 0;
    plan::DecisionIndex decision = kNone;
    std::int64_t number = 0;  // of the free
  };
  using Events = std::vector<device::EventHandle>;  // by stream; null where none could be recorded
  struct Awaited {                                  // a decision
    Events events;
    std::int64_t number = 0;  // of the free that they were recorded with
  };

  bool concerns(const Block& block) const;
  void record_all(Events& events);  // which are none
  void recycle(Events& events);
  bool wait_for_all(StreamId stream, const Events& events);
  std::int64_t& seen(StreamId stream);

  device::DeviceStreams& streams_;
  const StreamTable& table_;
  std::vector<StreamId> ids_;  // the plan's streams, ascending
  RangeSet shared_;            // addresses of several streams
  IndexedVector<plan::DecisionIndex, bool> has_shared_;
  std::map<plan::DecisionIndex, Awaited> awaited_;
  std::pmr::unsynchronized_pool_resource nodes_;
  RangeMap<Freed> last_{&nodes_};   // at each address
  Events late_;                     // of take()
  std::vector<std::int64_t> seen_;  // by stream: up to which free it has waited
  std::int64_t frees_ = 0;
  std::int64_t waits_ = 0;
};

}  // namespace stalloc::runtime
