// Page-locked host memory, and the streams of all GPUs that copy from and to it.
//
// Such memory belongs to no GPU: one piece of it serves all. Its user is the host, so a block has
// no stream of its own. The streams that copy it are those of any GPU, and a stream's handle here
// names the GPU, too: the default streams of two GPUs share their handle in the library.
#pragma once

#include <array>
#include <map>
#include <memory>
#include <mutex>
#include <string_view>
#include <utility>
#include <vector>

#include "device/cuda_runtime.h"
#include "device/cuda_streams.h"
#include "device/host.h"
#include "device/memory.h"
#include "device/streams.h"

namespace stalloc::device {

// Each piece is one call of cudaHostAlloc, which takes milliseconds and stops the GPU.
class PinnedMemory final : public DeviceMemory {
 public:
  // Calls are made for `device`, which the process uses: any other would get a context by them.
  // Throws Error if no runtime is loaded, or if it cannot lock pages.
  explicit PinnedMemory(int device);

  std::string_view name() const override { return "pinned"; }
  Bytes unit() const override { return kPage; }
  Bytes alignment() const override { return kPage; }
  bool is_pinned() const override { return true; }
  void* allocate(Bytes size) override;
  void release(void* piece, Bytes size) noexcept override;
  Bytes available() const override { return machine_.available(); }

 private:
  static constexpr Bytes kPage = 4096;

  const CudaRuntime& runtime_;
  const int device_;
  const HostMemory machine_;
};

class PinnedStreams final : public DeviceStreams {
 public:
  // `device`: one that synchronize() waits for; the process uses it.
  explicit PinnedStreams(int device) : device_(device) {}

  // The handle of a stream of a device for the functions below; the same for the same stream. Null
  // for cudaStreamPerThread, which is another stream on each thread, and if the number of the
  // device is out of range.
  StreamHandle handle_of(StreamHandle stream, int device);

  // Null if `stream` is capturing, too: no event tells when the graph has run for the last time.
  EventHandle record(StreamHandle stream) noexcept override;
  Progress query(EventHandle event) noexcept override;
  // The host uses the memory, and cannot be made to wait by a device.
  bool wait(StreamHandle, EventHandle) noexcept override { return false; }
  void recycle(EventHandle event) noexcept override;
  bool is_capturing(StreamHandle stream) noexcept override;
  bool synchronize(bool everywhere) noexcept override;

 private:
  struct Named {
    StreamHandle stream = nullptr;
    CudaStreams* device = nullptr;
  };
  struct Event {
    EventHandle event = nullptr;
    CudaStreams* device = nullptr;
  };

  const int device_;
  std::mutex mutex_;  // guards the members below; what they point to stays
  std::array<std::unique_ptr<CudaStreams>, CudaRuntime::kDevices> devices_;
  std::map<std::pair<StreamHandle, int>, std::unique_ptr<Named>> named_;
};

}  // namespace stalloc::device
