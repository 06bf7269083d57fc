// Replays a sequence of requests through GMLake's own allocator.
//
//   gmlake_replay EVENTS
//
// GMLake's CUDACachingAllocator.cpp takes the place of torch 2.0's. It is compiled by real.py from
// a copy of its repository, and linked with this program instead of libc10_cuda, of which the few
// functions below are all that it needs. Its environment variables choose the policy. The CUDA
// runtime and driver are the stand-ins. Prints one JSON object, as torch_replay does.
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAStream.h>
#include <c10/util/Exception.h>
#include <cuda_runtime_api.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "events.h"

namespace c10::cuda {

DeviceIndex device_count() noexcept { return 1; }

void warn_or_error_on_sync() {}

void c10_cuda_check_implementation(std::int32_t error, const char* file, const char*, int line,
                                   bool) {
  if (error == 0) return;
  std::fprintf(stderr, "gmlake_replay: error %d of CUDA at %s:%d\n", error, file, line);
  std::abort();
}

CUDAStream getDefaultCUDAStream(DeviceIndex) {
  return CUDAStream(CUDAStream::UNCHECKED, Stream(Stream::DEFAULT, Device(DeviceType::CUDA, 0)));
}
CUDAStream getCurrentCUDAStream(DeviceIndex device) { return getDefaultCUDAStream(device); }
CUDAStream getStreamFromPool(bool, DeviceIndex device) { return getDefaultCUDAStream(device); }
void setCurrentCUDAStream(CUDAStream) {}
cudaStream_t CUDAStream::stream() const { return nullptr; }

namespace CUDACachingAllocator::CudaMallocAsync {
CUDAAllocator* allocator() { return nullptr; }
}  // namespace CUDACachingAllocator::CudaMallocAsync

}  // namespace c10::cuda

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: gmlake_replay EVENTS\n");
    return 2;
  }
  const std::vector<replay::Event> events = replay::read_events(argv[1]);
  if (events.empty()) {
    std::fprintf(stderr, "gmlake_replay: no events in %s\n", argv[1]);
    return 1;
  }
  if (cudaSetDevice(0) != cudaSuccess) {
    std::fprintf(stderr, "gmlake_replay: no device\n");
    return 1;
  }
  namespace allocator = c10::cuda::CUDACachingAllocator;
  allocator::init(1);
  std::vector<cudaStream_t> streams(replay::count_streams(events), nullptr);
  for (std::size_t i = 1; i < streams.size(); ++i) cudaStreamCreate(&streams[i]);
  std::vector<void*> blocks(replay::count_requests(events), nullptr);

  std::size_t done = 0;
  try {
    for (; done < events.size(); ++done) {
      const replay::Event& event = events[done];
      if (event.request < 0) continue;
      void*& block = blocks[static_cast<std::size_t>(event.request)];
      if (event.size < 0) {
        allocator::raw_delete(block);
      } else {
        block = allocator::raw_alloc_with_stream(static_cast<std::size_t>(event.size),
                                                 streams[static_cast<std::size_t>(event.stream)]);
      }
    }
  } catch (const c10::OutOfMemoryError&) {
  }
  const auto stats = allocator::getDeviceStats(0);
  const auto peak = [](const auto& of) { return static_cast<long long>(of[0].peak); };
  std::printf("{\"reserved\": %lld, \"load\": %lld, \"failed_request\": %lld}\n",
              peak(stats.reserved_bytes), peak(stats.requested_bytes),
              done < events.size() ? static_cast<long long>(events[done].request) : -1LL);
  std::fflush(stdout);
  std::_Exit(0);  // the live blocks die with the process
}
