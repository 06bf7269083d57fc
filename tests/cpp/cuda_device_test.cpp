// Memory, events and stream order of a GPU, on the pretended one.
#include <gtest/gtest.h>

#include <iterator>
#include <map>
#include <thread>
#include <vector>

#include "base/error.h"
#include "cudart.h"
#include "device/cuda_memory.h"
#include "device/cuda_streams.h"
#include "pretended_gpu.h"
#include "runtime/caching_pool.h"
#include "standin.h"

namespace stalloc {
namespace {

constexpr Bytes kMiB = Bytes{1} << 20;
constexpr Bytes kGiB = Bytes{1} << 30;

class CudaDevice : public testing::PretendedGpu {};

TEST_F(CudaDevice, FindsTheRuntimeThatIsLoaded) {
  EXPECT_STREQ(device::CudaRuntime::get().name, "CUDA");
  EXPECT_TRUE(device::CudaRuntime::get().has_virtual_memory());
}

TEST_F(CudaDevice, AllocatesUntilTheMemoryIsGone) {
  device::CudaMemory memory(0);
  EXPECT_EQ(memory.name(), "cuda:0");
  EXPECT_EQ(memory.total(), 80 * kGiB);
  void* a = memory.allocate(60 * kGiB);
  ASSERT_NE(a, nullptr);
  EXPECT_EQ(memory.available(), 20 * kGiB);
  EXPECT_EQ(memory.allocate(60 * kGiB), nullptr);
  memory.release(a, 60 * kGiB);
  EXPECT_EQ(memory.available(), 80 * kGiB);
  EXPECT_EQ(standin_allocations(), 0);
}

TEST_F(CudaDevice, PeaksCountNoRequestThatFailed) {
  device::CudaMemory memory(0);
  void* a = memory.allocate(kGiB);
  EXPECT_EQ(memory.allocate(90 * kGiB), nullptr);
  EXPECT_EQ(memory.allocate_pool(90 * kGiB, /*grows=*/true), nullptr);
  standin_fail("cudaMalloc", 1, kCudaIllegalAddress, 1);
  EXPECT_THROW(memory.allocate(2 * kGiB), Error);
  const device::CudaMemory::Held held = memory.held().all;
  EXPECT_EQ(held.bytes.peak, kGiB);
  EXPECT_EQ(held.bytes.added, kGiB);
  EXPECT_EQ(held.pieces.peak, 1);
  EXPECT_EQ(held.pieces.removed, 0);
  memory.set_limit(3 * kGiB);
  EXPECT_EQ(memory.available(), 2 * kGiB) << "nothing of them is still set aside";
  void* b = memory.allocate(2 * kGiB);
  EXPECT_NE(b, nullptr);
  memory.release(a, kGiB);
  memory.release(b, 2 * kGiB);
}

struct Seen {
  device::CudaMemory::Step step;
  void* begin;
  Bytes size;
  bool operator==(const Seen&) const = default;
};
std::vector<Seen> seen;

TEST_F(CudaDevice, AWatcherLearnsWhatIsHeldBeforeItGoes) {
  using Step = device::CudaMemory::Step;
  seen.clear();
  device::CudaMemory memory(0);
  memory.set_watcher([](Step step, int, void* begin, Bytes size) noexcept {
    if (step == Step::kGoes) {
      EXPECT_GT(standin_used(0), 0U) << "it is still there";
    }
    seen.push_back({step, begin, size});
  });
  void* plain = memory.allocate(kGiB);
  memory.release(plain, kGiB);
  EXPECT_EQ(memory.allocate(90 * kGiB), nullptr);
  EXPECT_EQ(seen, (std::vector<Seen>{{Step::kTaken, plain, kGiB}, {Step::kGoes, plain, kGiB}}));
  seen.clear();
  auto* pool = static_cast<std::byte*>(memory.allocate_pool(kGiB, /*grows=*/true));
  ASSERT_TRUE(memory.grow(pool, kGiB, 2 * kGiB));
  ASSERT_TRUE(memory.grow(pool, 2 * kGiB, 4 * kGiB));
  ASSERT_TRUE(memory.suspend(pool, 4 * kGiB));
  EXPECT_EQ(seen, (std::vector<Seen>{{Step::kTaken, pool, kGiB},
                                     {Step::kPartAdded, pool + kGiB, kGiB},
                                     {Step::kPartAdded, pool + 2 * kGiB, 2 * kGiB},
                                     {Step::kPartGoes, pool + 2 * kGiB, 2 * kGiB},
                                     {Step::kPartGoes, pool + kGiB, kGiB},
                                     {Step::kGoes, pool, kGiB}}));
  seen.clear();
  ASSERT_TRUE(memory.resume(pool, 4 * kGiB));
  memory.release(pool, 4 * kGiB);
  EXPECT_EQ(seen,
            (std::vector<Seen>{{Step::kTaken, pool, 4 * kGiB}, {Step::kGoes, pool, 4 * kGiB}}));
}

TEST_F(CudaDevice, SaysWhyADeviceFails) {
  device::CudaMemory memory(0);
  standin_fail("cudaMalloc", 1, kCudaIllegalAddress, 1);
  try {
    memory.allocate(kGiB);
    FAIL() << "it has to throw";
  } catch (const Error& e) {
    const std::string text = e.what();
    EXPECT_NE(text.find("cuda:0"), std::string::npos) << text;
    EXPECT_NE(text.find("illegal memory access"), std::string::npos) << text;
    EXPECT_NE(text.find("1.0 GiB"), std::string::npos) << text;
  }
}

TEST_F(CudaDevice, EachDeviceHasItsOwnAndTheThreadsDeviceStays) {
  standin_set_devices(2);
  device::CudaMemory memory(1);
  void* a = memory.allocate(kGiB);
  EXPECT_EQ(standin_used(0), 0u);
  EXPECT_EQ(standin_used(1), static_cast<std::uint64_t>(kGiB));
  int current = -1;
  cudaGetDevice(&current);
  EXPECT_EQ(current, 0);
  memory.release(a, kGiB);
}

TEST_F(CudaDevice, WorkOfOneDeviceIsNeverDoneOnAnother) {
  standin_set_devices(2);
  EXPECT_THROW(device::CudaMemory(2), Error);
  device::CudaMemory memory(1);
  device::CudaStreams streams(1);
  standin_fail("cuCtxPushCurrent", 1, kCudaIllegalAddress, 4);
  EXPECT_THROW(memory.allocate(kGiB), Error);
  EXPECT_THROW(memory.available(), Error);
  EXPECT_EQ(streams.record(nullptr), nullptr);
  EXPECT_FALSE(streams.synchronize(/*everywhere=*/false));
  EXPECT_EQ(standin_used(0), 0u);
}

// A context takes hundreds of megabytes, and a thread that frees a tensor may have chosen no
// device.
TEST_F(CudaDevice, NothingIsDoneToDevicesThatAreNotInUse) {
  standin_set_devices(3);
  std::thread([] {
    device::CudaMemory memory(1);
    memory.use_virtual(device::VirtualPools::kAll);
    void* pool = memory.allocate_pool(kGiB, /*grows=*/false);
    EXPECT_TRUE(memory.suspend(pool, kGiB));
    EXPECT_TRUE(memory.resume(pool, kGiB));
    void* piece = memory.allocate(kGiB);
    EXPECT_EQ(memory.available(), 78 * kGiB);
    {
      device::CudaStreams streams(1);
      const device::EventHandle event = streams.record(nullptr);
      EXPECT_EQ(streams.query(event), device::DeviceStreams::Progress::kDone);
      EXPECT_TRUE(streams.wait(nullptr, event));
      streams.recycle(event);
      EXPECT_TRUE(streams.synchronize(/*everywhere=*/true));
    }
    memory.release(piece, kGiB);
    memory.release(pool, kGiB);
    EXPECT_EQ(standin_events(), 0);
    int device = -1;
    cudaGetDevice(&device);
    EXPECT_EQ(device, 0);
  }).join();
  EXPECT_TRUE(standin_has_context(1));
  EXPECT_EQ(standin_contexts(), 1);
}

TEST_F(CudaDevice, OtherDevicesAreWaitedForWhenAsked) {
  standin_set_devices(2);
  standin_set_manual(1);
  device::CudaStreams streams(0);
  ASSERT_EQ(cudaSetDevice(1), kCudaSuccess);
  standin_submit(nullptr);
  EXPECT_TRUE(streams.synchronize(/*everywhere=*/false));
  EXPECT_EQ(standin_pending(nullptr), 1);
  EXPECT_TRUE(streams.synchronize(/*everywhere=*/true));
  EXPECT_EQ(standin_pending(nullptr), 0);
}

TEST_F(CudaDevice, StreamsTellTheirDevice) {
  standin_set_devices(2);
  ASSERT_EQ(cudaSetDevice(1), kCudaSuccess);
  void* s = stream();
  ASSERT_EQ(cudaSetDevice(0), kCudaSuccess);
  EXPECT_EQ(device::device_of_stream(s), 1);
  EXPECT_EQ(device::device_of_stream(nullptr), -1);
  standin_fail("cudaStreamGetDevice", 1, kCudaInvalidHandle, 1);
  EXPECT_EQ(device::device_of_stream(s), -1);
}

TEST_F(CudaDevice, AllocatesWhileAGraphIsCaptured) {
  device::CudaMemory memory(0);
  device::CudaStreams streams(0);
  void* captured = stream();
  void* other = stream();
  const device::EventHandle before = streams.record(other);
  ASSERT_EQ(cudaStreamBeginCapture(captured, 0), kCudaSuccess);
  EXPECT_TRUE(streams.is_capturing(captured));
  EXPECT_FALSE(streams.is_capturing(other));
  void* a = memory.allocate(kMiB);
  EXPECT_NE(a, nullptr);
  EXPECT_EQ(streams.query(before), device::DeviceStreams::Progress::kDone);
  const device::EventHandle during = streams.record(other);
  EXPECT_EQ(streams.query(during), device::DeviceStreams::Progress::kDone);
  void* graph = nullptr;
  EXPECT_EQ(cudaStreamEndCapture(captured, &graph), kCudaSuccess) << "the capture was spoilt";
  memory.release(a, kMiB);
  streams.recycle(before);
  streams.recycle(during);
}

TEST_F(CudaDevice, PoolsGoAndComeBackAtTheirAddresses) {
  device::CudaMemory memory(0);
  ASSERT_TRUE(memory.use_virtual(device::VirtualPools::kAll));
  const Bytes size = 70 * kGiB + 512;
  void* pool = memory.allocate_pool(size, /*grows=*/false);
  ASSERT_NE(pool, nullptr);
  EXPECT_EQ(standin_use(nullptr, pool, static_cast<std::uint64_t>(size), 1), kCudaSuccess);
  EXPECT_GE(standin_used(0), static_cast<std::uint64_t>(size));

  ASSERT_TRUE(memory.suspend(pool, size));
  EXPECT_EQ(standin_used(0), 0u);
  EXPECT_EQ(standin_reservations(), 1) << "the addresses are kept";
  void* meanwhile = memory.allocate(60 * kGiB);
  ASSERT_NE(meanwhile, nullptr);
  EXPECT_FALSE(memory.resume(pool, size)) << "there is no room for it";
  memory.release(meanwhile, 60 * kGiB);
  ASSERT_TRUE(memory.resume(pool, size));
  EXPECT_EQ(standin_use(nullptr, pool, static_cast<std::uint64_t>(size), 2), kCudaSuccess);

  memory.release(pool, size);
  EXPECT_EQ(standin_used(0), 0u);
  EXPECT_EQ(standin_reservations(), 0);
  EXPECT_EQ(standin_mappings(), 0);
}

TEST_F(CudaDevice, PoolsThatKeepTheirAddressesAreOpenToTheDevicesThatReachThem) {
  standin_set_devices(3);
  device::CudaMemory memory(1);
  memory.use_virtual(device::VirtualPools::kAll);
  void* alone = memory.allocate_pool(kGiB, /*grows=*/false);
  EXPECT_EQ(standin_accesses(alone), 1);
  standin_set_peers(1);
  void* open = memory.allocate_pool(kGiB, /*grows=*/false);
  EXPECT_EQ(standin_accesses(open), 3);
  ASSERT_TRUE(memory.suspend(alone, kGiB));
  ASSERT_TRUE(memory.resume(alone, kGiB));
  EXPECT_EQ(standin_accesses(alone), 3);
  memory.release(open, kGiB);
  memory.release(alone, kGiB);
}

TEST_F(CudaDevice, SuspendsNoPoolWhileItIsInUse) {
  standin_set_manual(1);
  device::CudaMemory memory(0);
  memory.use_virtual(device::VirtualPools::kAll);
  void* pool = memory.allocate_pool(kGiB, /*grows=*/false);
  standin_use(stream(), pool, 1, 1);
  EXPECT_TRUE(memory.suspend(pool, kGiB));
  EXPECT_EQ(standin_host_waits(), 1);
  EXPECT_TRUE(memory.resume(pool, kGiB));
  standin_use(stream(), pool, 1, 2);
  memory.release(pool, kGiB);
  EXPECT_EQ(standin_host_waits(), 2);
}

TEST_F(CudaDevice, PoolsGrowInPlace) {
  device::CudaMemory memory(0);
  void* pool = memory.allocate_pool(kGiB + 512, /*grows=*/true);
  ASSERT_NE(pool, nullptr);
  EXPECT_TRUE(memory.can_grow(pool)) << "without being asked for";
  ASSERT_TRUE(memory.grow(pool, kGiB + 512, 3 * kGiB));
  ASSERT_TRUE(memory.grow(pool, 3 * kGiB, 3 * kGiB + 512));
  const Bytes size = 3 * kGiB + 512;
  EXPECT_EQ(standin_use(nullptr, pool, static_cast<std::uint64_t>(size), 1), kCudaSuccess);
  EXPECT_EQ(memory.held().all.bytes.current, size);
  EXPECT_EQ(memory.held().all.pieces.current, 1);
  EXPECT_FALSE(memory.grow(pool, size, Bytes{1} << 50)) << "beyond its addresses";

  ASSERT_TRUE(memory.suspend(pool, size));
  EXPECT_EQ(standin_used(0), 0u);
  EXPECT_FALSE(memory.grow(pool, size, 4 * kGiB)) << "it has no memory now";
  ASSERT_TRUE(memory.resume(pool, size));
  ASSERT_TRUE(memory.grow(pool, size, 4 * kGiB));
  EXPECT_EQ(standin_use(nullptr, pool, static_cast<std::uint64_t>(4 * kGiB), 2), kCudaSuccess);

  memory.release(pool, 4 * kGiB);
  EXPECT_EQ(standin_used(0), 0u);
  EXPECT_EQ(standin_reservations(), 0);
  EXPECT_EQ(standin_mappings(), 0);
  EXPECT_EQ(memory.held().all.bytes.current, 0);
}

TEST_F(CudaDevice, APoolThatCannotGrowStaysAsItIs) {
  device::CudaMemory memory(0);
  void* pool = memory.allocate_pool(kGiB, /*grows=*/true);
  memory.set_limit(2 * kGiB);
  EXPECT_FALSE(memory.grow(pool, kGiB, 3 * kGiB)) << "the limit";
  memory.set_limit(0);
  standin_fail("cuMemCreate", 1, kCudaOutOfMemory, 1);
  EXPECT_FALSE(memory.grow(pool, kGiB, 3 * kGiB));
  const int before = standin_mappings();
  for (const char* call : {"cuMemCreate", "cuMemMap", "cuMemSetAccess"}) {
    standin_fail(call, 1, kCudaInvalidValue, 1);
    EXPECT_THROW(memory.grow(pool, kGiB, 3 * kGiB), Error) << call;
    EXPECT_EQ(standin_mappings(), before) << call;
  }
  EXPECT_EQ(memory.held().all.bytes.current, kGiB);
  EXPECT_TRUE(memory.grow(pool, kGiB, 3 * kGiB));
  memory.release(pool, 3 * kGiB);
  EXPECT_EQ(standin_used(0), 0u);
}

TEST_F(CudaDevice, APoolBeginsWithAPartOfItsMemory) {
  device::CudaMemory memory(0);
  auto* pool = static_cast<std::byte*>(memory.allocate_addresses(100 * kGiB, 4 * kMiB));
  ASSERT_NE(pool, nullptr) << "more addresses than the device has memory";
  EXPECT_EQ(standin_used(0), 4u << 20);
  EXPECT_EQ(memory.held().all.bytes.current, 4 * kMiB);
  ASSERT_TRUE(memory.attach(pool, {kGiB, kGiB + 32 * kMiB}));
  EXPECT_EQ(standin_use(stream(), pool + kGiB, 32 << 20, 1), kCudaSuccess);
  EXPECT_EQ(memory.detach(pool, {kGiB, kGiB + 32 * kMiB}), (Range{kGiB, kGiB + 32 * kMiB}))
      << "its chunks are as large as those of a pool of 100 GiB";
  memory.drop_detached(pool);
  EXPECT_EQ(standin_used(0), 4u << 20);
  memory.release(pool, 100 * kGiB);
  EXPECT_EQ(standin_used(0), 0u);
  EXPECT_EQ(standin_reservations(), 0);

  standin_fail("cuMemCreate", 1, kCudaOutOfMemory, 1);
  EXPECT_EQ(memory.allocate_addresses(kGiB, 4 * kMiB), nullptr);
  standin_fail("cuMemMap", 1, kCudaInvalidValue, 1);
  EXPECT_EQ(memory.allocate_addresses(kGiB, 4 * kMiB), nullptr);
  EXPECT_EQ(standin_used(0), 0u);
  EXPECT_EQ(standin_reservations(), 0);
  EXPECT_EQ(memory.held().all.bytes.current, 0);
  ASSERT_TRUE(memory.use_virtual(device::VirtualPools::kNone));
  EXPECT_EQ(memory.allocate_addresses(kGiB, 4 * kMiB), nullptr) << "plain memory";
}

TEST_F(CudaDevice, AMovablePieceLosesMemoryAndGetsItBack) {
  device::CudaMemory memory(0);
  constexpr Bytes kChunk = 4 * kMiB;
  auto* piece = static_cast<std::byte*>(memory.allocate_movable(100 * kMiB, 100 * kMiB, kChunk));
  ASSERT_NE(piece, nullptr);
  EXPECT_FALSE(memory.can_grow(piece));
  EXPECT_EQ(standin_used(0), 100u << 20);
  EXPECT_EQ(standin_use(stream(), piece, 100 << 20, 1), kCudaSuccess);
  EXPECT_EQ(memory.detach(piece, {18 * kMiB, 41 * kMiB}), (Range{20 * kMiB, 40 * kMiB}))
      << "whole chunks";
  memory.drop_detached(piece);
  EXPECT_EQ(standin_used(0), 80u << 20);
  EXPECT_EQ(memory.held().all.bytes.current, 80 * kMiB);
  ASSERT_TRUE(memory.attach(piece, {20 * kMiB, 30 * kMiB}));
  EXPECT_EQ(standin_use(stream(), piece + 20 * kMiB, 10 << 20, 1), kCudaSuccess);
  EXPECT_EQ(memory.detach(piece, {60 * kMiB, 100 * kMiB}), (Range{60 * kMiB, 100 * kMiB}));
  memory.drop_detached(piece);
  EXPECT_FALSE(memory.attach(piece, {90 * kMiB, 110 * kMiB})) << "behind its end";
  ASSERT_TRUE(memory.attach(piece, {90 * kMiB, 100 * kMiB}));
  EXPECT_EQ(standin_used(0), 60u << 20);
  memory.release(piece, 100 * kMiB);
  EXPECT_EQ(standin_used(0), 0u);
  EXPECT_EQ(standin_reservations(), 0);

  standin_fail("cuMemCreate", 3, kCudaOutOfMemory, 1);
  EXPECT_EQ(memory.allocate_movable(100 * kMiB, 100 * kMiB, kChunk), nullptr);
  standin_fail("cuMemSetAccess", 1, kCudaInvalidValue, 1);
  EXPECT_EQ(memory.allocate_movable(100 * kMiB, 100 * kMiB, kChunk), nullptr);
  EXPECT_EQ(standin_used(0), 0u);
  EXPECT_EQ(standin_reservations(), 0);
  EXPECT_EQ(memory.held().all.bytes.current, 0);
  ASSERT_TRUE(memory.use_virtual(device::VirtualPools::kNone));
  EXPECT_EQ(memory.allocate_movable(100 * kMiB, 100 * kMiB, kChunk), nullptr) << "plain memory";
}

TEST_F(CudaDevice, ASegmentThatGetsTooLittleMemoryKeepsNone) {
  standin_set_memory(0, std::uint64_t{130} << 20);
  device::CudaMemory memory(0);
  {
    runtime::CachingPool pool(memory);
    pool.set_moves(true);
    pool.deallocate(pool.allocate(100 * kMiB, 0));
    void* first = pool.allocate(20 * kMiB, 0);
    void* hole = pool.allocate(60 * kMiB, 0);
    void* last = pool.allocate(20 * kMiB, 0);
    pool.deallocate(hole);
    ASSERT_GE(pool.give_back(50 * kMiB, 0, 0), 50 * kMiB);
    ASSERT_EQ(standin_used(0), static_cast<std::uint64_t>(pool.reserved()));
    void* rest = memory.allocate(45 * kMiB);
    EXPECT_EQ(pool.allocate(60 * kMiB, 0), nullptr) << "some chunks of it were there";
    EXPECT_EQ(standin_used(0), static_cast<std::uint64_t>(pool.reserved() + 45 * kMiB));
    pool.check();
    memory.release(rest, 45 * kMiB);
    EXPECT_EQ(pool.allocate(60 * kMiB, 0), hole);
    for (void* p : {first, hole, last}) pool.deallocate(p);
  }
  EXPECT_EQ(standin_used(0), 0u);
}

// The stand-in complains about work at addresses without memory, and about unmapping under work.
TEST_F(CudaDevice, MemoryMovesWithinAPool) {
  device::CudaMemory memory(0);
  auto* pool = static_cast<std::byte*>(memory.allocate_pool(kGiB, /*grows=*/true));
  void* other = stream();
  EXPECT_EQ(standin_use(other, pool + 100 * kMiB, 300 << 20, 1), kCudaSuccess);
  const Range moved = memory.detach(pool, {100 * kMiB + 512, 400 * kMiB + 512});
  EXPECT_EQ(moved, (Range{102 * kMiB, 400 * kMiB})) << "whole chunks of 2 MiB";
  EXPECT_EQ(memory.held().all.bytes.current, kGiB);
  EXPECT_EQ(standin_use(other, pool, 102 << 20, 2), kCudaSuccess);
  EXPECT_EQ(standin_use(other, pool + 400 * kMiB, 624 << 20, 3), kCudaSuccess);

  const auto used = standin_used(0);
  ASSERT_TRUE(memory.grow(pool, kGiB, kGiB + moved.size()));
  EXPECT_EQ(standin_used(0), used) << "no other memory was taken";
  EXPECT_EQ(memory.held().all.bytes.current, kGiB);
  EXPECT_EQ(standin_use(other, pool + kGiB, 298 << 20, 4), kCudaSuccess);

  const Range back = memory.detach(pool, {kGiB, kGiB + moved.size()});
  EXPECT_EQ(back, (Range{kGiB, kGiB + moved.size()}));
  ASSERT_TRUE(memory.attach(pool, moved));
  memory.drop_detached(pool);
  EXPECT_EQ(standin_used(0), used);
  EXPECT_EQ(standin_use(other, pool, 1 << 30, 5), kCudaSuccess) << "as in the beginning";
  EXPECT_TRUE(memory.grow(pool, kGiB, kGiB + kMiB));

  EXPECT_EQ(memory.detach(pool, {512, kMiB}), Range{}) << "no whole chunk";
  EXPECT_EQ(memory.detach(pool, {0, 4 * kMiB}), (Range{2 * kMiB, 4 * kMiB}))
      << "the first one stays";
  memory.drop_detached(pool);
  EXPECT_EQ(memory.held().all.bytes.current, kGiB - kMiB);
  standin_fail("cuMemCreate", 1, kCudaOutOfMemory, 1);
  EXPECT_FALSE(memory.attach(pool, {2 * kMiB, 4 * kMiB}));
  EXPECT_TRUE(memory.attach(pool, {2 * kMiB, 4 * kMiB}));
  memory.release(pool, kGiB + kMiB);
  EXPECT_EQ(standin_used(0), 0u);
  EXPECT_EQ(standin_mappings(), 0);
  EXPECT_EQ(memory.held().all.bytes.current, 0);
}

// A pool of 1 GiB comes back in a small chunk and 16 large ones. CudaVirtualRange, Note [Large
// chunks].
class CudaLargeChunks : public CudaDevice {
 protected:
  static constexpr Bytes kLarge = 66 * kMiB;  // a sixteenth, in whole chunks
  // Chunks of the pool, with the small one at its begin.
  static constexpr std::int64_t kSmall = 512, kFew = 17, kMany = 58;

  void SetUp() override {
    CudaDevice::SetUp();
    pool_ = static_cast<std::byte*>(memory_.allocate_pool(kGiB, /*grows=*/true));
    for (int i = 0; i < 4; ++i) EXPECT_EQ(come_back(), kSmall) << "it may move";
    EXPECT_EQ(come_back(), kFew) << "it has not";
  }
  void TearDown() override {
    EXPECT_EQ(standin_use(nullptr, pool_, kGiB, 1), kCudaSuccess) << standin_last_complaint();
    memory_.release(pool_, kGiB);
    EXPECT_EQ(standin_used(0), 0u);
    EXPECT_EQ(standin_mappings(), 0);
    EXPECT_EQ(memory_.held().all.bytes.current, 0);
    CudaDevice::TearDown();
  }
  // Returns the chunks that the driver makes.
  std::int64_t come_back() {
    const std::int64_t before = standin_calls("cuMemCreate");
    EXPECT_TRUE(memory_.suspend(pool_, kGiB));
    EXPECT_EQ(standin_used(0), 0u);
    EXPECT_TRUE(memory_.resume(pool_, kGiB));
    EXPECT_EQ(standin_used(0), std::uint64_t{1} << 30);
    return standin_calls("cuMemCreate") - before;
  }

  device::CudaMemory memory_{0};
  std::byte* pool_ = nullptr;
};

TEST_F(CudaLargeChunks, MemoryThatDoesNotMoveComesBackInFew) {
  EXPECT_EQ(come_back(), kFew);
  EXPECT_EQ(memory_.large_chunk_at(pool_, kGiB - 1), 2 * kMiB + 15 * kLarge);
  EXPECT_EQ(memory_.large_chunk_at(pool_, 2 * kMiB), 2 * kMiB) << "it begins there";
  EXPECT_EQ(memory_.large_chunk_at(pool_, kMiB), kMiB) << "the first is small";
  EXPECT_EQ(memory_.large_chunk_at(pool_, 2 * kGiB), 2 * kGiB);
}

TEST_F(CudaLargeChunks, APartThatGoesComesBackInFew) {
  const Range part{2 * kMiB + kLarge, 2 * kMiB + 3 * kLarge};
  EXPECT_EQ(memory_.detach(pool_, part), part);
  memory_.drop_detached(pool_);
  EXPECT_EQ(standin_used(0), static_cast<std::uint64_t>(kGiB - 2 * kLarge));
  EXPECT_EQ(memory_.held().all.bytes.current, kGiB - 2 * kLarge);
  const std::int64_t before = standin_calls("cuMemCreate");
  EXPECT_TRUE(memory_.attach_again(pool_, part));
  EXPECT_EQ(standin_calls("cuMemCreate") - before, 2);
  EXPECT_EQ(come_back(), kFew);
}

TEST_F(CudaLargeChunks, OneThatIsHeldInPartStaysAndIsTheLast) {
  const Range idle{10 * kMiB, 2 * kMiB + 2 * kLarge};  // a block lies in the first of them
  EXPECT_EQ(memory_.detach(pool_, idle), (Range{2 * kMiB + kLarge, idle.end}));
  EXPECT_EQ(standin_use(nullptr, pool_, 2 * kMiB + kLarge, 2), kCudaSuccess);
  memory_.drop_detached(pool_);
  EXPECT_TRUE(memory_.attach_again(pool_, {2 * kMiB + kLarge, idle.end}));
  for (int i = 0; i < 5; ++i) EXPECT_EQ(come_back(), kSmall);
  EXPECT_EQ(memory_.detach(pool_, {10 * kMiB, 20 * kMiB}), (Range{10 * kMiB, 20 * kMiB}));
  EXPECT_TRUE(memory_.attach(pool_, {10 * kMiB, 20 * kMiB}));
}

TEST_F(CudaLargeChunks, OneThatIsInTheWayTimeAndAgainLeavesForLonger) {
  EXPECT_EQ(memory_.detach(pool_, {11 * kMiB, 13 * kMiB}), Range{});
  EXPECT_EQ(come_back(), kFew) << "less than a small one was in the way";
  for (const int turns : {1, 2, 4, 8}) {
    EXPECT_EQ(memory_.detach(pool_, {10 * kMiB, 20 * kMiB}), Range{}) << "its memory cannot move";
    EXPECT_EQ(memory_.detach(pool_, {10 * kMiB, 30 * kMiB}), Range{});
    for (int i = 0; i < turns; ++i) EXPECT_EQ(come_back(), kSmall) << i << " of " << turns;
    EXPECT_EQ(come_back(), kMany);
  }
}

TEST_F(CudaLargeChunks, MemoryMovesInSmallOnes) {
  const Range large{2 * kMiB + kLarge, 2 * kMiB + 2 * kLarge};
  EXPECT_EQ(memory_.detach(pool_, large), large);
  EXPECT_EQ(memory_.held().all.bytes.current, kGiB) << "it is meant for attach()";
  ASSERT_TRUE(memory_.attach(pool_, {large.begin, large.begin + 10 * kMiB}));
  EXPECT_EQ(memory_.detach(pool_, {large.begin, large.begin + 2 * kMiB}).size(), 2 * kMiB);
  ASSERT_TRUE(memory_.attach(pool_, {large.begin, large.begin + 2 * kMiB}));
  EXPECT_EQ(memory_.held().all.bytes.current, kGiB);
  ASSERT_TRUE(memory_.attach(pool_, {large.begin + 10 * kMiB, large.end}));
  memory_.drop_detached(pool_);
  EXPECT_EQ(come_back(), kSmall) << "it may move again";
  for (int i = 0; i < 14; ++i) EXPECT_EQ(come_back(), kMany) << "it has not";
  EXPECT_EQ(come_back(), kFew) << "it has been quiet for long";
}

TEST_F(CudaLargeChunks, ADeviceWithoutMemoryGetsAllBack) {
  EXPECT_TRUE(memory_.suspend(pool_, kGiB));
  for (const auto& [call, nth] :
       {std::pair{"cuMemCreate", 9}, {"cuMemMap", 5}, {"cuMemSetAccess", 1}}) {
    standin_fail(call, nth, kCudaOutOfMemory, 1);
    EXPECT_FALSE(memory_.resume(pool_, kGiB)) << call;
    EXPECT_EQ(standin_used(0), 0u) << call;
  }
  EXPECT_TRUE(memory_.resume(pool_, kGiB));
}

TEST_F(CudaLargeChunks, ADriverThatFailsGetsAllBack) {
  EXPECT_TRUE(memory_.suspend(pool_, kGiB));
  for (const char* call : {"cuMemCreate", "cuMemMap", "cuMemSetAccess"}) {
    standin_fail(call, 1, kCudaIllegalAddress, 1);
    EXPECT_THROW(memory_.resume(pool_, kGiB), Error) << call;
    EXPECT_EQ(standin_used(0), 0u) << call;
  }
  EXPECT_TRUE(memory_.resume(pool_, kGiB));
}

TEST_F(CudaLargeChunks, ThoseThatAreSharedHaveOneSize) {
  EXPECT_FALSE(memory_.share(pool_ + 2 * kGiB, kMiB)) << "something else lies there";
  EXPECT_EQ(come_back(), kFew);
  memory_.share(pool_ + 4 * kMiB, kMiB);
  EXPECT_EQ(come_back(), kSmall);
  EXPECT_EQ(come_back(), kFew) << "that was all";
  for (const int turns : {1, 2, 4}) {
    memory_.share(pool_ + 4 * kMiB, kMiB);
    for (int i = 0; i < turns; ++i) EXPECT_EQ(come_back(), kSmall);
    EXPECT_EQ(come_back(), kFew);
  }
  memory_.share(pool_ + 4 * kMiB, kMiB);
  EXPECT_EQ(come_back(), kSmall);
  const auto shared = memory_.share(pool_, kGiB / 4);
  ASSERT_TRUE(shared);
  EXPECT_EQ(shared->chunk, 2 * kMiB);
}

// The last unit of a pool whose size is no multiple of it moves, and the pool grows without it.
TEST_F(CudaDevice, AnUnevenEndMovesAndGrows) {
  device::CudaMemory memory(0);
  auto* pool = static_cast<std::byte*>(memory.allocate_pool(9 * kMiB + 512, /*grows=*/true));
  const Range moved = memory.detach(pool, {4 * kMiB, 9 * kMiB + 512});
  EXPECT_EQ(moved, (Range{4 * kMiB, 9 * kMiB + 512}));
  ASSERT_TRUE(memory.grow(pool, 9 * kMiB + 512, 15 * kMiB));
  EXPECT_EQ(standin_use(nullptr, pool + 9 * kMiB + 512, (6 << 20) - 512, 1), kCudaSuccess);
  ASSERT_TRUE(memory.attach(pool, moved));
  EXPECT_EQ(standin_use(nullptr, pool, 15 << 20, 2), kCudaSuccess) << "all of it";
  memory.drop_detached(pool);
  memory.release(pool, 15 * kMiB);
  EXPECT_EQ(standin_used(0), 0u);
}

TEST_F(CudaDevice, AWatcherFollowsMemoryThatMoves) {
  static std::map<std::byte*, Bytes> known;
  known.clear();
  device::CudaMemory memory(0);
  memory.set_watcher([](device::CudaMemory::Step step, int, void* p, Bytes size) noexcept {
    using Step = device::CudaMemory::Step;
    auto* begin = static_cast<std::byte*>(p);
    if (step == Step::kTaken || step == Step::kPartAdded) {
      known[begin] = size;
      return;
    }
    // The part that goes lies in one that is known.
    const auto at = std::prev(known.upper_bound(begin));
    const auto [whole, length] = *at;
    known.erase(at);
    if (whole < begin) known[whole] = begin - whole;
    if (begin + size < whole + length) known[begin + size] = whole + length - (begin + size);
  });
  auto* pool = static_cast<std::byte*>(memory.allocate_pool(100 * kMiB, /*grows=*/true));
  memory.detach(pool, {20 * kMiB, 40 * kMiB});
  EXPECT_EQ(known, (std::map<std::byte*, Bytes>{{pool, 20 * kMiB}, {pool + 40 * kMiB, 60 * kMiB}}));
  ASSERT_TRUE(memory.grow(pool, 100 * kMiB, 120 * kMiB));
  EXPECT_EQ(known.at(pool + 100 * kMiB), 20 * kMiB);
  memory.detach(pool, {90 * kMiB, 120 * kMiB});
  ASSERT_TRUE(memory.attach(pool, {20 * kMiB, 40 * kMiB}));
  memory.drop_detached(pool);
  Bytes sum = 0;
  for (const auto& [p, size] : known) sum += size;
  EXPECT_EQ(sum, 90 * kMiB);
  EXPECT_EQ(memory.held().all.bytes.current, 90 * kMiB);
  memory.release(pool, 90 * kMiB);
  EXPECT_TRUE(known.empty());
}

TEST_F(CudaDevice, PoolsArePlainWhereThereIsNoVirtualMemory) {
  device::CudaMemory memory(0);
  standin_fail("cuMemAddressReserve", 1, kCudaInvalidValue, 1);
  void* refused = memory.allocate_pool(kGiB, /*grows=*/true);
  ASSERT_NE(refused, nullptr);
  EXPECT_FALSE(memory.can_grow(refused));
  EXPECT_FALSE(memory.grow(refused, kGiB, 2 * kGiB));
  EXPECT_EQ(memory.held().all.bytes.current, kGiB);
  memory.use_virtual(device::VirtualPools::kNone);
  void* unwanted = memory.allocate_pool(kGiB, /*grows=*/true);
  EXPECT_FALSE(memory.can_grow(unwanted));
  EXPECT_EQ(standin_reservations(), 0);
  memory.release(refused, kGiB);
  memory.release(unwanted, kGiB);
  EXPECT_EQ(standin_used(0), 0u);
}

TEST_F(CudaDevice, PlainPiecesAreNotSuspended) {
  device::CudaMemory memory(0);
  void* pool = memory.allocate_pool(kGiB, /*grows=*/false);
  EXPECT_FALSE(memory.suspend(pool, kGiB));
  EXPECT_EQ(standin_used(0), static_cast<std::uint64_t>(kGiB));
  memory.release(pool, kGiB);
}

TEST_F(CudaDevice, ChunksAreSharedUnlessTheirFilesAreTooMany) {
  device::CudaMemory memory(0);
  auto* pool = static_cast<std::byte*>(memory.allocate_pool(kGiB, /*grows=*/true));
  const auto shared = memory.share(pool + 3 * kMiB, 2 * kMiB);
  ASSERT_TRUE(shared);
  EXPECT_EQ(shared->begin, reinterpret_cast<std::uintptr_t>(pool + 2 * kMiB));
  EXPECT_EQ(shared->chunk, 2 * kMiB);
  EXPECT_EQ(shared->files.size(), 2u);
  EXPECT_EQ(memory.share(pool + 4 * kMiB, 2 * kMiB)->files[0], shared->files[1]);
  EXPECT_FALSE(memory.share(pool, 1000 * kMiB)) << "500 files";
  EXPECT_TRUE(memory.share(pool + 2 * kMiB, 2 * kMiB)) << "has its file already";
  EXPECT_FALSE(memory.share(pool + kGiB, kMiB)) << "no memory there";
  EXPECT_FALSE(memory.share(pool - kGiB, kMiB)) << "in no pool";
  memory.release(pool, kGiB);
  EXPECT_EQ(standin_used(0), 0u);
}

TEST_F(CudaDevice, ChunksOfSeveralSizesAreNotSharedTogether) {
  device::CudaMemory memory(0);
  constexpr Bytes kSize = 20 * kGiB + 2 * kMiB;  // its chunks have 6 MiB, the last one less
  auto* pool = static_cast<std::byte*>(memory.allocate_pool(kSize, /*grows=*/true));
  const auto first = memory.share(pool, kMiB);
  ASSERT_TRUE(first);
  ASSERT_NE(kSize % first->chunk, 0);
  const Bytes last = kSize / first->chunk * first->chunk;
  EXPECT_TRUE(memory.share(pool + last, kMiB));
  EXPECT_FALSE(memory.share(pool + last - kMiB, 2 * kMiB));
  memory.release(pool, kSize);
}

// If any of the calls fails, in any way, nothing stays behind.
TEST_F(CudaDevice, FailuresOnTheWayToAPoolLeaveNothingBehind) {
  device::CudaMemory memory(0);
  memory.use_virtual(device::VirtualPools::kAll);
  for (const char* call : {"cuMemGetAllocationGranularity", "cuMemAddressReserve", "cuMemCreate",
                           "cuMemMap", "cuMemSetAccess"}) {
    standin_fail(call, 1, kCudaInvalidValue, 1);
    EXPECT_THROW(memory.allocate_pool(kGiB, /*grows=*/false), Error) << call;
    EXPECT_EQ(standin_used(0), 0u) << call;
    EXPECT_EQ(standin_reservations(), 0) << call;
    EXPECT_EQ(standin_mappings(), 0) << call;
  }
  standin_fail("cuMemCreate", 1, kCudaOutOfMemory, 1);
  EXPECT_EQ(memory.allocate_pool(kGiB, /*grows=*/false), nullptr);
  EXPECT_EQ(standin_reservations(), 0);
  void* pool = memory.allocate_pool(kGiB, /*grows=*/false);
  EXPECT_NE(pool, nullptr);
  memory.release(pool, kGiB);
}

TEST_F(CudaDevice, EventsCompleteWithTheWorkBeforeThem) {
  standin_set_manual(1);
  device::CudaStreams streams(0);
  void* s = stream();
  standin_submit(s);
  const device::EventHandle event = streams.record(s);
  EXPECT_EQ(streams.query(event), device::DeviceStreams::Progress::kPending);
  EXPECT_EQ(cudaGetLastError(), kCudaSuccess) << "not ready is no error";
  standin_advance(s, 2);
  EXPECT_EQ(streams.query(event), device::DeviceStreams::Progress::kDone);
  streams.recycle(event);
  EXPECT_EQ(standin_host_waits(), 0);
}

TEST_F(CudaDevice, EventsAreMadeOnceAndUsedAgain) {
  device::CudaStreams streams(0);
  void* s = stream();
  for (int i = 0; i < 100; ++i) {
    const device::EventHandle a = streams.record(s);
    const device::EventHandle b = streams.record(s);
    EXPECT_NE(a, b);
    streams.recycle(a);
    streams.recycle(b);
  }
  EXPECT_EQ(standin_calls("cudaEventCreate"), 2);
}

TEST_F(CudaDevice, EventsGoWithTheirOwner) {
  {
    device::CudaStreams streams(0);
    streams.recycle(streams.record(nullptr));
    EXPECT_EQ(standin_events(), 1);
  }
  EXPECT_EQ(standin_events(), 0);
}

TEST_F(CudaDevice, AWaitOrdersStreams) {
  device::CudaMemory memory(0);
  device::CudaStreams streams(0);
  void* a = stream();
  void* b = stream();
  void* p = memory.allocate(kMiB);
  standin_use(a, p, kMiB, 1);
  const device::EventHandle event = streams.record(a);
  EXPECT_TRUE(streams.wait(b, event));
  streams.recycle(event);
  standin_use(b, p, kMiB, 2);
  memory.release(p, kMiB);
}

TEST_F(CudaDevice, TheDefaultStreamIsTheDevicesOwn) {
  standin_set_devices(2);
  standin_set_manual(1);
  device::CudaStreams streams(1);
  standin_submit(nullptr);  // of device 0
  const device::EventHandle event = streams.record(nullptr);
  EXPECT_EQ(standin_pending(nullptr), 1) << "nothing was recorded on device 0";
  ASSERT_EQ(cudaSetDevice(1), kCudaSuccess);
  EXPECT_EQ(standin_pending(nullptr), 1);
  standin_drain(nullptr);
  EXPECT_EQ(streams.query(event), device::DeviceStreams::Progress::kDone);
  streams.recycle(event);
}

TEST_F(CudaDevice, FailuresOfEventsAreToldApart) {
  device::CudaStreams streams(0);
  void* s = stream();
  standin_fail("cudaEventCreate", 1, kCudaOutOfMemory, 1);
  EXPECT_EQ(streams.record(s), nullptr);
  standin_fail("cudaEventRecord", 1, kCudaInvalidHandle, 1);
  EXPECT_EQ(streams.record(s), nullptr);
  const device::EventHandle event = streams.record(s);
  standin_fail("cudaEventQuery", 1, kCudaIllegalAddress, 1);
  EXPECT_EQ(streams.query(event), device::DeviceStreams::Progress::kFailed);
  standin_fail("cudaStreamWaitEvent", 1, kCudaInvalidHandle, 1);
  EXPECT_FALSE(streams.wait(s, event));
  standin_fail("cudaDeviceSynchronize", 1, kCudaIllegalAddress, 1);
  EXPECT_FALSE(streams.synchronize(/*everywhere=*/false));
  standin_fail("cudaStreamIsCapturing", 1, kCudaIllegalAddress, 1);
  EXPECT_FALSE(streams.is_capturing(s));
  streams.recycle(event);
}

TEST_F(CudaDevice, ManyThreadsShareTheEvents) {
  device::CudaStreams streams(0);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      void* s = stream();
      for (int i = 0; i < 500; ++i) {
        const device::EventHandle event = streams.record(s);
        while (streams.query(event) == device::DeviceStreams::Progress::kPending) {
        }
        streams.recycle(event);
      }
    });
  }
  for (std::thread& t : threads) t.join();
  EXPECT_LE(standin_events(), 4);
}

}  // namespace
}  // namespace stalloc
