// The same core library serves HIP. This program contains no CUDA and does not link the runtime, as
// in a process that imports torch later.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "device/cuda_memory.h"
#include "device/cuda_streams.h"

namespace stalloc {
namespace {

constexpr Bytes kGiB = Bytes{1} << 30;

TEST(HipDevice, IsFoundOnceItIsLoaded) {
  EXPECT_EQ(device::CudaRuntime::find(), nullptr);
  EXPECT_THROW(device::CudaMemory(0), Error);
  ASSERT_NE(dlopen(STANDIN_HIP, RTLD_NOW | RTLD_LOCAL), nullptr) << dlerror();
  ASSERT_NE(device::CudaRuntime::find(), nullptr);
  EXPECT_STREQ(device::CudaRuntime::get().name, "HIP");

  device::CudaMemory memory(0);
  void* piece = memory.allocate(kGiB);
  EXPECT_EQ(memory.available(), 79 * kGiB);
  memory.release(piece, kGiB);
  ASSERT_TRUE(memory.use_virtual(device::VirtualPools::kAll));
  void* pool = memory.allocate_pool(70 * kGiB, /*grows=*/false);
  EXPECT_TRUE(memory.suspend(pool, 70 * kGiB));
  EXPECT_EQ(memory.available(), 80 * kGiB);
  EXPECT_TRUE(memory.resume(pool, 70 * kGiB));
  EXPECT_EQ(memory.available(), 10 * kGiB);
  memory.release(pool, 70 * kGiB);

  device::CudaStreams streams(0);
  const device::EventHandle event = streams.record(nullptr);
  EXPECT_EQ(streams.query(event), device::DeviceStreams::Progress::kDone);
  streams.recycle(event);
}

}  // namespace
}  // namespace stalloc
