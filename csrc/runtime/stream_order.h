// Orders the streams of a plan that lets addresses go from one stream to another
// (Streams::kOrdered).
//
// A free only means that the host no longer uses a block: its stream may still work on it, and so
// may other streams, for which that stream waits later. So for each shared address the pool
// remembers the last free. When another stream gets the address, it waits on the device for all
// work submitted by that free, on any stream. The host never waits.
//
//   stream 0   [ a ] event                    later work on streams 0 and 1 is not waited for
//   stream 1         event
//   stream 2                 wait for both [ b, at the address of a ]
//
// The last user is known from the run, not from the plan: requests that are late, missing or
// unknown to the plan change nothing. The plan tells the frees that another stream waits for in a
// run that follows it: these record events. Waits that the plan does not foresee record their event
// late: they wait longer than necessary, never shorter.
//
// A stream that the program may destroy at any time gets no event: there is no way to ask if it is
// still there. So no other stream gets an address that it had last, and blocks that it uses of
// other streams must be reported (record_stream), or their own stream must wait for it before the
// free.
//
// A block that other streams still use (record_stream) keeps its addresses after its free. The
// events are those of the free nevertheless, and cover these streams. So another stream may get the
// addresses at once, and the block's own stream waits for nothing unless it gets them back.
//
// A stream that has waited for a free never waits for an earlier one. During a capture no event is
// recorded or waited for.
//
// A block that lives on in a layout that does not know it is ordered like a shared address.
//
// Cost: one table look-up for a decision whose addresses belong to one stream; for others O(log n)
// and a handful of calls of the device's library for each stream that the process has used. Not
// thread-safe: PlannedAllocator locks.
#pragma once

#include <cstdint>
#include <map>
#include <memory_resource>
#include <span>
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
  // `plan` has passed check(). `unplanned` are addresses of live blocks that it does not know,
  // which it may give to any stream. The others outlive this object. O(n log n) for n decisions.
  StreamOrder(const plan::Plan& plan, device::DeviceStreams& streams, const StreamTable& table,
              std::span<const Range> unplanned = {});
  StreamOrder(const StreamOrder&) = delete;
  StreamOrder& operator=(const StreamOrder&) = delete;
  ~StreamOrder();

  struct Block {
    Range range;
    StreamId stream = 0;                   // one of the plan's, with a number in the table
    plan::DecisionIndex decision = kNone;  // if it is one
  };

  // Makes the stream of the new block `block` wait for the earlier users of its addresses. False if
  // the stream cannot be made to wait.
  bool take(const Block& block, bool capturing);

  // `block` is freed: the next stream that gets its addresses waits for all work submitted so far.
  void release(const Block& block, bool capturing);

  // `block` is freed while streams that stay use it, and is released later. If the plan lets
  // another stream wait for it, that one waits for all work submitted so far, and for none after
  // that.
  void note_free(const Block& block, bool capturing);
  // True if note_free() has told of the block, and no stream gets any of its addresses without
  // waiting.
  bool covers_users(const Block& block) const;
  // Releases such a block while streams use it: its own stream waits like all others.
  void release_in_use(const Block& block);

  // The number of times that a stream was made to wait for another.
  std::int64_t waits() const { return waits_; }

  // After a fork the device is out of reach: forgets all events.
  void abandon() {
    awaited_.clear();
    noted_.clear();
  }

 private:
  struct Freed {
    StreamId stream = 0;  // kNone if all streams wait
    plan::DecisionIndex decision = kNone;
    std::int64_t number = 0;  // of the free
  };
  struct Event {
    StreamId stream = 0;
    device::EventHandle event = nullptr;  // null if none could be recorded
  };
  using Events = std::vector<Event>;
  struct Awaited {  // a decision
    Events events;
    std::int64_t number = 0;  // of the free that they were recorded with
  };

  struct Place {  // of a decision in the plan
    Range range;
    bool is_shared = false;
  };

  bool concerns(const Block& block) const;
  void record_awaited(const Block& block);
  void record_all(Events& events);  // `events` is empty
  void recycle(Events& events);
  bool wait_for_all(StreamId stream, const Events& events);
  std::int64_t& seen(StreamId stream);

  device::DeviceStreams& streams_;
  const StreamTable& table_;
  std::vector<StreamId> ids_;  // the plan's streams, ascending
  RangeSet shared_;            // addresses of several streams
  IndexedVector<plan::DecisionIndex, Place> places_;
  std::map<plan::DecisionIndex, Awaited> awaited_;
  std::map<Offset, std::int64_t> noted_;  // blocks that wait for streams: the number of their free
  std::pmr::unsynchronized_pool_resource nodes_;
  RangeMap<Freed> last_{&nodes_};   // at each address
  Events late_;                     // of take()
  std::vector<std::int64_t> seen_;  // by stream: up to which free it has waited
  std::int64_t frees_ = 0;
  std::int64_t waits_ = 0;
};

}  // namespace stalloc::runtime
