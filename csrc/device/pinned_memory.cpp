#include "device/pinned_memory.h"

#include <cstdint>
#include <string>

#include "base/error.h"

namespace stalloc::device {
namespace {

constexpr unsigned kPortable = 1;  // cudaHostAllocPortable: for the contexts of all devices

constexpr std::uintptr_t kPerThread = 2;  // cudaStreamPerThread

}  // namespace

PinnedMemory::PinnedMemory(int device) : runtime_(CudaRuntime::get()), device_(device) {
  if (runtime_.host_alloc && runtime_.free_host) return;
  throw Error(std::string("this version of ") + runtime_.name +
              " has no page-locked host memory, so pinned memory cannot be planned");
}

void* PinnedMemory::allocate(Bytes size) {
  const DeviceGuard device(runtime_, device_);
  const RelaxedCapture relaxed(runtime_);
  if (device.error()) runtime_.fail("selecting the device", device_, device.error());
  void* piece = nullptr;
  if (runtime_.host_alloc(&piece, static_cast<std::size_t>(size), kPortable) ==
      CudaRuntime::kSuccess) {
    return piece;
  }
  // The system may refuse to lock pages for many reasons. torch's allocator is asked next, and
  // reports a device that has crashed.
  runtime_.get_last_error();
  return nullptr;
}

void PinnedMemory::release(void* piece, Bytes /*size*/) noexcept {
  const DeviceGuard device(runtime_, device_);
  const RelaxedCapture relaxed(runtime_);
  if (runtime_.free_host(piece) != CudaRuntime::kSuccess) runtime_.get_last_error();
}

StreamHandle PinnedStreams::handle_of(StreamHandle stream, int device) {
  if (device < 0 || device >= CudaRuntime::kDevices) return nullptr;
  if (reinterpret_cast<std::uintptr_t>(stream) == kPerThread) return nullptr;
  const std::lock_guard lock(mutex_);
  std::unique_ptr<Named>& named = named_[{stream, device}];
  if (!named) {
    std::unique_ptr<CudaStreams>& streams = devices_[static_cast<std::size_t>(device)];
    if (!streams) streams = std::make_unique<CudaStreams>(device);
    named = std::make_unique<Named>(Named{stream, streams.get()});
  }
  return named.get();
}

EventHandle PinnedStreams::record(StreamHandle stream) noexcept {
  const auto* named = static_cast<const Named*>(stream);
  if (!named || named->device->is_capturing(named->stream)) return nullptr;
  const EventHandle event = named->device->record(named->stream);
  if (!event) return nullptr;
  try {
    return new Event{event, named->device};
  } catch (...) {
    named->device->recycle(event);
    return nullptr;
  }
}

DeviceStreams::Progress PinnedStreams::query(EventHandle event) noexcept {
  const auto* recorded = static_cast<const Event*>(event);
  return recorded->device->query(recorded->event);
}

void PinnedStreams::recycle(EventHandle event) noexcept {
  const std::unique_ptr<Event> recorded(static_cast<Event*>(event));
  recorded->device->recycle(recorded->event);
}

bool PinnedStreams::is_capturing(StreamHandle stream) noexcept {
  const auto* named = static_cast<const Named*>(stream);
  return named && named->device->is_capturing(named->stream);
}

// The streams of any device may use the memory.
bool PinnedStreams::synchronize(bool /*everywhere*/) noexcept {
  CudaStreams* streams = nullptr;
  try {
    const std::lock_guard lock(mutex_);
    std::unique_ptr<CudaStreams>& own = devices_[static_cast<std::size_t>(device_)];
    if (!own) own = std::make_unique<CudaStreams>(device_);
    streams = own.get();
  } catch (...) {
    return false;
  }
  return streams->synchronize(/*everywhere=*/true);
}

}  // namespace stalloc::device
