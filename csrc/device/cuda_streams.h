// A GPU's streams and events. Events are expensive to make and cheap to reuse, so all are kept: as
// many as were ever outstanding at a time.
#pragma once

#include <mutex>
#include <vector>

#include "device/cuda_runtime.h"
#include "device/streams.h"

namespace stalloc::device {

// Returns the number of the device that `stream` belongs to. -1 if unknown: the default stream has
// no device of its own, and older libraries do not tell.
int device_of_stream(StreamHandle stream) noexcept;

class CudaStreams final : public DeviceStreams {
 public:
  // Throws Error if no runtime is loaded.
  explicit CudaStreams(int device) : runtime_(CudaRuntime::get()), device_(device) {}
  ~CudaStreams() override;

  EventHandle record(StreamHandle stream) noexcept override;
  Progress query(EventHandle event) noexcept override;
  bool wait(StreamHandle stream, EventHandle event) noexcept override;
  void recycle(EventHandle event) noexcept override;
  bool is_capturing(StreamHandle stream) noexcept override;
  bool synchronize(bool everywhere) noexcept override;

 private:
  EventHandle take_event() noexcept;
  // Returns true if the call succeeded; else clears its error (see CudaRuntime::explain).
  bool succeeded(CudaRuntime::Error error) const noexcept;

  const CudaRuntime& runtime_;
  const int device_;
  std::mutex mutex_;
  std::vector<EventHandle> idle_;
};

}  // namespace stalloc::device
