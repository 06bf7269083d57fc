// A pool that gets its memory with the first requests of its addresses.
#include <gtest/gtest.h>

#include <vector>

#include "base/error.h"
#include "device/pretend.h"
#include "plans.h"
#include "runtime/planned_allocator.h"

namespace stalloc {
namespace {

constexpr Bytes kMiB = Bytes{1} << 20;
constexpr int kDecisions = 5;

// Five decisions of 16 MiB. The last two follow one after the other at the same addresses.
plan::Plan plan_of_64_mib() {
  std::vector<plan::Decision> decisions;
  for (int i = 0; i < kDecisions; ++i) {
    const Bytes size = 16 * kMiB;
    const bool again = i + 1 == kDecisions;
    decisions.push_back(testing::decision(size, (again ? i - 1 : i) * size, 2 * i,
                                          i + 2 == kDecisions ? 2 * i + 1 : 10));
  }
  return testing::plan_of(decisions, 10);
}

class FilledPool : public ::testing::Test {
 protected:
  runtime::Statistics statistics() const { return allocator_.figures().statistics(); }
  Bytes pool() const { return statistics().pool; }

  // Trains an iteration. Returns the pool's memory after each request.
  std::vector<Bytes> train() {
    allocator_.loop().enter_phase(trace::PhaseKind::kForward, 0, 0);
    std::vector<void*> blocks;
    std::vector<Bytes> memory;
    for (int i = 0; i < kDecisions; ++i) {
      if (i + 1 == kDecisions) free(blocks[static_cast<std::size_t>(i) - 1]);
      blocks.push_back(allocator_.allocate(16 * kMiB, 0, /*for_training=*/true));
      memory.push_back(pool());
      allocator_.inspect().check();
    }
    blocks.erase(blocks.end() - 2);
    for (void* p : blocks) free(p);
    allocator_.loop().enter_phase(trace::PhaseKind::kOther, 0, 0);
    allocator_.loop().end_iteration();
    return memory;
  }
  void free(void* p) { EXPECT_TRUE(allocator_.deallocate(p)); }

  device::PretendMemory device_{200 * kMiB, /*grows=*/true};
  runtime::PlannedAllocator allocator_{device_};
};

TEST_F(FilledPool, gets_memory_with_the_first_request_of_its_addresses) {
  allocator_.enable(plan_of_64_mib(), {.filled = false});
  EXPECT_EQ(pool(), 2 * kMiB);
  EXPECT_EQ(device_.used(), 2 * kMiB);
  EXPECT_EQ(train(), (std::vector<Bytes>{16 * kMiB, 32 * kMiB, 48 * kMiB, 64 * kMiB, 64 * kMiB}));
  EXPECT_EQ(device_.used(), 64 * kMiB);
  EXPECT_EQ(train(), std::vector<Bytes>(kDecisions, 64 * kMiB));
  EXPECT_EQ(statistics().hits, 2 * kDecisions);
  EXPECT_EQ(statistics().misses + statistics().conflicts, 0);
  EXPECT_EQ(statistics().moves, 0) << "training waits for the device";
  allocator_.disable();
  EXPECT_EQ(device_.used(), 0);
  EXPECT_EQ(device_.wrong_releases(), 0);
}

TEST_F(FilledPool, comes_back_with_all_of_its_memory) {
  allocator_.enable(plan_of_64_mib(), {.filled = false});
  allocator_.release_pool(/*partly=*/false);
  EXPECT_EQ(device_.used(), 0);
  allocator_.acquire_pool();
  EXPECT_EQ(device_.used(), 64 * kMiB);
  train();
  EXPECT_EQ(statistics().hits, kDecisions);
}

TEST_F(FilledPool, says_that_the_device_is_full_and_goes_on_when_it_is_not) {
  allocator_.enable(plan_of_64_mib(), {.filled = false});
  void* other = device_.allocate(150 * kMiB);
  ASSERT_NE(other, nullptr);
  allocator_.loop().enter_phase(trace::PhaseKind::kForward, 0, 0);
  std::vector<void*> blocks;
  const auto request = [&] {
    blocks.push_back(allocator_.allocate(16 * kMiB, 0, /*for_training=*/true));
  };
  for (int i = 0; i < 3; ++i) request();
  EXPECT_THROW(request(), OutOfMemory);
  allocator_.inspect().check();
  device_.release(other, 150 * kMiB);
  request();
  allocator_.inspect().check();
  for (void* p : blocks) free(p);
  allocator_.loop().end_iteration();
  EXPECT_EQ(train().back(), 64 * kMiB);
}

// Two streams that may not share addresses use theirs one after the other.
TEST(PoolOfSeveralStreams, has_all_of_its_memory_unless_iterations_differ) {
  const auto memory = [](Bytes recorded_load) {
    device::PretendMemory device{200 * kMiB, /*grows=*/true};
    runtime::PlannedAllocator allocator{device};
    std::vector<plan::Decision> decisions = {testing::decision(32 * kMiB, 0, 0, 1),
                                             testing::decision(32 * kMiB, 32 * kMiB, 2, 3)};
    decisions[1].stream = 7;
    plan::Plan plan = testing::plan_of(decisions, 4);
    plan.load = 32 * kMiB;
    plan.recorded_load = recorded_load;
    allocator.enable(plan);
    return device.used();
  };
  EXPECT_EQ(memory(32 * kMiB), 64 * kMiB) << "memory moves between the streams all the time";
  EXPECT_LT(memory(16 * kMiB), 64 * kMiB) << "an iteration may lack one of the requests";
}

// An iteration frees what lives on from the one before. What it requests: a transient, one that the
// plan lacks, an evaluation's, and one that lives on.
TEST(PoolAheadOfItsPlan, serves_what_lives_on_into_its_first_iteration) {
  device::PretendMemory device{200 * kMiB, /*grows=*/true};
  runtime::PlannedAllocator allocator{device};
  const Bytes size = 16 * kMiB;
  allocator.enable(
      testing::plan_of({testing::decision(size, 0, 0, 1), testing::decision(size, size, 2, 5)}, 4),
      {.filled = false, .ahead = true});
  allocator.trust_all(/*makes_states=*/false);
  const auto statistics = [&] { return allocator.figures().statistics(); };
  const auto request = [&](Bytes bytes) { return allocator.allocate(bytes, 0, true); };
  void* lives_on = nullptr;
  // Returns the bytes beside the pool at the end.
  const auto iterate = [&] {
    allocator.loop().enter_unplanned();
    void* evaluated = request(size);
    allocator.loop().leave_unplanned();
    allocator.loop().enter_phase(trace::PhaseKind::kForward, 0, 0);
    void* transient = request(size);
    void* unknown = request(size / 2);
    allocator.inspect().check();
    for (void* p : {transient, unknown, evaluated}) EXPECT_TRUE(allocator.deallocate(p));
    EXPECT_EQ(allocator.deallocate(lives_on), lives_on != nullptr);
    lives_on = request(size);
    allocator.inspect().check();
    const Bytes beside = statistics().fallback.peak;
    allocator.loop().end_iteration();
    return beside;
  };
  const Bytes beside = iterate();
  EXPECT_EQ(beside, 2 * size + size / 2);
  EXPECT_LE(statistics().pool, size + 2 * kMiB);
  EXPECT_EQ(statistics().live_blocks, 1);
  EXPECT_EQ(statistics().hits + statistics().misses, 0) << "it tells nothing of the plan";
  iterate();
  EXPECT_EQ(statistics().hits, 2);
  EXPECT_EQ(statistics().misses, 0);
  EXPECT_EQ(statistics().pool, 2 * size);
  EXPECT_TRUE(allocator.deallocate(lives_on));
}

TEST(PoolThatCannotGrow, is_filled_at_once) {
  device::PretendMemory device{200 * kMiB};
  runtime::PlannedAllocator allocator{device};
  allocator.enable(plan_of_64_mib(), {.filled = false});
  EXPECT_EQ(allocator.figures().statistics().pool, 64 * kMiB);
  EXPECT_EQ(device.used(), 64 * kMiB);
}

}  // namespace
}  // namespace stalloc
