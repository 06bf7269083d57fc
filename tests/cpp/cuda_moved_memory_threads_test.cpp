// Memory that moves within a pool of the pretended GPU while other threads have blocks, or move the
// memory of another device.
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <memory>
#include <thread>
#include <vector>

#include "moving_training.h"
#include "pretended_gpu.h"

namespace stalloc {
namespace {

using testing::MovingTraining;

class CudaMovedMemoryThreads : public testing::PretendedGpu {};

TEST_F(CudaMovedMemoryThreads, BlocksOfOtherThreadsStay) {
  std::int64_t moves = 0;
  for (unsigned seed = 0; seed < 16; ++seed) {
    standin_reset();
    MovingTraining training(0, seed, {.scale = 100'000, .helped = true});
    std::atomic<bool> stop = false;
    std::thread helper([&] { training.help(stop); });
    for (int i = 0; i < 30 && !HasFatalFailure(); ++i) training.iterate();
    stop = true;
    helper.join();
    training.follow();
    moves += training.statistics().moves;
    if (HasFatalFailure()) ADD_FAILURE() << "seed " << seed;
  }
  EXPECT_GT(moves, 50);
}

// Each device's pool moves its own memory.
TEST_F(CudaMovedMemoryThreads, DevicesMoveTheirMemoryAtTheSameTime) {
  standin_set_devices(2);
  std::array<std::unique_ptr<MovingTraining>, 2> runs;
  for (unsigned device = 0; device < 2; ++device) {
    runs[device] = std::make_unique<MovingTraining>(static_cast<int>(device), device + 1,
                                                    MovingTraining::Conditions{.scale = 100'000});
  }
  std::vector<std::thread> threads;
  for (const auto& training : runs) {
    threads.emplace_back([&training] {
      for (int i = 0; i < 20; ++i) training->iterate();
    });
  }
  for (std::thread& t : threads) t.join();
  for (const auto& training : runs) EXPECT_GT(training->statistics().moves, 0);
}

}  // namespace
}  // namespace stalloc
