// Replays a sequence of requests through torch's own CUDA caching allocator.
//
//   torch_replay EVENTS
//
// EVENTS holds 64-bit integers, three an event: the request's number, its size (negative: it is
// freed), its stream (0 is the default stream). Which policy runs, PYTORCH_ALLOC_CONF says, as
// always. Prints one JSON object. The CUDA runtime is the stand-in, so no device is needed, and an
// address is never touched.
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/PeerToPeerAccess.h>
#include <c10/util/Exception.h>
#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <vector>

namespace {

struct Event {
  std::int64_t request;
  std::int64_t size;
  std::int64_t stream;
};

std::vector<Event> read_events(const char* path) {
  std::ifstream in(path, std::ios::binary | std::ios::ate);
  std::vector<Event> events(in ? static_cast<std::size_t>(in.tellg()) / sizeof(Event) : 0);
  in.seekg(0);
  in.read(reinterpret_cast<char*>(events.data()),
          static_cast<std::streamsize>(events.size() * sizeof(Event)));
  return events;
}

using Calls = std::int64_t (*)(const char*);

// How often the stand-in saw a call.
std::int64_t calls(const char* name) {
  static const auto count = reinterpret_cast<Calls>(dlsym(RTLD_DEFAULT, "standin_calls"));
  return count != nullptr ? count(name) : -1;
}

std::vector<cudaStream_t> make_streams(const std::vector<Event>& events) {
  std::int64_t most = 0;
  for (const Event& event : events) most = std::max(most, event.stream);
  std::vector<cudaStream_t> streams(static_cast<std::size_t>(most) + 1, nullptr);
  for (std::size_t i = 1; i < streams.size(); ++i) cudaStreamCreate(&streams[i]);
  return streams;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: torch_replay EVENTS\n");
    return 2;
  }
  const std::vector<Event> events = read_events(argv[1]);
  if (events.empty()) {
    std::fprintf(stderr, "torch_replay: no events in %s\n", argv[1]);
    return 1;
  }
  namespace allocator = c10::cuda::CUDACachingAllocator;
  c10::cuda::detail::init_p2p_access_cache(1);  // expandable segments ask it
  allocator::init(1);
  const std::vector<cudaStream_t> streams = make_streams(events);

  std::int64_t requests = 0;
  for (const Event& event : events) requests = std::max(requests, event.request + 1);
  std::vector<void*> live(static_cast<std::size_t>(requests), nullptr);

  std::int64_t failed_at = -1;
  std::int64_t failed_size = 0;
  std::size_t done = 0;
  const auto begin = std::chrono::steady_clock::now();
  try {
    for (; done < events.size(); ++done) {
      const Event& event = events[done];
      void*& block = live[static_cast<std::size_t>(event.request)];
      if (event.size < 0) {
        allocator::raw_delete(block);
      } else {
        block = allocator::raw_alloc_with_stream(static_cast<std::size_t>(event.size),
                                                 streams[static_cast<std::size_t>(event.stream)]);
      }
    }
  } catch (const c10::OutOfMemoryError&) {
    failed_at = events[done].request;
    failed_size = events[done].size;
  }
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;

  const auto stats = allocator::getDeviceStats(0);
  const auto peak = [](const auto& of) { return static_cast<long long>(of[0].peak); };
  std::printf(
      "{\"events\": %zu, \"seconds\": %.9f, \"reserved\": %lld, \"allocated\": %lld, "
      "\"requested\": %lld, \"retries\": %lld, \"failed_request\": %lld, \"failed_size\": %lld, "
      "\"native_calls\": {\"malloc\": %lld, \"free\": %lld, \"map\": %lld, \"unmap\": %lld}}\n",
      done, seconds.count(), peak(stats.reserved_bytes), peak(stats.allocated_bytes),
      peak(stats.requested_bytes), static_cast<long long>(stats.num_alloc_retries),
      static_cast<long long>(failed_at), static_cast<long long>(failed_size),
      static_cast<long long>(calls("cudaMalloc")), static_cast<long long>(calls("cudaFree")),
      static_cast<long long>(calls("cuMemMap")), static_cast<long long>(calls("cuMemUnmap")));
  std::fflush(stdout);
  std::_Exit(0);  // the live blocks die with the process
}
