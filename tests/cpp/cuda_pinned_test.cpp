// Pinned host memory, the streams that copy it, and plans for it, on the pretended GPU.
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "cudart.h"
#include "device/pinned_memory.h"
#include "plans.h"
#include "pretended_gpu.h"
#include "runtime/planned_allocator.h"
#include "standin.h"

namespace stalloc {
namespace {

using Progress = device::DeviceStreams::Progress;

constexpr Bytes kMiB = Bytes{1} << 20;
constexpr int kOutOfMemory = 2;
constexpr int kBothDevices = 2;

class CudaPinned : public testing::PretendedGpu {
 protected:
  void SetUp() override {
    PretendedGpu::SetUp();
    standin_set_devices(kBothDevices);
  }
};

TEST_F(CudaPinned, APieceIsOneCallAndCanBeWritten) {
  device::PinnedMemory memory(0);
  const auto calls = standin_calls("cudaHostAlloc");
  void* p = memory.allocate(3 * kMiB);
  ASSERT_NE(p, nullptr);
  EXPECT_EQ(standin_calls("cudaHostAlloc"), calls + 1);
  std::memset(p, 7, 3 * kMiB);
  memory.release(p, 3 * kMiB);
  EXPECT_EQ(standin_calls("cudaFreeHost"), 1);
  EXPECT_GT(memory.available(), 0);
}

TEST_F(CudaPinned, ASystemThatLocksNoMoreGivesNone) {
  device::PinnedMemory memory(0);
  standin_fail("cudaHostAlloc", 1, kOutOfMemory, 1);
  EXPECT_EQ(memory.allocate(kMiB), nullptr);
}

TEST_F(CudaPinned, AHandleNamesTheDeviceToo) {
  device::PinnedStreams streams(0);
  EXPECT_NE(streams.handle_of(nullptr, 0), streams.handle_of(nullptr, 1));
  EXPECT_EQ(streams.handle_of(nullptr, 1), streams.handle_of(nullptr, 1));
  EXPECT_NE(streams.handle_of(nullptr, 0), nullptr);
  EXPECT_EQ(streams.handle_of(nullptr, -1), nullptr);
  EXPECT_EQ(streams.handle_of(nullptr, 64), nullptr);
  void* const per_thread = reinterpret_cast<void*>(2);
  EXPECT_EQ(streams.handle_of(per_thread, 0), nullptr) << "another stream on each thread";
}

TEST_F(CudaPinned, AnEventPassesWithTheWorkOfItsStream) {
  device::PinnedStreams streams(0);
  standin_set_manual(1);
  void* s = stream();
  const auto handle = streams.handle_of(s, 0);
  standin_submit(s);
  const auto event = streams.record(handle);
  ASSERT_NE(event, nullptr);
  EXPECT_EQ(streams.query(event), Progress::kPending);
  EXPECT_FALSE(streams.wait(handle, event)) << "the host cannot be made to wait";
  EXPECT_TRUE(streams.synchronize(/*everywhere=*/false));
  EXPECT_EQ(streams.query(event), Progress::kDone);
  streams.recycle(event);
  EXPECT_EQ(cudaStreamDestroy(s), kCudaSuccess);
}

TEST_F(CudaPinned, ACapturingStreamRecordsNoEvent) {
  device::PinnedStreams streams(0);
  void* s = stream();
  const auto handle = streams.handle_of(s, 0);
  ASSERT_EQ(cudaStreamBeginCapture(s, 0), kCudaSuccess);
  EXPECT_TRUE(streams.is_capturing(handle));
  EXPECT_EQ(streams.record(handle), nullptr);
  void* graph = nullptr;
  ASSERT_EQ(cudaStreamEndCapture(s, &graph), kCudaSuccess);
  EXPECT_FALSE(streams.is_capturing(handle));
  EXPECT_EQ(cudaStreamDestroy(s), kCudaSuccess);
}

// One decision of 2 MiB at address 0, in each iteration.
class PinnedPlan : public CudaPinned {
 protected:
  void SetUp() override {
    CudaPinned::SetUp();
    memory_ = std::make_unique<device::PinnedMemory>(0);
    streams_ = std::make_unique<device::PinnedStreams>(0);
    allocator_ = std::make_unique<runtime::PlannedAllocator>(*memory_, *streams_, table_,
                                                             runtime::Fallback::kOwn);
    allocator_->enable(testing::plan_of({{.size = 2 * kMiB, .lower = 0, .upper = 1}}, 2));
    begin();
  }
  void TearDown() override {
    allocator_->disable();
    allocator_.reset();
    streams_.reset();
    memory_.reset();
    CudaPinned::TearDown();
  }

  void begin() { allocator_->loop().enter_phase(trace::PhaseKind::kForward, 0, 0); }
  void next() {
    allocator_->loop().end_iteration();
    begin();
  }
  void* take(Bytes size) { return allocator_->allocate(size, 0, /*for_training=*/true); }
  // As a thread that does not train.
  void* take_elsewhere(Bytes size) {
    void* p = nullptr;
    std::thread([&] { p = allocator_->allocate(size, 0, /*for_training=*/false); }).join();
    return p;
  }

  runtime::StreamTable table_;
  std::unique_ptr<device::PinnedMemory> memory_;
  std::unique_ptr<device::PinnedStreams> streams_;
  std::unique_ptr<runtime::PlannedAllocator> allocator_;
};

TEST_F(PinnedPlan, ABlockThatACopyUsesIsNotHandedBack) {
  standin_set_manual(1);
  void* s = stream();
  const StreamId number = table_.id_of(streams_->handle_of(s, 0));
  void* p = take(2 * kMiB);
  ASSERT_NE(p, nullptr);
  standin_submit(s);
  ASSERT_TRUE(allocator_->record_stream(p, number));
  ASSERT_TRUE(allocator_->deallocate(p));
  next();
  void* other = take(2 * kMiB);
  EXPECT_NE(other, p) << "its copy may be under way";
  EXPECT_EQ(allocator_->figures().statistics().handed_back, 0);
  allocator_->deallocate(other);
  standin_drain_all();
  next();
  void* again = take(2 * kMiB);
  EXPECT_EQ(again, p);
  allocator_->deallocate(again);
  EXPECT_EQ(cudaStreamDestroy(s), kCudaSuccess);
}

TEST_F(PinnedPlan, OtherThreadsLieBesideThePoolInPiecesThatStay) {
  void* first = take_elsewhere(kMiB + 1);
  ASSERT_NE(first, nullptr);
  EXPECT_TRUE(allocator_->deallocate(first));
  const auto calls = standin_calls("cudaHostAlloc");
  for (int i = 0; i < 8; ++i) {
    next();
    void* p = take_elsewhere(kMiB + 1);
    EXPECT_EQ(p, first);
    void* planned = take(2 * kMiB);
    EXPECT_EQ(allocator_->inspect().block_of(p), std::nullopt) << "it is not in the pool";
    allocator_->deallocate(planned);
    allocator_->deallocate(p);
    next();  // an iteration that does not need it
  }
  EXPECT_EQ(standin_calls("cudaHostAlloc"), calls);
  const runtime::Statistics counts = allocator_->figures().statistics();
  EXPECT_LE(counts.fallback_reserved, kMiB + 4096);
}

TEST_F(PinnedPlan, UnusedPiecesGoBeforeMoreIsTaken) {
  for (Bytes size = kMiB; size < 8 * kMiB; size += kMiB / 2) {
    allocator_->deallocate(take_elsewhere(size));
  }
  EXPECT_LE(allocator_->figures().statistics().fallback_reserved, 8 * kMiB);
}

}  // namespace
}  // namespace stalloc
