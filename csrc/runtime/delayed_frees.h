// Blocks that were freed while streams other than their own may still use them (record_stream).
//
// The owner of the memory says which streams use a block, and that it is freed; then an event is
// recorded on each of them, and next_done() gives the block back once all of these have passed. The
// events of one stream pass in order, so only the oldest of each stream is ever asked after, and a
// call asks in vain at most once: O(1) amortised, and never a wait.
//
// While a graph is captured, events may be neither recorded nor asked after: blocks freed then get
// theirs when the last capture is over. A block whose event cannot be recorded, or fails, is lost:
// only finish(), which waits for the whole device, frees it, or nothing does. It is never given
// back too early.
//
// Not thread-safe: PlannedAllocator locks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <unordered_map>
#include <vector>

#include "base/types.h"
#include "device/streams.h"
#include "runtime/stream_table.h"

namespace stalloc::runtime {

class DelayedFrees {
 public:
  DelayedFrees(device::DeviceStreams& streams, const StreamTable& table)
      : streams_(streams), table_(table) {}

  // Work on `stream`, which is not the block's own, uses the live block `p`. A stream without a
  // number (kNone) cannot be asked: the block is lost when it is freed.
  void use(void* p, StreamId stream);

  // True if `p` has to be freed by wait(). Cheap when no stream uses any block.
  bool holds(const void* p) const {
    return !blocks_.empty() && blocks_.contains(const_cast<void*>(p));
  }
  bool is_waiting(const void* p) const;

  // `p`, which is held and not waiting, is freed.
  void wait(void* p);

  bool any_waiting() const { return waiting_ > 0; }
  bool any_lost() const { return lost_ > 0; }

  // A waiting block that no stream uses any more, no longer held from now on; null when none is
  // known.
  void* next_done();

  // Waits for the device; then next_done() gives every block that waits. False, and nothing has
  // changed, when the device cannot say, or while a graph is captured.
  bool finish();

  void begin_capture() { ++captures_; }
  bool capturing() const { return captures_ > 0; }
  void end_capture();

  // After a fork the device is out of reach: forgets all events, and holds nothing any more.
  void abandon();

 private:
  struct Block {
    std::vector<StreamId> streams;
    int events = 0;  // outstanding
    bool waiting = false;
    bool lost = false;
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
  std::vector<StreamId> order_;  // of the queues, asked in turn
  std::size_t turn_ = 0;
  std::vector<void*> deferred_;  // freed during a capture
  std::vector<void*> done_;
  int captures_ = 0;
  std::size_t waiting_ = 0;
  std::size_t lost_ = 0;
};

}  // namespace stalloc::runtime
