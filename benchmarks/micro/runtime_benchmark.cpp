// Measures a planned request in the C++ runtime: one allocation and one free, with `live` other
// planned blocks in the pool. The same pair is measured with the fallback, for comparison.
#include <benchmark/benchmark.h>

#include "device/pretend.h"
#include "runtime/planned_allocator.h"

namespace {

using namespace stalloc;

// A plan with `live` blocks that live for the whole iteration, and `pairs` short-lived ones that
// follow each other at the same address, as the temporaries of a forward do.
plan::Plan nested_plan(std::int64_t live, std::int64_t pairs) {
  plan::Plan plan;
  plan.period = 2 * (live + pairs);
  plan.phases.push_back({{trace::PhaseKind::kForward, 0, 0, 0}, 0, plan.period});
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
  device::PretendMemory device(Bytes{1} << 40);
  runtime::PlannedAllocator allocator(device);
  allocator.enable(nested_plan(live, kPairs));
  std::vector<void*> blocks(static_cast<std::size_t>(live));
  std::int64_t left = 0;
  for (auto _ : state) {
    if (left == 0) {  // the next iteration's long-lived blocks
      state.PauseTiming();
      for (void* b : blocks) {
        if (b) allocator.deallocate(b);
      }
      allocator.loop().end_iteration();
      allocator.loop().enter_phase(trace::PhaseKind::kForward, 0, 0);
      for (void*& b : blocks) b = allocator.allocate(size, 0, false);
      left = kPairs;
      state.ResumeTiming();
    }
    void* p = allocator.allocate(size, 0, false);
    benchmark::DoNotOptimize(p);
    allocator.deallocate(p);
    --left;
  }
  const runtime::Statistics s = allocator.figures().statistics();
  if (s.fallback_requests > 0) state.SkipWithError("the plan was not followed");
  for (void* b : blocks) allocator.deallocate(b);
}
BENCHMARK(planned_pair)->Arg(1000)->Arg(10000);

// The group of the dynamic requests in nested_plan(1, 1): `live` of them, with a hole between any
// two.
void fill_with_dynamic(runtime::PlannedAllocator& allocator, std::int64_t live, Bytes size) {
  allocator.loop().enter_phase(trace::PhaseKind::kForward, 0, 0);
  allocator.allocate(4096, 0, false);
  allocator.loop().enter_dynamic();
  std::vector<void*> blocks;
  for (std::int64_t i = 0; i < 2 * live; ++i) blocks.push_back(allocator.allocate(size, 0, false));
  for (std::size_t i = 1; i < blocks.size(); i += 2) allocator.deallocate(blocks[i]);
}

// The worst case: a dynamic request among `live` others of its region, whose holes are all too
// small. The search runs to the end, and the role depends on the context.
void dynamic_pair(benchmark::State& state) {
  const std::int64_t live = state.range(0);
  const Bytes size = Bytes{64} << 10;
  plan::Plan plan = nested_plan(1, 1);
  plan::DynamicGroup group;
  group.phase = group.phase_end = 0;
  group.after = 0;
  group.size = 2 * live * size + size;
  group.offset = plan.pool;
  group.lower = 1;
  group.upper = 3;
  group.contexts = {{.size = size + 512, .before = profile::DynamicContext::kVaries}};
  plan.groups.push_back(group);
  plan.pool = plan.bound = plan.pool + group.size;
  device::PretendMemory device(Bytes{1} << 40);
  runtime::PlannedAllocator allocator(device);
  allocator.enable(plan);
  fill_with_dynamic(allocator, live, size);
  const Bytes larger = size + 512;  // than all rooms but the last
  for (auto _ : state) {
    void* p = allocator.allocate(larger, 0, false);
    benchmark::DoNotOptimize(p);
    allocator.deallocate(p);
  }
  if (allocator.figures().statistics().fallback_requests > 0)
    state.SkipWithError("it was not served inside");
}
BENCHMARK(dynamic_pair)->Arg(1000)->Arg(10000);

// The same for groups without a region, which use the plan's reusable space. Two groups alternate,
// so the allocator keeps track of the space for both.
void reused_pair(benchmark::State& state) {
  const std::int64_t live = state.range(0);
  const Bytes size = Bytes{64} << 10;
  plan::Plan plan = nested_plan(1, 1);
  const Offset begin = plan.pool;
  plan.pool = plan.bound = begin + 2 * live * size + 2 * size;
  for (int i = 0; i < 2; ++i) {
    plan::DynamicGroup group;
    group.phase = group.phase_end = 0;
    group.after = 0;
    group.lower = 1;
    group.upper = 3;
    group.reusable = {{begin, plan.pool}};
    plan.groups.push_back(group);
  }
  plan.groups[1].contexts = {{.size = size + 512, .before = profile::DynamicContext::kVaries}};
  device::PretendMemory device(Bytes{1} << 40);
  runtime::PlannedAllocator allocator(device);
  allocator.enable(plan);
  fill_with_dynamic(allocator, live, size);
  Bytes wanted = size + 512;
  for (auto _ : state) {
    void* p = allocator.allocate(wanted, 0, false);
    benchmark::DoNotOptimize(p);
    allocator.deallocate(p);
    wanted = wanted == size ? size + 512 : size;
  }
  if (allocator.figures().statistics().fallback_requests > 0)
    state.SkipWithError("it was not served inside");
}
BENCHMARK(reused_pair)->Arg(1000)->Arg(10000);

void fallback_pair(benchmark::State& state) {
  device::PretendMemory device(Bytes{1} << 40);
  runtime::PlannedAllocator allocator(device);
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
