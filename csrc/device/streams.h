// Order between the streams of a device: what the runtime has to know before memory that one
// stream has used may go to another. Events and streams are the device library's own objects,
// passed through unread.
#pragma once

#include <cstdint>

namespace stalloc::device {

using StreamHandle = void*;  // cudaStream_t or hipStream_t; null is the default stream
using EventHandle = void*;   // cudaEvent_t or hipEvent_t

// One device's streams. Thread-safe; nothing throws, because frees come from destructors. Only
// synchronize() waits on the host.
class DeviceStreams {
 public:
  enum class Progress : std::uint8_t { kPending, kDone, kFailed };

  virtual ~DeviceStreams() = default;

  // An event after all work that `stream` has been given so far; null when that fails (the stream
  // was destroyed, the library is shutting down). Not to be called for a stream that is capturing.
  virtual EventHandle record(StreamHandle stream) noexcept = 0;

  // Whether the work before `event` is done. kFailed: nobody can tell any more.
  virtual Progress query(EventHandle event) noexcept = 0;

  // Lets work that `stream` is given from now on run after `event`; false when that fails.
  virtual bool wait(StreamHandle stream, EventHandle event) noexcept = 0;

  // Takes back an event that record() gave, done or not, to be used again.
  virtual void recycle(EventHandle event) noexcept = 0;

  // Whether `stream` is recording a graph.
  virtual bool is_capturing(StreamHandle stream) noexcept = 0;

  // Waits until the device has done everything that any stream was given; `everywhere`: and so have
  // the other devices of the process, whose streams may be at work on this one's memory. False when
  // that cannot be said. For when memory has run out or an event has failed, never for a request.
  virtual bool synchronize(bool everywhere) noexcept = 0;
};

}  // namespace stalloc::device
