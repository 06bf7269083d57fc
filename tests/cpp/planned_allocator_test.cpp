#include "runtime/planned_allocator.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "base/align.h"
#include "base/error.h"
#include "device/host.h"
#include "device/pretend.h"
#include "plans.h"

namespace stalloc {
namespace {

constexpr Bytes kMiB = Bytes{1} << 20;

plan::Decision decision(Bytes size, Offset offset, Tick lower, Tick upper, PhaseIndex phase = 0) {
  plan::Decision d = testing::decision(size, offset, lower, upper);
  d.phase = phase;
  return d;
}

plan::Plan two_blocks() {
  return testing::plan_of({decision(kMiB, 0, 0, 3), decision(kMiB, kMiB, 1, 2)}, 4);
}

class PlannedAllocatorTest : public ::testing::Test {
 protected:
  void* allocate(Bytes size) { return allocator_.allocate(size, 0, /*for_training=*/false); }
  void enter(std::int32_t microbatch = 0) {
    allocator_.loop().enter_phase(trace::PhaseKind::kForward, microbatch, 0);
  }

  device::PretendMemory device_{100 * kMiB};
  runtime::PlannedAllocator allocator_{device_};
};

TEST_F(PlannedAllocatorTest, ServesNothingUntilEnabled) {
  EXPECT_FALSE(allocator_.enabled());
  EXPECT_EQ(allocate(1), nullptr);
  int foreign = 0;
  EXPECT_FALSE(allocator_.deallocate(&foreign));
  allocator_.disable();
}

TEST_F(PlannedAllocatorTest, ServesThePlanAndCountsIt) {
  allocator_.enable(two_blocks());
  for (int i = 0; i < 3; ++i) {
    enter();
    auto* a = static_cast<std::byte*>(allocate(kMiB));
    auto* b = static_cast<std::byte*>(allocate(kMiB));
    EXPECT_EQ(b - a, kMiB);
    EXPECT_EQ(allocator_.inspect().block_of(b).value().rounded, kMiB);
    EXPECT_FALSE(allocator_.inspect().block_of(b + 1).has_value());
    EXPECT_TRUE(allocator_.deallocate(b));
    EXPECT_FALSE(allocator_.inspect().block_of(b).has_value());
    EXPECT_TRUE(allocator_.deallocate(a));
    EXPECT_FALSE(allocator_.deallocate(a)) << "freed twice";
    allocator_.loop().end_iteration();
  }
  const runtime::Statistics s = allocator_.figures().statistics();
  EXPECT_EQ(s.iterations, 3);
  EXPECT_EQ(s.hits, 6);
  EXPECT_EQ(s.misses, 0);
  EXPECT_EQ(s.allocated.current, 0);
  EXPECT_EQ(s.allocated.peak, 2 * kMiB);
  EXPECT_EQ(s.reserved.peak, 2 * kMiB);
  EXPECT_EQ(s.fallback_requests, 0);
}

TEST_F(PlannedAllocatorTest, MissesAreDecisionsNotServed) {
  allocator_.enable(two_blocks());
  enter();
  void* a = allocate(kMiB);
  void* other = allocate(3 * kMiB);
  allocator_.loop().end_iteration();
  runtime::Statistics s = allocator_.figures().statistics();
  EXPECT_EQ(s.hits, 1);
  EXPECT_EQ(s.misses, 1);
  EXPECT_EQ(s.fallback_requests, 1);
  EXPECT_EQ(s.fallback.current, 3 * kMiB);
  EXPECT_EQ(s.reserved.current, 2 * kMiB + 20 * kMiB);

  // `a` lives on: its decision conflicts in the next iteration, and is served from the fallback.
  enter();
  void* again = allocate(kMiB);
  EXPECT_NE(again, a);
  EXPECT_EQ(allocator_.figures().statistics().conflicts, 1);
  EXPECT_TRUE(allocator_.deallocate(a));
  EXPECT_TRUE(allocator_.deallocate(again));
  EXPECT_TRUE(allocator_.deallocate(other));
  allocator_.loop().end_iteration();
  enter();
  EXPECT_EQ(allocate(kMiB), a) << "back in step";
  void* big = allocate(30 * kMiB);
  EXPECT_TRUE(allocator_.deallocate(big));
  EXPECT_EQ(allocator_.release_cached(), 30 * kMiB);
}

TEST_F(PlannedAllocatorTest, DynamicModulesAreOfTheThreadThatEntersThem) {
  allocator_.enable(two_blocks());
  enter();
  std::thread([&] { allocator_.loop().enter_dynamic(); }).join();
  void* a = allocate(kMiB);
  EXPECT_EQ(allocator_.figures().statistics().hits, 1);
  allocator_.loop().enter_dynamic();
  allocator_.loop().enter_dynamic();
  allocator_.loop().leave_dynamic();
  void* b = allocate(kMiB);
  EXPECT_EQ(allocator_.figures().statistics().dynamic_requests, 1)
      << "it has left the inner one alone";
  EXPECT_EQ(allocator_.figures().statistics().dynamic_fallback_requests, 0)
      << "it lies in the pool";
  EXPECT_EQ(allocator_.figures().statistics().dynamic.current, kMiB);
  EXPECT_TRUE(allocator_.deallocate(b));
  EXPECT_EQ(allocator_.figures().statistics().dynamic.current, 0);
  allocator_.loop().leave_dynamic();
  allocator_.loop().leave_dynamic();  // one too many does no harm
  void* c = allocate(kMiB);
  EXPECT_EQ(allocator_.figures().statistics().hits, 2);
  for (void* p : {a, c}) EXPECT_TRUE(allocator_.deallocate(p));
}

TEST_F(PlannedAllocatorTest, NodesAreToldApartByTheThreadThatMadeThem) {
  allocator_.enable(two_blocks());
  enter();
  const auto dynamic_after = [&](runtime::NodeSequence node) {
    const auto before = allocator_.figures().statistics().dynamic_requests;
    EXPECT_TRUE(allocator_.deallocate(allocator_.allocate(kMiB, 0, /*for_training=*/true, node)));
    return allocator_.figures().statistics().dynamic_requests > before;
  };
  allocator_.loop().tag_dynamic_nodes(runtime::node_of_thread(2, 5), runtime::node_of_thread(2, 8));
  allocator_.loop().tag_dynamic_nodes(runtime::node_of_thread(1, 20),
                                      runtime::node_of_thread(1, 24));  // its own numbers
  allocator_.loop().tag_dynamic_nodes(runtime::node_of_thread(2, 3),
                                      runtime::node_of_thread(2, 10));  // an outer module
  EXPECT_TRUE(dynamic_after(runtime::node_of_thread(2, 3)));
  EXPECT_TRUE(dynamic_after(runtime::node_of_thread(2, 9)));
  EXPECT_FALSE(dynamic_after(runtime::node_of_thread(2, 10)));
  EXPECT_FALSE(dynamic_after(runtime::node_of_thread(1, 6)));
  EXPECT_TRUE(dynamic_after(runtime::node_of_thread(1, 23)));
  EXPECT_FALSE(dynamic_after(runtime::node_of_thread(3, 6)));
  EXPECT_FALSE(dynamic_after(runtime::node_of_thread(2, ~std::uint64_t{0})));
  for (int i = 0; i < 3; ++i) allocator_.loop().end_iteration();
  enter();
  EXPECT_FALSE(dynamic_after(runtime::node_of_thread(1, 23)))
      << "two iterations later they are forgotten";
}

TEST_F(PlannedAllocatorTest, EvaluationUsesIdlePoolSpace) {
  allocator_.enable(two_blocks());
  enter();
  auto* a = static_cast<std::byte*>(allocate(kMiB));
  allocator_.loop().enter_unplanned();
  auto* e = static_cast<std::byte*>(allocate(1000));
  EXPECT_EQ(e, a + kMiB);
  allocator_.loop().enter_unplanned();
  allocator_.loop().leave_unplanned();
  EXPECT_EQ(allocate(1000), e + 1024) << "one leave does not end two";
  EXPECT_TRUE(allocator_.deallocate(e + 1024));
  EXPECT_TRUE(allocator_.deallocate(e));
  allocator_.loop().leave_unplanned();
  EXPECT_EQ(allocate(kMiB), a + kMiB) << "the phase goes on where it was";
  EXPECT_EQ(allocator_.figures().statistics().idle_requests, 2);
  EXPECT_EQ(allocator_.figures().statistics().fallback_requests, 0);
  allocator_.inspect().check();
}

// A backward that makes a gradient of 1 MiB beside a temporary, a step, and the phase after it.
plan::Plan gradient_and_rest() {
  plan::Plan plan = testing::plan_of(
      {decision(kMiB, 0, 0, 4), decision(kMiB, kMiB, 1, 2), decision(kMiB, kMiB, 3, 5, 1)}, 6, 3);
  plan.phases[0].key = {trace::PhaseKind::kBackward, 0, 0, 0};
  plan.phases[1] = {{trace::PhaseKind::kOptimizer, kNone, 0, 0}, 3, 5};
  plan.phases[2] = {{trace::PhaseKind::kOther, kNone, 0, 0}, 5, 6};
  plan.decisions[0].phase_end = 1;
  return plan;
}

TEST_F(PlannedAllocatorTest, CopiesOfWeightsBetweenIterationsTakeNoPlannedAddress) {
  allocator_.enable(gradient_and_rest());
  std::vector<void*> copies;
  for (int i = 0; i < 6; ++i) {
    allocator_.loop().enter_phase(trace::PhaseKind::kBackward, 0, 0);
    void* gradient = allocate(kMiB);
    EXPECT_TRUE(allocator_.deallocate(allocate(kMiB)));
    allocator_.loop().enter_phase(trace::PhaseKind::kOptimizer, kNone, 0);
    void* step = allocate(kMiB);
    EXPECT_TRUE(allocator_.deallocate(gradient));
    EXPECT_TRUE(allocator_.deallocate(step));
    allocator_.loop().enter_phase(trace::PhaseKind::kOther, kNone, 0);
    if (i == 2) {
      for (const Bytes size : {kMiB, kMiB / 2, 2 * kMiB}) copies.push_back(allocate(size));
    }
    EXPECT_TRUE(allocator_.deallocate(allocate(kMiB / 4))) << "another size may use the pool";
    allocator_.loop().end_iteration();
  }
  EXPECT_EQ(allocator_.figures().statistics().fallback_requests, 3);
  EXPECT_EQ(allocator_.figures().statistics().idle_requests, 6);
  EXPECT_EQ(allocator_.figures().statistics().hits, 18)
      << "the copies stay, and are in nobody's way";
  for (void* c : copies) EXPECT_TRUE(allocator_.deallocate(c));
}

TEST_F(PlannedAllocatorTest, AKindThatOutlivesAnIterationIsNotAdmittedAgain) {
  allocator_.enable(two_blocks());
  const auto evaluate = [this](Bytes size) {
    allocator_.loop().enter_unplanned();
    void* p = allocate(size);
    allocator_.loop().leave_unplanned();
    return p;
  };
  const auto hits_of_iteration = [this] {
    const std::int64_t before = allocator_.figures().statistics().hits;
    enter();
    void* a = allocate(kMiB);
    EXPECT_TRUE(allocator_.deallocate(allocate(kMiB)));
    EXPECT_TRUE(allocator_.deallocate(a));
    allocator_.loop().end_iteration();
    return allocator_.figures().statistics().hits - before;
  };
  void* kept = evaluate(kMiB);
  void* loss = evaluate(100);
  EXPECT_EQ(allocator_.figures().statistics().idle_requests, 2);
  allocator_.loop().end_iteration();
  EXPECT_EQ(hits_of_iteration(), 0) << "both places are taken";
  const std::int64_t before = allocator_.figures().statistics().idle_requests;

  EXPECT_TRUE(allocator_.deallocate(evaluate(kMiB)));
  EXPECT_TRUE(allocator_.deallocate(evaluate(200))) << "all small sizes are one kind";
  EXPECT_EQ(allocator_.figures().statistics().idle_requests, before);
  EXPECT_TRUE(allocator_.deallocate(evaluate(kMiB / 2))) << "another kind";
  EXPECT_EQ(allocator_.figures().statistics().idle_requests, before + 1);

  EXPECT_TRUE(allocator_.deallocate(kept));
  EXPECT_TRUE(allocator_.deallocate(loss));
  EXPECT_EQ(hits_of_iteration(), 2) << "the places are free again";
}

TEST_F(PlannedAllocatorTest, ABlockThatOutlivesItsPhaseButNoIterationIsAdmittedAgain) {
  allocator_.enable(testing::plan_of({decision(kMiB, 0, 0, 1, 0), decision(kMiB, 0, 2, 3, 1)}, 4,
                                     /*phases=*/2));
  for (int i = 0; i < 4; ++i) {
    enter(0);
    EXPECT_TRUE(allocator_.deallocate(allocate(kMiB)));
    void* scoped = allocate(kMiB / 2);
    enter(1);
    EXPECT_TRUE(allocator_.deallocate(scoped));
    EXPECT_TRUE(allocator_.deallocate(allocate(kMiB)));
    allocator_.loop().end_iteration();
    EXPECT_EQ(allocator_.figures().statistics().idle_requests, i + 1);
  }
  EXPECT_EQ(allocator_.figures().statistics().hits, 8);
  EXPECT_EQ(allocator_.figures().statistics().fallback_requests, 0);
}

TEST_F(PlannedAllocatorTest, OtherThreadsAreNotMatchedAndUseIdleSpace) {
  allocator_.enable(two_blocks());
  enter();
  std::thread([this] {
    void* large = allocate(3 * kMiB);
    EXPECT_EQ(allocator_.figures().statistics().fallback_requests, 1) << "it does not fit";
    // Unless they run the training thread's graph.
    EXPECT_NE(allocator_.allocate(kMiB, 0, /*for_training=*/true), nullptr);
    EXPECT_EQ(allocator_.figures().statistics().hits, 1);
    void* foreign = allocate(kMiB);
    EXPECT_EQ(allocator_.figures().statistics().idle_requests, 1);
    EXPECT_EQ(allocator_.figures().statistics().hits, 1);
    EXPECT_TRUE(allocator_.deallocate(foreign));
    EXPECT_TRUE(allocator_.deallocate(large));
  }).join();
  EXPECT_EQ(allocator_.figures().statistics().fallback_requests, 1);
}

TEST_F(PlannedAllocatorTest, DisabledPoolsGoBackWithTheirLastBlock) {
  allocator_.enable(two_blocks());
  void* f = allocate(5);  // before the first phase: beside the pool
  enter();
  void* a = allocate(kMiB);
  allocator_.disable();
  allocator_.disable();
  EXPECT_EQ(allocate(kMiB), nullptr);
  EXPECT_EQ(device_.used(), 4 * kMiB);
  EXPECT_TRUE(allocator_.deallocate(a));
  EXPECT_EQ(device_.used(), 2 * kMiB);
  EXPECT_TRUE(allocator_.deallocate(f));
  EXPECT_EQ(device_.used(), 0);
  EXPECT_EQ(allocator_.figures().statistics().reserved.current, 0);
}

TEST_F(PlannedAllocatorTest, DisabledFallbackSegmentsGoBackOneByOne) {
  allocator_.enable(two_blocks());
  void* small = allocate(5);
  void* large = allocate(30 * kMiB);
  allocator_.disable();
  EXPECT_EQ(device_.used(), 32 * kMiB);
  EXPECT_TRUE(allocator_.deallocate(large));
  EXPECT_EQ(device_.used(), 2 * kMiB) << "the small block keeps its own segment only";
  EXPECT_EQ(allocator_.figures().statistics().reserved.current, 2 * kMiB);
  EXPECT_TRUE(allocator_.deallocate(small));
  EXPECT_EQ(device_.used(), 0);
}

TEST_F(PlannedAllocatorTest, AnAlignmentTheDeviceCannotGiveIsRefused) {
  plan::Plan plan = two_blocks();
  plan.alignment = device_.alignment();
  plan.decisions[1].offset = plan.alignment;
  plan.bound = plan.pool = 2 * plan.alignment;
  allocator_.enable(plan);
  enter();
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(allocate(kMiB)) %
                static_cast<std::uintptr_t>(plan.alignment),
            0u);
  plan.alignment *= 2;
  plan.decisions[1].offset = plan.alignment;
  plan.bound = plan.pool = 2 * plan.alignment;
  try {
    allocator_.enable(plan);
    FAIL() << "an alignment was promised that the device does not give";
  } catch (const PlanError& e) {
    EXPECT_NE(std::string(e.what()).find("multiples of 2097152"), std::string::npos) << e.what();
  }
}

// Answers of a reinforcement learning's rollout have another size each time.
TEST_F(PlannedAllocatorTest, SmallBlocksOfAnOriginThatKeepsOneLieBesideThePool) {
  device::PretendMemory memory{Bytes{2} << 30};
  runtime::PlannedAllocator allocator{memory};
  plan::Plan plan = testing::plan_of({decision(Bytes{1} << 30, 0, 0, 1)}, 2);
  plan.load = Bytes{1} << 30;
  allocator.enable(plan);
  const auto allocate = [&](Bytes size) { return allocator.allocate(size, 0, true); };
  const auto beside = [&] { return allocator.figures().statistics().fallback_requests; };
  const auto iterate = [&] {
    allocator.loop().enter_phase(trace::PhaseKind::kForward, 0, 0);
    EXPECT_TRUE(allocator.deallocate(allocate(Bytes{1} << 30)));
    allocator.loop().end_iteration();
  };
  for (int i = 0; i < 2; ++i) iterate();
  allocator.loop().enter_phase(trace::PhaseKind::kOther, kNone, 0);
  void* kept = allocate(100 << 10);
  EXPECT_EQ(beside(), 0);
  allocator.loop().end_iteration();
  allocator.loop().end_iteration();
  allocator.loop().enter_phase(trace::PhaseKind::kOther, kNone, 0);
  void* next = allocate(60 << 10);
  EXPECT_EQ(beside(), 1);
  void* large = allocate(1 << 20);
  EXPECT_EQ(beside(), 1) << "large ones of other sizes may still be brief";
  for (void* p : {kept, next, large}) EXPECT_TRUE(allocator.deallocate(p));
}

// One of two requests lives into the next iteration. Once the pool is drained, it lies beside it.
TEST_F(PlannedAllocatorTest, ADrainedPoolIsEmptyWhereIterationsEnd) {
  allocator_.drain(/*departed=*/false);  // nothing is enabled
  allocator_.enable(testing::plan_of({decision(kMiB, 0, 0, 1), decision(kMiB, kMiB, 2, 5)}, 4));
  void* held = nullptr;
  const auto iterate = [&] {
    enter();
    allocator_.deallocate(allocate(kMiB));
    void* before = std::exchange(held, nullptr);
    EXPECT_EQ(allocator_.deallocate(before), before != nullptr);
    held = allocate(kMiB);
    allocator_.loop().end_iteration();
  };
  for (int i = 0; i < 3; ++i) iterate();
  EXPECT_EQ(allocator_.figures().statistics().hits, 6);
  EXPECT_EQ(allocator_.figures().statistics().live_blocks, 1);
  allocator_.drain(/*departed=*/false);
  EXPECT_EQ(allocator_.figures().statistics().live_blocks, 1) << "what is live stays";
  iterate();
  EXPECT_EQ(allocator_.figures().statistics().live_blocks, 0);
  EXPECT_EQ(allocator_.figures().statistics().hits, 7) << "transients are served as before";
  EXPECT_EQ(allocator_.figures().statistics().fallback.current, kMiB);
  for (const bool departed : {false, true}) {
    allocator_.drain(departed);
    enter();
    void* unknown = allocate(kMiB / 2);
    EXPECT_EQ(allocator_.figures().statistics().live_blocks, departed ? 0 : 1);
    EXPECT_TRUE(allocator_.deallocate(unknown));
    allocator_.loop().end_iteration();
  }
  EXPECT_TRUE(allocator_.deallocate(held));
  allocator_.inspect().check();
}

TEST_F(PlannedAllocatorTest, StatesTakeNoPlannedAddress) {
  allocator_.make_states(true);  // nothing is enabled
  allocator_.enable(two_blocks());
  enter();
  allocator_.make_states(true);
  void* state = allocate(kMiB);
  EXPECT_EQ(allocator_.figures().statistics().live_blocks, 0);
  EXPECT_EQ(allocator_.figures().statistics().fallback.current, kMiB);
  allocator_.make_states(false);
  void* a = allocate(kMiB);
  void* b = allocate(kMiB);
  EXPECT_EQ(allocator_.figures().statistics().hits, 2);
  EXPECT_EQ(allocator_.figures().statistics().persistent_requests, 1);
  EXPECT_EQ(allocator_.figures().statistics().misses, 0);
  for (void* p : {b, a, state}) EXPECT_TRUE(allocator_.deallocate(p));
  allocator_.loop().end_iteration();
  allocator_.inspect().check();
}

TEST_F(PlannedAllocatorTest, AStepThatFailsMakesNoMoreStates) {
  allocator_.enable(two_blocks());
  allocator_.make_states(true);
  allocator_.loop().enter_phase(trace::PhaseKind::kOptimizer, kNone, 0);
  void* state = allocate(kMiB);
  EXPECT_EQ(allocator_.figures().statistics().persistent_requests, 1);
  enter();
  void* a = allocate(kMiB);
  EXPECT_EQ(allocator_.figures().statistics().hits, 1);
  EXPECT_EQ(allocator_.figures().statistics().persistent_requests, 1);
  for (void* p : {a, state}) EXPECT_TRUE(allocator_.deallocate(p));
}

TEST_F(PlannedAllocatorTest, EnablingAnotherPlanRetiresTheFirst) {
  allocator_.enable(two_blocks());
  enter();
  void* a = allocate(kMiB);
  allocator_.enable(testing::plan_of({decision(512, 0, 0, 1)}, 2));
  enter();
  void* b = allocate(512);
  EXPECT_EQ(allocator_.figures().statistics().hits, 1);
  EXPECT_EQ(allocator_.figures().statistics().reserved.current, 2 * kMiB + 512);
  EXPECT_EQ(allocator_.figures().statistics().allocated.current, kMiB + 512);
  EXPECT_TRUE(allocator_.deallocate(a));
  EXPECT_EQ(allocator_.figures().statistics().reserved.current, 512);
  EXPECT_TRUE(allocator_.deallocate(b));
  EXPECT_EQ(device_.wrong_releases(), 0);
}

TEST_F(PlannedAllocatorTest, APoolThatCannotBeReservedChangesNothing) {
  allocator_.enable(two_blocks());
  enter();
  void* a = allocate(kMiB);
  try {
    allocator_.enable(testing::plan_of({decision(200 * kMiB, 0, 0, 1)}, 2));
    FAIL() << "more was reserved than there is";
  } catch (const OutOfMemory& e) {
    EXPECT_NE(std::string(e.what()).find("200.0 MiB"), std::string::npos) << e.what();
    EXPECT_NE(std::string(e.what()).find("98.0 MiB"), std::string::npos) << e.what();
  }
  EXPECT_TRUE(allocator_.enabled());
  EXPECT_EQ(allocate(kMiB), static_cast<std::byte*>(a) + kMiB);
}

TEST_F(PlannedAllocatorTest, OutOfMemoryListsTheMemoryThereIs) {
  allocator_.enable(two_blocks());
  enter();
  allocate(kMiB);
  void* kept = allocate(30 * kMiB);
  void* cached = allocate(40 * kMiB);
  allocator_.deallocate(cached);
  EXPECT_NE(allocate(60 * kMiB), nullptr) << "what is cached goes back first";
  try {
    allocate(50 * kMiB);
    FAIL() << "more was given than there is";
  } catch (const OutOfMemory& e) {
    const std::string what = e.what();
    for (const char* part : {"50.0 MiB", "8.0 MiB free", "1.0 MiB of its 2.0 MiB",
                             "90.0 MiB of 90.0 MiB", "largest hole is 1.0 MiB"}) {
      EXPECT_NE(what.find(part), std::string::npos) << part << " in: " << what;
    }
  }
  EXPECT_EQ(allocator_.figures().statistics().allocated.current, 91 * kMiB)
      << "a failure is not counted";
  EXPECT_TRUE(allocator_.deallocate(kept));
  allocator_.inspect().check();
}

TEST_F(PlannedAllocatorTest, PeaksAreReset) {
  allocator_.enable(two_blocks());
  enter();
  void* a = allocate(kMiB);
  void* b = allocate(kMiB);
  allocator_.deallocate(b);
  allocator_.figures().reset_peaks();
  EXPECT_EQ(allocator_.figures().statistics().allocated.peak, kMiB);
  allocator_.deallocate(a);
  EXPECT_EQ(allocator_.figures().statistics().allocated.current, 0);
}

// Threads that train, evaluate and free each other's blocks at the same time, on real memory: every
// block is filled by its owner and must still hold that when it is freed.
TEST(PlannedAllocatorStress, ThreadsNeverShareAnAddress) {
  device::HostMemory device;
  runtime::PlannedAllocator allocator(device);
  std::mt19937 seed(7);
  const plan::Plan plan = testing::random_plan(seed, 300, 4);
  allocator.enable(plan);

  const auto fill = [](void* p, Bytes size, int mark) {
    std::memset(p, mark, static_cast<std::size_t>(size));
  };
  const auto intact = [](const void* p, Bytes size, int mark) {
    const auto* bytes = static_cast<const unsigned char*>(p);
    for (Bytes i = 0; i < size; ++i) {
      if (bytes[i] != static_cast<unsigned char>(mark)) return false;
    }
    return true;
  };
  std::atomic<int> damaged{0};
  std::atomic<bool> stop{false};

  std::vector<std::thread> others;
  for (int t = 0; t < 3; ++t) {
    others.emplace_back([&, t] {
      std::mt19937 random(static_cast<unsigned>(t));
      std::vector<std::pair<void*, Bytes>> live;
      const int mark = 100 + t;
      while (!stop.load()) {
        const Bytes size = std::uniform_int_distribution<int>(1, 2000)(random);
        if (void* p = allocator.allocate(size, 0, random() % 8 == 0)) {
          fill(p, size, mark);
          live.emplace_back(p, size);
        }
        while (live.size() > 20) {
          const auto [p, s] = live[random() % live.size()];
          if (!intact(p, s, mark)) ++damaged;
          std::erase(live, std::pair(p, s));
          allocator.deallocate(p);
        }
      }
      for (const auto& [p, s] : live) allocator.deallocate(p);
    });
  }

  std::mt19937 random(99);
  std::vector<std::pair<void*, Bytes>> live;
  const auto free_some = [&](std::size_t keep) {
    while (live.size() > keep) {
      const std::size_t i = random() % live.size();
      if (!intact(live[i].first, live[i].second, 1)) ++damaged;
      allocator.deallocate(live[i].first);
      live.erase(live.begin() + static_cast<std::ptrdiff_t>(i));
    }
  };
  for (int iteration = 0; iteration < 60; ++iteration) {
    // Microbatches are missing, come twice, come in another order, or are beyond the plan's.
    std::vector<std::int32_t> microbatches = {0, 1, 2, 3};
    if (iteration % 3 != 0) {
      if (random() % 2 == 0) microbatches.erase(microbatches.begin() + random() % 4);
      if (random() % 2 == 0) std::swap(microbatches[0], microbatches[2]);
      for (std::int32_t extra = 4; random() % 2 == 0; ++extra) microbatches.push_back(extra);
      if (random() % 4 == 0) microbatches.push_back(1);
    }
    for (const std::int32_t microbatch : microbatches) {
      allocator.loop().enter_phase(trace::PhaseKind::kForward, microbatch, 0);
      for (const plan::Decision& d : plan.decisions) {
        if (d.phase != std::min(microbatch, 3) || random() % 50 == 0) continue;
        if (random() % 100 == 0) allocator.loop().enter_unplanned();
        void* p = allocator.allocate(d.size, 0, false);
        allocator.loop().leave_unplanned();
        fill(p, d.size, 1);
        live.emplace_back(p, d.size);
        free_some(random() % 10 == 0 ? 0 : 12);
        if (random() % 20 == 0) allocator.inspect().check();
      }
    }
    allocator.loop().end_iteration();
    allocator.inspect().check();
    if (iteration % 20 == 9) allocator.enable(plan);
  }
  stop = true;
  for (std::thread& t : others) t.join();
  free_some(0);
  allocator.inspect().check();
  EXPECT_EQ(damaged.load(), 0);
  EXPECT_EQ(allocator.figures().statistics().allocated.current, 0);
  EXPECT_GT(allocator.figures().statistics().hits, 1000);
}

}  // namespace
}  // namespace stalloc
