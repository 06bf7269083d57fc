// Memory that moves within a pool of the pretended GPU: every block can be used while it lives,
// whatever the driver refuses.
#include <gtest/gtest.h>

#include <cstddef>
#include <vector>

#include "device/cuda_memory.h"
#include "moving_training.h"
#include "plans.h"
#include "pretended_gpu.h"
#include "runtime/partial_release.h"

namespace stalloc {
namespace {

using testing::MovingTraining;
using testing::PretendedGpu;

constexpr Bytes kMiB = Bytes{1} << 20;

class CudaMovedMemory : public PretendedGpu {
 protected:
  // Returns the moves of all runs.
  static std::int64_t run(MovingTraining::Conditions conditions) {
    std::int64_t moves = 0;
    for (unsigned seed = 0; seed < 16; ++seed) {
      standin_reset();
      standin_set_manual(conditions.lags ? 1 : 0);
      MovingTraining training(0, seed, conditions);
      for (int i = 0; i < 30 && !HasFatalFailure(); ++i) training.iterate();
      training.follow();
      moves += training.statistics().moves;
      EXPECT_GT(training.given_way(), 0) << "seed " << seed;
      if (HasFatalFailure()) ADD_FAILURE() << "seed " << seed;
    }
    return moves;
  }
};

// Some sizes are no multiple of the unit in which the device gives memory, nor is the pool's.
TEST_F(CudaMovedMemory, EveryBlockCanBeUsed) { EXPECT_GT(run({.scale = 100'000}), 100); }

// The chunks of a large pool are larger than the unit.
TEST_F(CudaMovedMemory, EveryBlockOfALargePoolCanBeUsed) {
  EXPECT_GT(run({.scale = 60 * kMiB + 512}), 100);
}

TEST_F(CudaMovedMemory, ARefusalCostsNoBlock) {
  EXPECT_GT(run({.scale = 100'000, .faults = true}), 50);
}

TEST_F(CudaMovedMemory, AFullDeviceCostsNoBlock) {
  EXPECT_GT(run({.scale = 60 * kMiB + 512, .spare = 512 * kMiB}), 50);
}

TEST_F(CudaMovedMemory, StreamsThatLagBehindKeepTheirBlocks) {
  EXPECT_GT(run({.scale = 100'000, .lags = true}), 50);
}

TEST_F(CudaMovedMemory, FaultsStreamsAndAFullDeviceTogether) {
  EXPECT_GT(run({.scale = 3 * kMiB + 512, .lags = true, .faults = true, .spare = 64 * kMiB}), 50);
}

TEST_F(CudaMovedMemory, StreamsHaveAddressesOfTheirOwn) {
  EXPECT_GT(run({.scale = 100'000, .lags = true, .streams = 2}), 50);
}

TEST_F(CudaMovedMemory, StreamsThatShareAddressesWait) {
  EXPECT_GT(run({.scale = 100'000,
                 .lags = true,
                 .faults = true,
                 .streams = 2,
                 .reuse = solve::Streams::kOrdered}),
            50);
}

// A pool of three plain pieces, of which one holds a block.
class CudaPartialRelease : public PretendedGpu {};

TEST_F(CudaPartialRelease, ADriverThatFailsTakesNoPiece) {
  constexpr Bytes kPiece = 16 * kMiB;
  constexpr Offset kStep = kPiece + kDefaultAlignment;
  std::vector<plan::Decision> decisions(3);
  for (Tick i = 0; i < 3; ++i) {
    plan::Decision& d = decisions[static_cast<std::size_t>(i)];
    d.size = kPiece;
    d.offset = i * kStep;
    d.lower = i;
    d.upper = 4;
  }
  plan::Plan plan = testing::plan_of(decisions, 4);
  plan.walls = {kPiece, kPiece + kStep};
  device::CudaMemory memory(0);
  const auto take = [&] { return static_cast<std::byte*>(memory.allocate(kPiece)); };
  runtime::Pool pool(plan, take());
  pool.first_size = kPiece;
  for (const int i : {1, 2}) pool.more.push_back({take(), kPiece, i * kStep});
  pool.space.place(plan::DecisionIndex(1));
  runtime::PartialRelease release(memory);
  ASSERT_TRUE(release.release(pool));
  EXPECT_EQ(standin_used(0), static_cast<std::uint64_t>(kPiece));
  standin_fail("cudaMalloc", 2, kCudaIllegalAddress, 1);
  EXPECT_FALSE(release.acquire(pool));
  EXPECT_EQ(standin_used(0), static_cast<std::uint64_t>(kPiece));
  EXPECT_TRUE(release.acquire(pool));
  pool.space.check();
  for (const runtime::Pool::Piece& piece : pool.pieces()) {
    memory.release(piece.memory, piece.size);
  }
  EXPECT_EQ(standin_used(0), 0u);
}

}  // namespace
}  // namespace stalloc
