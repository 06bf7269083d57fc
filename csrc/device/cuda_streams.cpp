#include "device/cuda_streams.h"

namespace stalloc::device {
namespace {

constexpr unsigned kNoTiming = 2;  // cudaEventDisableTiming: such events are cheaper

}  // namespace

int device_of_stream(StreamHandle stream) noexcept {
  const CudaRuntime* runtime = CudaRuntime::find();
  if (!stream || !runtime || !runtime->stream_get_device) return -1;
  int device = -1;
  if (runtime->stream_get_device(stream, &device) == CudaRuntime::kSuccess) return device;
  runtime->get_last_error();
  return -1;
}

CudaStreams::~CudaStreams() {
  const DeviceGuard device(runtime_, device_);
  for (const EventHandle event : idle_) succeeded(runtime_.event_destroy(event));
}

bool CudaStreams::succeeded(CudaRuntime::Error error) const noexcept {
  if (error != CudaRuntime::kSuccess) runtime_.get_last_error();
  return error == CudaRuntime::kSuccess;
}

EventHandle CudaStreams::take_event() noexcept {
  {
    const std::lock_guard lock(mutex_);
    if (!idle_.empty()) {
      const EventHandle event = idle_.back();
      idle_.pop_back();
      return event;
    }
  }
  EventHandle event = nullptr;
  return succeeded(runtime_.event_create(&event, kNoTiming)) ? event : nullptr;
}

EventHandle CudaStreams::record(StreamHandle stream) noexcept {
  const DeviceGuard device(runtime_, device_);
  const RelaxedCapture relaxed(runtime_);
  if (device.error()) return nullptr;
  const EventHandle event = take_event();
  if (!event) return nullptr;
  if (succeeded(runtime_.event_record(event, stream))) return event;
  recycle(event);
  return nullptr;
}

DeviceStreams::Progress CudaStreams::query(EventHandle event) noexcept {
  const DeviceGuard device(runtime_, device_);
  const RelaxedCapture relaxed(runtime_);
  if (device.error()) return Progress::kFailed;
  const auto error = runtime_.event_query(event);
  if (succeeded(error)) return Progress::kDone;
  return error == CudaRuntime::kNotReady ? Progress::kPending : Progress::kFailed;
}

bool CudaStreams::wait(StreamHandle stream, EventHandle event) noexcept {
  const DeviceGuard device(runtime_, device_);
  return !device.error() && succeeded(runtime_.stream_wait_event(stream, event, 0));
}

void CudaStreams::recycle(EventHandle event) noexcept {
  try {
    const std::lock_guard lock(mutex_);
    idle_.push_back(event);
  } catch (...) {
    const DeviceGuard device(runtime_, device_);
    succeeded(runtime_.event_destroy(event));
  }
}

bool CudaStreams::is_capturing(StreamHandle stream) noexcept {
  const DeviceGuard device(runtime_, device_);
  int status = 0;
  return !device.error() && succeeded(runtime_.stream_is_capturing(stream, &status)) && status != 0;
}

bool CudaStreams::synchronize(bool everywhere) noexcept {
  const auto wait_for = [&](int number) {
    const DeviceGuard device(runtime_, number);
    return !device.error() && succeeded(runtime_.device_synchronize());
  };
  if (!wait_for(device_)) return false;
  int count = 0;
  if (everywhere && !succeeded(runtime_.get_device_count(&count))) return false;
  for (int number = 0; number < count; ++number) {
    if (number != device_ && runtime_.is_in_use(number) && !wait_for(number)) return false;
  }
  return true;
}

}  // namespace stalloc::device
