// What a planned request costs in the C++ runtime: one allocation and one free, with `live` other
// planned blocks in the pool. The fallback's pair stands beside it for comparison.
#include <benchmark/benchmark.h>

#include "device/pretend.h"
#include "runtime/planned_allocator.h"

namespace {

using namespace stalloc;

// `live` blocks that stay for the whole iteration, and `pairs` short-lived ones that follow each
// other in the same place, as the temporaries of a forward pass do.
Plan nested_plan(std::int64_t live, std::int64_t pairs) {
  Plan plan;
  plan.period = 2 * (live + pairs);
  plan.phases.push_back({{PhaseKind::kForward, 0, 0, 0}, 0, plan.period});
  const Bytes size = 4096;
  for (std::int64_t i = 0; i < live; ++i) {
    plan.decisions.push_back({.size = size,
                              .offset = i * size,
                              .lower = i,
                              .upper = plan.period - i,
                              .phase = 0,
                              .phase_end = 0,
                              .stream = 0});
  }
  for (std::int64_t i = 0; i < pairs; ++i) {
    const Tick tick = live + 2 * i;
    plan.decisions.push_back({.size = size,
                              .offset = live * size,
                              .lower = tick,
                              .upper = tick + 1,
                              .phase = 0,
                              .phase_end = 0,
                              .stream = 0});
  }
  plan.pool = plan.bound = (live + 1) * size;
  return plan;
}

void planned_pair(benchmark::State& state) {
  const std::int64_t live = state.range(0);
  constexpr std::int64_t kPairs = 20000;
  const Bytes size = 4096;
  PretendMemory device(Bytes{1} << 40);
  PlannedAllocator allocator(device);
  allocator.enable(nested_plan(live, kPairs));
  std::vector<void*> blocks(static_cast<std::size_t>(live));
  std::int64_t left = 0;
  for (auto _ : state) {
    if (left == 0) {  // the next iteration's long-lived blocks
      state.PauseTiming();
      for (void* b : blocks) {
        if (b) allocator.deallocate(b);
      }
      allocator.end_iteration();
      allocator.enter_phase(PhaseKind::kForward, 0, 0);
      for (void*& b : blocks) b = allocator.allocate(size, 0, false);
      left = kPairs;
      state.ResumeTiming();
    }
    void* p = allocator.allocate(size, 0, false);
    benchmark::DoNotOptimize(p);
    allocator.deallocate(p);
    --left;
  }
  const Statistics s = allocator.statistics();
  if (s.fallback_requests > 0) state.SkipWithError("the plan was not followed");
  for (void* b : blocks) allocator.deallocate(b);
}
BENCHMARK(planned_pair)->Arg(1000)->Arg(10000);

void fallback_pair(benchmark::State& state) {
  PretendMemory device(Bytes{1} << 40);
  PlannedAllocator allocator(device);
  allocator.enable(nested_plan(1, 1));
  std::vector<void*> blocks;
  for (std::int64_t i = 0; i < state.range(0); ++i) {
    blocks.push_back(allocator.allocate(5000, 0, false));
  }
  for (auto _ : state) {
    void* p = allocator.allocate(5000, 0, false);
    benchmark::DoNotOptimize(p);
    allocator.deallocate(p);
  }
  for (void* b : blocks) allocator.deallocate(b);
}
BENCHMARK(fallback_pair)->Arg(1000)->Arg(10000);

}  // namespace
