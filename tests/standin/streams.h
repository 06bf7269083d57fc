// Streams of work, events, and the order that they define.
//
// An item of work completes when it is told to (at once on a stream that is not manual) and the
// work that it waits for is complete. Each stream has the clock of all work before its next item.
// So has the host, whose clock advances when it finds an event complete or waits.
//
// Not thread-safe: World locks.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

#include "order.h"

namespace standin {

using HandleValue = std::uintptr_t;

struct Capture;

// The calling thread's number.
std::uint64_t this_thread();

struct Stream {
  std::size_t serial = 0;
  int device = 0;
  int priority = 0;
  bool blocking = true;  // ordered with the default stream
  bool manual = false;
  bool destroyed = false;
  Capture* capture = nullptr;

  struct Item {
    std::vector<Point> waits_for;
    std::function<void()> when_complete;
  };
  std::deque<Item> pending;
  std::uint64_t completed = 0;
  std::uint64_t submitted() const { return completed + pending.size(); }
  Clock clock;
};

struct Event {
  int device = 0;
  bool recorded = false;
  bool timed = false;
  Point point;
  Clock clock;
  Capture* capture = nullptr;  // recorded while capturing
};

class Streams {
 public:
  void configure(int devices, bool manual);
  void set_manual(bool manual);
  bool manual() const { return manual_; }
  void recycle_handles(bool recycle) { recycle_ = recycle; }

  HandleValue create(int device, bool blocking, int priority);
  bool destroy(HandleValue handle);
  // Returns null if the stream no longer exists. A null argument is `device`'s default stream.
  Stream* find(HandleValue handle, int device);
  // Also finds a destroyed stream, until another one gets its handle.
  Stream* find_even_destroyed(HandleValue handle, int device);
  Stream& at(std::size_t serial) { return *streams_[serial]; }
  std::size_t live() const { return handles_.size() - destroyed_; }

  // Appends an item and returns its position.
  Point submit(Stream& stream, Stream::Item item = {});
  void wait(Stream& stream, const Event& event);
  void record(Stream& stream, Event& event);

  bool complete(const Point& p) const { return streams_[p.stream]->completed >= p.item; }
  std::int64_t advance(Stream& stream, std::int64_t items);
  // Completes the item and all work that it waits for.
  void finish(const Point& p);
  void drain(Stream& stream) { finish({stream.serial, stream.submitted()}); }
  void drain_device(int device);
  void drain_all();

  // Records that the host has seen all this work complete.
  void host_saw(const Clock& clock) { host_.merge(clock); }
  void host_saw(const Stream& stream) { host_.merge(stream.clock); }
  const Clock& host() const { return host_; }
  // True if the stream, or the device, has incomplete work.
  bool busy(int device) const;
  bool busy() const;

  HandleValue create_event(int device, bool timed);
  bool destroy_event(HandleValue handle) { return events_.erase(handle) > 0; }
  Event* find_event(HandleValue handle);
  // Events recorded into the capture become meaningless.
  void end_capture(const Capture* capture);
  std::size_t live_events() const { return events_.size(); }

 private:
  Stream& make(int device, bool blocking);
  bool ready(const Stream::Item& item) const;
  void complete_front(Stream& stream);
  void settle();

  bool manual_ = false;
  bool recycle_ = false;
  std::vector<std::unique_ptr<Stream>> streams_;  // by serial, the devices' default ones first
  std::unordered_map<HandleValue, std::size_t> handles_;
  std::map<std::pair<std::uint64_t, int>, std::size_t> per_thread_;  // by thread and device
  std::vector<HandleValue> free_handles_;
  std::size_t destroyed_ = 0;  // of handles_
  HandleValue next_handle_ = 0;
  std::unordered_map<HandleValue, Event> events_;
  HandleValue next_event_ = 0;
  Clock host_;
};

}  // namespace standin
