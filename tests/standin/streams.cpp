#include "streams.h"

#include <algorithm>

namespace standin {
namespace {

// Handles are no addresses, so dereferencing one faults.
constexpr HandleValue kStreamBase = HandleValue{3} << 60;
constexpr HandleValue kEventBase = HandleValue{5} << 60;
constexpr HandleValue kStep = 64;
constexpr HandleValue kLegacy = 1;     // cudaStreamLegacy
constexpr HandleValue kPerThread = 2;  // cudaStreamPerThread: another one on each thread

}  // namespace

void Streams::configure(int devices, bool manual) {
  const bool recycle = recycle_;
  *this = Streams{};
  recycle_ = recycle;
  manual_ = manual;
  next_handle_ = kStreamBase;
  next_event_ = kEventBase;
  for (int d = 0; d < devices; ++d) make(d, /*blocking=*/false);
}

void Streams::set_manual(bool manual) {
  manual_ = manual;
  for (auto& stream : streams_) stream->manual = manual;
  settle();
}

Stream& Streams::make(int device, bool blocking) {
  auto stream = std::make_unique<Stream>();
  stream->serial = streams_.size();
  stream->device = device;
  stream->blocking = blocking;
  stream->manual = manual_;
  streams_.push_back(std::move(stream));
  return *streams_.back();
}

HandleValue Streams::create(int device, bool blocking, int priority) {
  Stream& stream = make(device, blocking);
  stream.priority = priority;
  HandleValue handle = 0;
  if (recycle_ && !free_handles_.empty()) {
    handle = free_handles_.back();
    free_handles_.pop_back();
    --destroyed_;
  } else {
    handle = next_handle_ += kStep;
  }
  handles_[handle] = stream.serial;
  return handle;
}

bool Streams::destroy(HandleValue handle) {
  Stream* stream = find(handle, 0);
  if (!stream || !handles_.contains(handle)) return false;
  stream->destroyed = true;
  free_handles_.push_back(handle);
  ++destroyed_;
  return true;
}

Stream* Streams::find_even_destroyed(HandleValue handle, int device) {
  if (handle == 0 || handle == kLegacy) return streams_[static_cast<std::size_t>(device)].get();
  if (handle == kPerThread) {
    const auto [known, is_new] = per_thread_.try_emplace({this_thread(), device}, streams_.size());
    if (is_new) make(device, /*blocking=*/true);
    return streams_[known->second].get();
  }
  const auto it = handles_.find(handle);
  return it == handles_.end() ? nullptr : streams_[it->second].get();
}

Stream* Streams::find(HandleValue handle, int device) {
  Stream* stream = find_even_destroyed(handle, device);
  return stream && !stream->destroyed ? stream : nullptr;
}

Point Streams::submit(Stream& stream, Stream::Item item) {
  const auto order_after = [&](const Stream& other) {
    item.waits_for.push_back({other.serial, other.submitted()});
    stream.clock.merge(other.clock);
  };
  const bool is_default = &stream == streams_[static_cast<std::size_t>(stream.device)].get();
  if (is_default) {
    for (const auto& other : streams_) {
      if (other->device == stream.device && other->blocking) order_after(*other);
    }
  } else if (stream.blocking) {
    order_after(*streams_[static_cast<std::size_t>(stream.device)]);
  }
  stream.clock.merge(host_);
  const Point p{stream.serial, stream.submitted() + 1};
  stream.clock.add(p);
  stream.pending.push_back(std::move(item));
  settle();
  return p;
}

void Streams::wait(Stream& stream, const Event& event) {
  if (!event.recorded) return;
  stream.clock.merge(event.clock);
  submit(stream, {{event.point}, {}});
}

void Streams::record(Stream& stream, Event& event) {
  event.point = submit(stream);
  event.clock = stream.clock;
  event.recorded = true;
  event.capture = nullptr;
}

bool Streams::ready(const Stream::Item& item) const {
  return std::all_of(item.waits_for.begin(), item.waits_for.end(),
                     [&](const Point& p) { return complete(p); });
}

void Streams::complete_front(Stream& stream) {
  const auto when_complete = std::move(stream.pending.front().when_complete);
  stream.pending.pop_front();
  ++stream.completed;
  if (when_complete) when_complete();
}

// Completes all work that streams that are not manual can complete.
void Streams::settle() {
  for (bool progress = true; progress;) {
    progress = false;
    for (const auto& stream : streams_) {
      while (!stream->manual && !stream->pending.empty() && ready(stream->pending.front())) {
        complete_front(*stream);
        progress = true;
      }
    }
  }
}

std::int64_t Streams::advance(Stream& stream, std::int64_t items) {
  std::int64_t done = 0;
  while (done < items && !stream.pending.empty() && ready(stream.pending.front())) {
    complete_front(stream);
    ++done;
  }
  settle();
  return done;
}

void Streams::finish(const Point& p) {
  Stream& stream = *streams_[p.stream];
  while (stream.completed < p.item) {
    // This is a copy: completing others may complete, and so remove, this item.
    const std::vector<Point> waits_for = stream.pending.front().waits_for;
    const std::uint64_t item = stream.completed + 1;
    for (const Point& q : waits_for) finish(q);
    if (stream.completed < item) complete_front(stream);
  }
  settle();
}

void Streams::drain_device(int device) {
  for (std::size_t i = 0; i < streams_.size(); ++i) {
    if (streams_[i]->device != device) continue;
    drain(*streams_[i]);
    host_saw(*streams_[i]);
  }
}

void Streams::drain_all() {
  for (std::size_t i = 0; i < streams_.size(); ++i) drain(*streams_[i]);
}

bool Streams::busy(int device) const {
  return std::any_of(streams_.begin(), streams_.end(), [&](const auto& stream) {
    return stream->device == device && !stream->pending.empty();
  });
}

bool Streams::busy() const {
  return std::any_of(streams_.begin(), streams_.end(),
                     [](const auto& stream) { return !stream->pending.empty(); });
}

HandleValue Streams::create_event(int device, bool timed) {
  const HandleValue handle = next_event_ += kStep;
  events_[handle].device = device;
  events_[handle].timed = timed;
  return handle;
}

Event* Streams::find_event(HandleValue handle) {
  const auto it = events_.find(handle);
  return it == events_.end() ? nullptr : &it->second;
}

void Streams::end_capture(const Capture* capture) {
  for (auto& [handle, event] : events_) {
    if (event.capture == capture) event.capture = nullptr;
  }
}

}  // namespace standin
