// Replays a sequence of requests through torch's own CUDA caching allocator.
//
//   torch_replay EVENTS
//
// PYTORCH_ALLOC_CONF chooses the policy, as always. Prints one JSON object. The CUDA runtime is the
// stand-in, so no device is needed and no address is touched. The process may have all memory of
// the device, as set_per_process_memory_fraction(1.0) says: otherwise torch collects no garbage.
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/PeerToPeerAccess.h>
#include <c10/util/Exception.h>
#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "events.h"

namespace {

using Calls = std::int64_t (*)(const char*);

// The stand-in's count of a call.
long long calls(const char* name) {
  static const auto count = reinterpret_cast<Calls>(dlsym(RTLD_DEFAULT, "standin_calls"));
  return count != nullptr ? count(name) : -1;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: torch_replay EVENTS\n");
    return 2;
  }
  const std::vector<replay::Event> events = replay::read_events(argv[1]);
  if (events.empty()) {
    std::fprintf(stderr, "torch_replay: no events in %s\n", argv[1]);
    return 1;
  }
  namespace allocator = c10::cuda::CUDACachingAllocator;
  // As torch does before its first request: expandable segments need a context, and ask for peers.
  if (cudaSetDevice(0) != cudaSuccess) {
    std::fprintf(stderr, "torch_replay: no device\n");
    return 1;
  }
  c10::cuda::detail::init_p2p_access_cache(1);
  allocator::init(1);
  allocator::setMemoryFraction(1.0, 0);
  std::vector<cudaStream_t> streams(replay::count_streams(events), nullptr);
  for (std::size_t i = 1; i < streams.size(); ++i) cudaStreamCreate(&streams[i]);
  std::vector<void*> blocks(replay::count_requests(events), nullptr);

  std::size_t done = 0;
  replay::Laps laps;
  try {
    for (; done < events.size(); ++done) {
      const replay::Event& event = events[done];
      if (event.request < 0) {
        if (event.request == replay::kIterationEnds) laps.end_iteration();
        continue;
      }
      void*& block = blocks[static_cast<std::size_t>(event.request)];
      if (event.size < 0) {
        allocator::raw_delete(block);
      } else {
        laps.count();
        block = allocator::raw_alloc_with_stream(static_cast<std::size_t>(event.size),
                                                 streams[static_cast<std::size_t>(event.stream)]);
      }
    }
  } catch (const c10::OutOfMemoryError&) {
  }
  const bool failed = done < events.size();

  const auto stats = allocator::getDeviceStats(0);
  const auto peak = [](const auto& of) { return static_cast<long long>(of[0].peak); };
  std::printf("{");
  laps.print();
  std::printf(
      ", \"reserved\": %lld, \"allocated\": %lld, \"load\": %lld, \"retries\": %lld, "
      "\"failed_request\": %lld, \"failed_size\": %lld, "
      "\"native_calls\": {\"malloc\": %lld, \"free\": %lld, \"map\": %lld, \"unmap\": %lld}}\n",
      peak(stats.reserved_bytes), peak(stats.allocated_bytes), peak(stats.requested_bytes),
      static_cast<long long>(stats.num_alloc_retries),
      failed ? static_cast<long long>(events[done].request) : -1LL,
      failed ? static_cast<long long>(events[done].size) : 0LL, calls("cudaMalloc"),
      calls("cudaFree"), calls("cuMemMap"), calls("cuMemUnmap"));
  std::fflush(stdout);
  std::_Exit(0);  // the live blocks die with the process
}
