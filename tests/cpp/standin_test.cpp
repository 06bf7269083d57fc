// The pretended GPU detects the errors that it is meant to detect.
#include "standin.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>
#include <thread>

#include "cudart.h"

namespace {

constexpr std::uint64_t kGiB = std::uint64_t{1} << 30;
constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;

class Standin : public testing::Test {
 protected:
  void SetUp() override { standin_reset(); }
  void TearDown() override { standin_reset(); }

  static void* stream() {
    void* s = nullptr;
    EXPECT_EQ(cudaStreamCreateWithFlags(&s, kCudaNonBlocking), kCudaSuccess);
    return s;
  }
  static void* event() {
    void* e = nullptr;
    EXPECT_EQ(cudaEventCreateWithFlags(&e, kCudaNoTiming), kCudaSuccess);
    return e;
  }
  static void* memory(std::size_t size) {
    void* p = nullptr;
    EXPECT_EQ(cudaMalloc(&p, size), kCudaSuccess);
    return p;
  }
  using Address = std::uintptr_t;
  template <typename Function>
  static Function* driver(const char* name) {
    void* f = nullptr;
    EXPECT_EQ(cudaGetDriverEntryPointByVersion(name, &f, 13000, 0, nullptr), kCudaSuccess);
    return reinterpret_cast<Function*>(f);
  }
  // The driver's virtual memory.
  static int reserve(Address* at, std::size_t size) {
    auto* f = driver<int(Address*, std::size_t, std::size_t, Address, unsigned long long)>(
        "cuMemAddressReserve");
    return f(at, size, 0, 0, 0);
  }
  static int unreserve(Address at, std::size_t size) {
    return driver<int(Address, std::size_t)>("cuMemAddressFree")(at, size);
  }
  static int create(std::uint64_t* handle, std::size_t size, const void* properties) {
    auto* f =
        driver<int(std::uint64_t*, std::size_t, const void*, unsigned long long)>("cuMemCreate");
    return f(handle, size, properties, 0);
  }
  static int release(std::uint64_t handle) {
    return driver<int(std::uint64_t)>("cuMemRelease")(handle);
  }
  static int map(Address at, std::size_t size, std::uint64_t handle) {
    auto* f = driver<int(Address, std::size_t, std::size_t, std::uint64_t, unsigned long long)>(
        "cuMemMap");
    return f(at, size, 0, handle, 0);
  }
  static int unmap(Address at, std::size_t size) {
    return driver<int(Address, std::size_t)>("cuMemUnmap")(at, size);
  }
  static int access(Address at, std::size_t size, const void* allowed) {
    auto* f = driver<int(Address, std::size_t, const void*, std::size_t)>("cuMemSetAccess");
    return f(at, size, allowed, 1);
  }
};

TEST_F(Standin, HasAsMuchMemoryAsItIsTold) {
  standin_set_memory(0, kGiB);
  void* a = memory(kGiB - 512);
  void* b = memory(1);
  void* c = nullptr;
  EXPECT_EQ(cudaMalloc(&c, 1), kCudaOutOfMemory);
  EXPECT_EQ(c, nullptr);
  EXPECT_EQ(cudaGetLastError(), kCudaOutOfMemory);
  EXPECT_EQ(cudaGetLastError(), kCudaSuccess);
  EXPECT_EQ(cudaFree(a), kCudaSuccess);
  std::size_t free = 0, total = 0;
  cudaMemGetInfo(&free, &total);
  EXPECT_EQ(free, kGiB - 512);
  EXPECT_EQ(total, kGiB);
  EXPECT_EQ(cudaFree(b), kCudaSuccess);
  EXPECT_EQ(standin_used(0), 0u);
  EXPECT_EQ(standin_misuses(), 0);
}

TEST_F(Standin, DevicesHaveMemoryOfTheirOwn) {
  standin_set_devices(2);
  standin_set_memory(1, kMiB);
  memory(2 * kMiB);
  ASSERT_EQ(cudaSetDevice(1), kCudaSuccess);
  void* p = nullptr;
  EXPECT_EQ(cudaMalloc(&p, 2 * kMiB), kCudaOutOfMemory);
  memory(kMiB);
  EXPECT_EQ(standin_used(0), 2 * kMiB);
  EXPECT_EQ(standin_used(1), kMiB);
  EXPECT_NE(cudaSetDevice(2), kCudaSuccess);
}

TEST_F(Standin, ReportsADoubleFree) {
  void* p = memory(100);
  EXPECT_EQ(cudaFree(p), kCudaSuccess);
  EXPECT_EQ(cudaFree(p), kCudaInvalidValue);
  EXPECT_EQ(standin_misuses(), 1);
  EXPECT_NE(std::string(standin_last_complaint()).find("cudaFree"), std::string::npos);
}

TEST_F(Standin, WorkOfManualStreamsCompletesWhenTold) {
  standin_set_manual(1);
  void* s = stream();
  void* e = event();
  standin_submit(s);
  cudaEventRecord(e, s);
  EXPECT_EQ(standin_pending(s), 2);
  EXPECT_EQ(cudaEventQuery(e), kCudaNotReady);
  EXPECT_EQ(standin_advance(s, 1), 1);
  EXPECT_EQ(cudaEventQuery(e), kCudaNotReady);
  EXPECT_EQ(standin_advance(s, 5), 1);
  EXPECT_EQ(cudaEventQuery(e), kCudaSuccess);
  EXPECT_EQ(standin_host_waits(), 0);
}

TEST_F(Standin, WaitingHostsAreCounted) {
  standin_set_manual(1);
  void* s = stream();
  void* e = event();
  standin_submit(s);
  cudaEventRecord(e, s);
  EXPECT_EQ(cudaEventSynchronize(e), kCudaSuccess);
  EXPECT_EQ(cudaStreamQuery(s), kCudaSuccess);
  EXPECT_EQ(cudaEventSynchronize(e), kCudaSuccess);
  EXPECT_EQ(standin_host_waits(), 1);
}

TEST_F(Standin, AStreamWaitsForAnothersEvent) {
  standin_set_manual(1);
  void* a = stream();
  void* b = stream();
  void* e = event();
  standin_submit(a);
  cudaEventRecord(e, a);
  cudaStreamWaitEvent(b, e, 0);
  standin_submit(b);
  EXPECT_EQ(standin_advance(b, 9), 0) << "what it waits for is not complete";
  standin_advance(a, 9);
  EXPECT_EQ(standin_advance(b, 9), 2);
  standin_submit(a);
  cudaEventRecord(e, a);
  cudaStreamWaitEvent(b, e, 0);
  standin_drain(b);
  EXPECT_EQ(standin_pending(a), 0) << "draining a stream completes what it waits for";
}

TEST_F(Standin, FindsReuseThatNothingOrdersEvenWhenAllIsComplete) {
  void* a = stream();
  void* b = stream();
  auto* p = static_cast<std::byte*>(memory(4096));
  standin_use(a, p, 4096, 1);
  standin_use(b, p + 512, 512, 2);
  EXPECT_EQ(standin_hazards(), 1) << "no event, although stream a is long idle";
  standin_use(b, p + 512, 512, 3);
  EXPECT_EQ(standin_hazards(), 1) << "its own stream's order";
  standin_use(b, p + 1024, 512, 4);
  EXPECT_EQ(standin_hazards(), 2) << "the rest is still the first owner's";
}

TEST_F(Standin, EventsOrderReuse) {
  void* a = stream();
  void* b = stream();
  void* c = stream();
  void* e = event();
  void* p = memory(4096);
  standin_use(a, p, 4096, 1);
  cudaEventRecord(e, a);
  cudaStreamWaitEvent(b, e, 0);
  standin_use(b, p, 4096, 2);
  cudaEventRecord(e, b);
  cudaStreamWaitEvent(c, e, 0);
  standin_use(c, p, 4096, 3);
  EXPECT_EQ(standin_hazards(), 0) << standin_last_complaint();
  standin_use(a, p, 4096, 4);
  EXPECT_EQ(standin_hazards(), 1) << "order has a direction";
}

TEST_F(Standin, AnEventRecordedTooEarlyOrdersNothing) {
  void* a = stream();
  void* b = stream();
  void* e = event();
  void* p = memory(4096);
  cudaEventRecord(e, a);
  standin_use(a, p, 4096, 1);
  cudaStreamWaitEvent(b, e, 0);
  standin_use(b, p, 4096, 2);
  EXPECT_EQ(standin_hazards(), 1);
}

TEST_F(Standin, TheHostOrdersReuseWhenItKnowsThatWorkIsComplete) {
  void* a = stream();
  void* b = stream();
  void* e = event();
  void* p = memory(4096);
  standin_use(a, p, 4096, 1);
  cudaEventRecord(e, a);
  EXPECT_EQ(cudaEventQuery(e), kCudaSuccess);
  standin_use(b, p, 4096, 2);
  cudaStreamSynchronize(b);
  standin_use(a, p, 4096, 3);
  EXPECT_EQ(standin_hazards(), 0) << standin_last_complaint();
}

TEST_F(Standin, MemoryThatWasFreedAndComesAnewIsNobodys) {
  void* a = stream();
  void* b = stream();
  void* p = memory(4096);
  standin_use(a, p, 4096, 1);
  cudaFree(p);
  void* q = memory(4096);
  ASSERT_EQ(p, q);
  standin_use(b, q, 4096, 2);
  EXPECT_EQ(standin_hazards(), 0);
}

TEST_F(Standin, BlockingStreamsAreOrderedWithTheDefaultOne) {
  void* blocking = nullptr;
  cudaStreamCreate(&blocking);
  void* p = memory(4096);
  standin_use(nullptr, p, 4096, 1);
  standin_use(blocking, p, 4096, 2);
  standin_use(nullptr, p, 4096, 3);
  EXPECT_EQ(standin_hazards(), 0) << standin_last_complaint();
  standin_use(stream(), p, 4096, 4);
  EXPECT_EQ(standin_hazards(), 1);
}

TEST_F(Standin, ReportsUseOfUnallocatedMemory) {
  void* s = stream();
  auto* p = static_cast<std::byte*>(memory(4096));
  EXPECT_EQ(standin_use(s, p, 4097, 1), kCudaIllegalAddress);
  cudaFree(p);
  EXPECT_EQ(standin_use(s, p, 1, 1), kCudaIllegalAddress);
  EXPECT_EQ(standin_misuses(), 2);
}

TEST_F(Standin, FreesInStreamOrder) {
  standin_set_manual(1);
  void* s = stream();
  void* p = nullptr;
  cudaMallocAsync(&p, kMiB, s);
  cudaFreeAsync(p, s);
  EXPECT_EQ(standin_used(0), kMiB);
  standin_drain(s);
  EXPECT_EQ(standin_used(0), 0u);
  EXPECT_EQ(standin_misuses(), 0);
}

TEST_F(Standin, NoticesDestroyedStreams) {
  void* s = stream();
  EXPECT_EQ(cudaStreamDestroy(s), kCudaSuccess);
  void* e = event();
  EXPECT_EQ(cudaEventRecord(e, s), kCudaInvalidHandle);
  EXPECT_EQ(cudaStreamDestroy(s), kCudaInvalidHandle);
  EXPECT_EQ(standin_misuses(), 2);
  standin_recycle_handles(1);
  void* t = stream();
  EXPECT_EQ(t, s) << "as a real device may do it";
  EXPECT_EQ(cudaEventRecord(e, t), kCudaSuccess);
  EXPECT_EQ(standin_streams(), 1);
}

TEST_F(Standin, CallsFailOnDemand) {
  standin_fail("cudaMalloc", 2, kCudaOutOfMemory, 2);
  void* p = nullptr;
  EXPECT_EQ(cudaMalloc(&p, 1), kCudaSuccess);
  EXPECT_EQ(cudaMalloc(&p, 1), kCudaOutOfMemory);
  EXPECT_EQ(cudaMalloc(&p, 1), kCudaOutOfMemory);
  EXPECT_EQ(cudaMalloc(&p, 1), kCudaSuccess);
  EXPECT_EQ(standin_calls("cudaMalloc"), 4);
  standin_lose_device(kCudaIllegalAddress);
  EXPECT_EQ(cudaMalloc(&p, 1), kCudaIllegalAddress);
  int status = 0;
  EXPECT_EQ(cudaStreamIsCapturing(nullptr, &status), kCudaIllegalAddress);
}

TEST_F(Standin, CaptureForbidsTheSameCallsAsCuda) {
  void* s = stream();
  void* e = event();
  void* p = memory(4096);
  ASSERT_EQ(cudaStreamBeginCapture(s, 0), kCudaSuccess);
  int status = 0;
  cudaStreamIsCapturing(s, &status);
  EXPECT_EQ(status, 1);
  EXPECT_EQ(cudaEventQuery(e), kCudaCaptureUnsupported);
  EXPECT_EQ(standin_misuses(), 1);
  void* graph = nullptr;
  EXPECT_EQ(cudaStreamEndCapture(s, &graph), kCudaCaptureInvalidated);

  ASSERT_EQ(cudaStreamBeginCapture(s, 0), kCudaSuccess);
  int relaxed = 2;
  cudaThreadExchangeStreamCaptureMode(&relaxed);
  EXPECT_EQ(cudaEventQuery(e), kCudaSuccess);
  cudaThreadExchangeStreamCaptureMode(&relaxed);
  standin_use(s, p, 4096, 1);
  EXPECT_EQ(standin_pending(s), 0) << "captured, not run";
  ASSERT_EQ(cudaStreamEndCapture(s, &graph), kCudaSuccess);
  void* exec = nullptr;
  ASSERT_EQ(cudaGraphInstantiateWithFlags(&exec, graph, 0), kCudaSuccess);
  EXPECT_EQ(cudaGraphLaunch(exec, s), kCudaSuccess);
  standin_use(stream(), p, 4096, 2);
  EXPECT_EQ(standin_hazards(), 1) << "a replay uses what was captured";
}

TEST_F(Standin, MapsAndUnmapsAtTheSameAddresses) {
  constexpr int properties[8] = {1, 0, 1, 0};
  constexpr int forbidden[3] = {1, 0, 1}, allowed[3] = {1, 0, 3};

  const std::size_t size = 64 * kGiB;
  Address at = 0;
  ASSERT_EQ(reserve(&at, size), kCudaSuccess);
  EXPECT_EQ(standin_used(0), 0u);
  void* s = stream();
  for (int iteration = 0; iteration < 2; ++iteration) {
    std::uint64_t handle = 0;
    ASSERT_EQ(create(&handle, size, properties), kCudaSuccess);
    EXPECT_EQ(standin_used(0), size);
    ASSERT_EQ(map(at, size, handle), kCudaSuccess);
    EXPECT_EQ(standin_use(s, reinterpret_cast<void*>(at), size, 1), kCudaIllegalAddress)
        << "no access yet";
    EXPECT_EQ(access(at, size, forbidden), kCudaInvalidValue) << "to read alone";
    ASSERT_EQ(access(at, size, allowed), kCudaSuccess);
    EXPECT_EQ(standin_use(s, reinterpret_cast<void*>(at), size, 1), kCudaSuccess);
    ASSERT_EQ(release(handle), kCudaSuccess);
    EXPECT_EQ(standin_used(0), size) << "the mapping holds the memory";
    EXPECT_EQ(unreserve(at, size), kCudaInvalidValue) << "still mapped";
    cudaDeviceSynchronize();
    ASSERT_EQ(unmap(at, size), kCudaSuccess);
    EXPECT_EQ(standin_used(0), 0u);
  }
  EXPECT_EQ(standin_misuses(), 4);
  standin_reset();
}

TEST_F(Standin, KeepsTheDriversErrorsApartFromTheRuntimes) {
  standin_set_memory(0, kMiB);
  int properties[8] = {1, 0, 1, 0};
  cudaFree(nullptr);
  std::uint64_t handle = 0;
  EXPECT_EQ(create(&handle, 2 * kMiB, properties), kCudaOutOfMemory);
  EXPECT_EQ(cudaGetLastError(), kCudaSuccess);
}

TEST_F(Standin, ReportsUnmappingOfMemoryInUse) {
  standin_set_manual(1);
  int properties[8] = {1, 0, 1, 0};
  cudaFree(nullptr);
  Address at = 0;
  std::uint64_t handle = 0;
  constexpr int allowed[3] = {1, 0, 3};
  reserve(&at, 2 * kMiB);
  create(&handle, 2 * kMiB, properties);
  map(at, 2 * kMiB, handle);
  access(at, 2 * kMiB, allowed);
  standin_use(stream(), reinterpret_cast<void*>(at), 1, 1);
  EXPECT_EQ(standin_misuses(), 0);
  unmap(at, 2 * kMiB);
  EXPECT_EQ(standin_misuses(), 1);
}

TEST_F(Standin, FindsUnorderedWorkOnMemoryThatTwoAddressesHave) {
  constexpr int properties[8] = {1, 0, 1, 0}, allowed[3] = {1, 0, 3};
  cudaFree(nullptr);
  std::uint64_t handle = 0;
  create(&handle, 2 * kMiB, properties);
  Address at[2] = {};
  for (Address& address : at) {
    reserve(&address, 2 * kMiB);
    map(address, 2 * kMiB, handle);
    access(address, 2 * kMiB, allowed);
  }
  void* a = stream();
  void* b = stream();
  standin_use(a, reinterpret_cast<void*>(at[0]), 4096, 1);
  standin_use(b, reinterpret_cast<void*>(at[1] + 4096), 4096, 2);
  EXPECT_EQ(standin_hazards(), 0) << "another part of it";
  standin_use(b, reinterpret_cast<void*>(at[1]), 1, 2);
  EXPECT_EQ(standin_hazards(), 1);
  standin_use(a, reinterpret_cast<void*>(at[0] + 4096), 1, 2);
  EXPECT_EQ(standin_hazards(), 1) << "the same owner's";
}

TEST_F(Standin, ContextsAreMadeWhereWorkIsDone) {
  standin_set_devices(4);
  int number = -1;
  cudaGetDeviceCount(&number);
  cudaGetDevice(&number);
  EXPECT_EQ(standin_contexts(), 0);
  ASSERT_EQ(cudaSetDevice(1), kCudaSuccess);
  EXPECT_TRUE(standin_has_context(1)) << "although it was not used";
  std::thread([] {
    int properties[8] = {1, 0, 1, 2};
    std::uint64_t handle = 0;
    EXPECT_EQ(create(&handle, 2 * kMiB, properties), kCudaNoContext);
    EXPECT_EQ(standin_contexts(), 1) << "nor does a look at the driver's calls make any";
    cudaFree(nullptr);
    EXPECT_TRUE(standin_has_context(0)) << "what a thread is on that has chosen nothing";
  }).join();

  void* context = nullptr;
  ASSERT_EQ(driver<int(void**, int)>("cuDevicePrimaryCtxRetain")(&context, 3), kCudaSuccess);
  EXPECT_TRUE(standin_has_context(3));
  ASSERT_EQ(driver<int(void*)>("cuCtxPushCurrent")(context), kCudaSuccess);
  memory(kMiB);
  EXPECT_EQ(standin_used(3), kMiB);
  ASSERT_EQ(driver<int(void**)>("cuCtxPopCurrent")(&context), kCudaSuccess);
  cudaGetDevice(&number);
  EXPECT_EQ(number, 1);
  EXPECT_FALSE(standin_has_context(2));
  EXPECT_EQ(standin_misuses(), 1);
}

TEST_F(Standin, NamesThatTheDriverHasNotAreNoErrors) {
  void* function = &function;
  int status = -1;
  EXPECT_EQ(cudaGetDriverEntryPointByVersion("nvNothing", &function, 12000, 0, &status),
            kCudaSuccess);
  EXPECT_EQ(function, nullptr);
  EXPECT_NE(status, 0);
}

TEST_F(Standin, AnEventAndItsStreamAreOfOneDevice) {
  standin_set_devices(2);
  void* here = event();
  ASSERT_EQ(cudaSetDevice(1), kCudaSuccess);
  void* there = stream();
  EXPECT_EQ(cudaEventRecord(here, there), kCudaInvalidHandle);
  EXPECT_EQ(cudaEventRecord(here, nullptr), kCudaInvalidHandle) << "the current one's default";
  EXPECT_EQ(standin_misuses(), 2);
  void* e = event();
  EXPECT_EQ(cudaEventRecord(e, there), kCudaSuccess);
  ASSERT_EQ(cudaSetDevice(0), kCudaSuccess);
  EXPECT_EQ(cudaStreamWaitEvent(stream(), e, 0), kCudaSuccess) << "to wait is another matter";
  EXPECT_EQ(cudaEventQuery(e), kCudaSuccess);
  cudaGetLastError();
}

TEST_F(Standin, NoModeLetsTheHostWaitForACapture) {
  void* s = stream();
  void* e = event();
  int relaxed = 2;
  cudaThreadExchangeStreamCaptureMode(&relaxed);
  const auto spoils = [&](int error, auto call) {
    ASSERT_EQ(cudaStreamBeginCapture(s, 2), kCudaSuccess);
    cudaEventRecord(e, s);
    EXPECT_EQ(call(), error);
    void* graph = nullptr;
    EXPECT_EQ(cudaStreamEndCapture(s, &graph), kCudaCaptureInvalidated);
  };
  spoils(kCudaCaptureUnsupported, [&] { return cudaDeviceSynchronize(); });
  spoils(kCudaCaptureUnsupported, [&] { return cudaStreamSynchronize(s); });
  spoils(kCudaCaptureUnsupported, [&] { return cudaStreamQuery(s); });
  spoils(kCudaCapturedEvent, [&] { return cudaEventQuery(e); });
  spoils(kCudaCapturedEvent, [&] { return cudaEventSynchronize(e); });
  EXPECT_EQ(standin_misuses(), 5);
  cudaThreadExchangeStreamCaptureMode(&relaxed);
}

TEST_F(Standin, EachThreadHasADefaultStreamOfItsOwn) {
  const auto per_thread = reinterpret_cast<void*>(std::uintptr_t{2});
  void* p = memory(4096);
  standin_use(per_thread, p, 4096, 1);
  standin_use(per_thread, p, 4096, 2);
  EXPECT_EQ(standin_hazards(), 0) << standin_last_complaint();
  std::thread([&] { standin_use(per_thread, p, 4096, 3); }).join();
  EXPECT_EQ(standin_hazards(), 1);
  standin_use(nullptr, p, 4096, 4);
  EXPECT_EQ(standin_hazards(), 1) << "both are ordered with the legacy one";
}

TEST_F(Standin, IsOutOfReachAfterAFork) {
  memory(1);
  const pid_t child = fork();
  if (child == 0) {
    void* p = nullptr;
    _exit(cudaMalloc(&p, 1));
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(WEXITSTATUS(status), kCudaInitializationError);
}

}  // namespace
