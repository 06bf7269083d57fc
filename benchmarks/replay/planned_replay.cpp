// Replays a sequence of requests through stalloc's runtime with a plan. torch_replay does the same
// through torch's allocator, with the same loop and the same stand-in for the CUDA runtime.
//
//   planned_replay EVENTS PLAN
//
// Prints one JSON object. The time includes the hooks' calls into the runtime, but not their cost
// in Python.
#include <dlfcn.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "base/error.h"
#include "device/cuda_memory.h"
#include "device/cuda_streams.h"
#include "events.h"
#include "plan/plan_json.h"
#include "runtime/planned_allocator.h"
#include "runtime/stream_table.h"

namespace {

using namespace stalloc;

constexpr std::int64_t kKinds = 256;

plan::Plan read_plan(const char* path) {
  std::ifstream in(path, std::ios::binary);
  const std::string text((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  return plan::plan_from_json(text, path);
}

std::vector<device::StreamHandle> make_streams(std::size_t count) {
  using Create = int (*)(device::StreamHandle*);
  const auto create = reinterpret_cast<Create>(dlsym(RTLD_DEFAULT, "cudaStreamCreate"));
  std::vector<device::StreamHandle> streams(count, nullptr);
  for (std::size_t i = 1; i < count && create; ++i) create(&streams[i]);
  return streams;
}

void tell(const replay::Event& event, runtime::PlannedAllocator& allocator, replay::Laps& laps) {
  switch (event.request) {
    case replay::kIterationEnds:
      laps.end_iteration();
      allocator.loop().end_iteration();
      break;
    case replay::kPhaseBegins:
      allocator.loop().enter_phase(static_cast<trace::PhaseKind>(event.size % kKinds),
                                   static_cast<std::int32_t>(event.stream),
                                   static_cast<std::int32_t>(event.size / kKinds));
      break;
    case replay::kDynamicBegins:
      allocator.loop().enter_dynamic();
      break;
    default:
      allocator.loop().leave_dynamic();
  }
}

int run(const char* events_path, const char* plan_path) {
  const std::vector<replay::Event> events = replay::read_events(events_path);
  if (events.empty()) throw Error(std::string("no events in ") + events_path);
  const plan::Plan plan = read_plan(plan_path);
  device::CudaMemory memory(0);
  device::CudaStreams device_streams(0);
  runtime::StreamTable table;
  runtime::PlannedAllocator allocator(memory, device_streams, table, runtime::Fallback::kOwn);
  allocator.enable(plan, {.reuse = true, .startup = true});  // events begin with start-up
  const std::vector<device::StreamHandle> streams = make_streams(replay::count_streams(events));
  for (device::StreamHandle stream : streams) table.id_of(stream);  // numbered as in the plan
  std::vector<void*> blocks(replay::count_requests(events), nullptr);

  replay::Laps laps;
  for (const replay::Event& event : events) {
    if (event.request < 0) {
      tell(event, allocator, laps);
      continue;
    }
    void*& block = blocks[static_cast<std::size_t>(event.request)];
    if (event.size < 0) {
      allocator.deallocate(block);
    } else {
      laps.count();
      const device::StreamHandle stream = streams[static_cast<std::size_t>(event.stream)];
      block = allocator.allocate(event.size, table.id_of(stream), true);
    }
  }
  const runtime::Statistics stats = allocator.figures().statistics();
  std::printf("{");
  laps.print();
  std::printf(", \"reserved\": %lld, \"load\": %lld, \"hits\": %lld, \"misses\": %lld}\n",
              static_cast<long long>(stats.reserved.peak),
              static_cast<long long>(stats.allocated.peak), static_cast<long long>(stats.hits),
              static_cast<long long>(stats.misses));
  std::fflush(stdout);
  std::_Exit(0);  // the live blocks die with the process
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: planned_replay EVENTS PLAN\n");
    return 2;
  }
  try {
    return run(argv[1], argv[2]);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "planned_replay: %s\n", error.what());
    return 1;
  }
}
