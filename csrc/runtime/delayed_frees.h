// Blocks that were freed while streams other than their own may still use them (record_stream).
//
// The owner of the memory reports the streams that use a block, and the free of the block. Then an
// event is recorded on each of these streams, and next_done() returns the block once all events
// have passed. The events of one stream pass in order, so only the oldest of each stream is
// queried, and a call makes at most one query in vain: O(1) amortised, and never a wait.
//
// While a graph is captured, events can be neither recorded nor queried: blocks freed then get
// their events when the last capture ends. A block whose event cannot be recorded, or fails, is
// lost: only finish(), which waits for the whole device, can free it. No block is returned too
// early. order() returns one sooner: its own stream then waits for the others on the device.
//
// Not thread-safe: PlannedAllocator locks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/types.h"
#include "device/streams.h"
#include "runtime/stream_table.h"

namespace stalloc::runtime {

class DelayedFrees {
 public:
  DelayedFrees(device::DeviceStreams& streams, const StreamTable& table)
      : streams_(streams), table_(table) {}

  // Registers that `stream`, which is not the block's own, uses the live block `p`. kNone (a stream
  // without a number) makes the block lost when it is freed.
  void use(void* p, StreamId stream);

  // True if wait() must free `p`. Cheap if no stream uses any block.
  bool holds(const void* p) const {
    return !blocks_.empty() && blocks_.contains(const_cast<void*>(p));
  }
  bool is_waiting(const void* p) const;

  // Frees the held block `p`, which is not waiting yet, once its users are done.
  void wait(void* p);

  bool any_waiting() const { return waiting_ > 0; }

  // True if `p` waits for streams, and all their events are recorded.
  bool can_order(const void* p) const;
  // Makes `own` wait on the device for the streams that use the block `p`, for which can_order()
  // is true, and holds it no longer. Returns false if a stream cannot wait: `p` keeps waiting. A
  // stream that has waited for a later free does not wait again.
  bool order(void* p, StreamId own);
  // True if all streams that use the held block `p` have a number and stay.
  bool has_lasting_users(const void* p) const;
  // Holds `p`, for which can_order() is true, no longer: its next user waits for these streams.
  void drop(void* p);
  // The number of times that order() made a stream wait.
  std::int64_t waits() const { return waits_; }
  // Calls visit(block, number of the free) for each block that waits for streams.
  void visit_waiting(auto visit) const {
    for (const auto& [p, block] : blocks_) {
      if (block.waiting) visit(p, block.number);
    }
  }
  bool any_lost() const { return lost_ > 0; }

  // Returns a waiting block that no stream uses any more, and holds it no longer; null if none is
  // known.
  void* next_done();

  // Waits for the device; then next_done() returns every block that waits. Changes nothing and
  // returns false if the device cannot be waited for, or while a graph is captured.
  bool finish();

  // The same for lost blocks, without the owner's lock during the wait: takes note of those that
  // wait now, waits (this call alone needs no lock), and returns them with next_done() later.
  // Blocks that are freed during the wait keep waiting.
  struct Lost {
    void* block = nullptr;
    std::uint64_t number = 0;  // of the free
  };
  std::vector<Lost> lost() const;
  bool wait_for_devices() const { return streams_.synchronize(/*everywhere=*/true); }
  void found(const std::vector<Lost>& blocks);

  void begin_capture() { ++captures_; }
  bool capturing() const { return captures_ > 0; }
  void end_capture();

  // After a fork the device is out of reach: forgets all events and blocks.
  void abandon();

 private:
  struct Block {
    std::vector<StreamId> streams;
    int events = 0;  // outstanding
    bool waiting = false;
    bool lost = false;
    std::uint64_t number = 0;  // of the free
  };
  struct Marker {
    device::EventHandle event = nullptr;
    void* block = nullptr;
  };
  using Queue = std::deque<Marker>;

  void record(void* p);
  // True if `p` is done, after one of its events has passed or failed.
  bool settle(void* p, bool failed);
  void* take_done();

  device::DeviceStreams& streams_;
  const StreamTable& table_;
  std::unordered_map<void*, Block> blocks_;
  std::unordered_map<StreamId, Queue> queues_;
  std::vector<StreamId> order_;  // of the queues, which are queried one after another
  std::size_t next_queue_ = 0;   // index into order_
  std::vector<void*> deferred_;  // freed during a capture
  std::vector<void*> done_;
  int captures_ = 0;
  std::size_t waiting_ = 0;
  std::size_t lost_ = 0;
  std::uint64_t frees_ = 0;
  std::int64_t waits_ = 0;
  // By pair of streams: the first one has waited for the events that the second one recorded up to
  // the free with this number.
  std::map<std::pair<StreamId, StreamId>, std::uint64_t> ordered_;
};

}  // namespace stalloc::runtime
