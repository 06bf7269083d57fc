// Order between the streams of a device: memory that one stream has used may go to another only
// after the first one's work. Events and streams are opaque objects of the device library.
#pragma once

#include <cstdint>

namespace stalloc::device {

using StreamHandle = void*;  // cudaStream_t or hipStream_t; null is the default stream
using EventHandle = void*;   // cudaEvent_t or hipEvent_t

// One device's streams. Thread-safe. Nothing throws, because frees come from destructors. Only
// synchronize() blocks the host.
class DeviceStreams {
 public:
  enum class Progress : std::uint8_t { kPending, kDone, kFailed };

  virtual ~DeviceStreams() = default;

  // Records an event after all work submitted to `stream` so far. Returns null on failure (the
  // stream was destroyed, the library is shutting down). The stream must not be capturing.
  virtual EventHandle record(StreamHandle stream) noexcept = 0;

  // Asks if the work before `event` is done. kFailed: that is no longer known.
  virtual Progress query(EventHandle event) noexcept = 0;

  // Makes later work of `stream` wait for `event`. Returns false on failure.
  virtual bool wait(StreamHandle stream, EventHandle event) noexcept = 0;

  // Takes back an event of record(), done or not, for reuse.
  virtual void recycle(EventHandle event) noexcept = 0;

  // Returns true if `stream` is capturing a graph.
  virtual bool is_capturing(StreamHandle stream) noexcept = 0;

  // Waits for all work of the device. With `everywhere` also for the process's other devices, whose
  // streams may use this one's memory. Returns false on failure. Slow: only for when memory has run
  // out or an event has failed.
  virtual bool synchronize(bool everywhere) noexcept = 0;
};

}  // namespace stalloc::device
