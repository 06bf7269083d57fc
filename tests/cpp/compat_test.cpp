// The pluggable interface's functions, as torch calls them, on the pretended GPU.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <map>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "compat/pluggable.h"
#include "cudart.h"
#include "plans.h"
#include "standin.h"

namespace stalloc {
namespace {

constexpr Bytes kMiB = Bytes{1} << 20;
constexpr Bytes kGiB = Bytes{1} << 30;
constexpr compat::GraphPools::Id kGraph{0, 7};

// Each test frees its own blocks: the allocators live as long as the process.
class Compat : public ::testing::Test {
 protected:
  void SetUp() override {
    if (runtime::DeviceRuntime::find_gpu(0)) return;
    standin_reset();
    standin_set_devices(2);
  }
  void TearDown() override {
    for (const char* call : {"cudaMalloc", "cudaEventRecord", "cudaEventQuery"}) {
      standin_fail(call, 0, 0, 0);
    }
    compat::CompatGpu::set_torch({});
    cudaSetDevice(0);
    standin_set_manual(0);
    standin_set_memory(0, 80 * kGiB);
    for (int device = 0; device < 2; ++device) {
      compat::CompatGpu::of(device).set_fraction(1);
      allocator(device).disable();
      allocator(device).release_cached();
      EXPECT_EQ(standin_used(device), 0u) << "device " << device;
      EXPECT_EQ(compat::CompatGpu::of(device).figures().held.all.bytes.current, 0);
      EXPECT_EQ(compat::CompatGpu::of(device).figures().all.blocks.current, 0);
    }
    EXPECT_EQ(standin_hazards(), hazards_) << standin_last_complaint();
    EXPECT_EQ(standin_misuses(), misuses_) << standin_last_complaint();
    EXPECT_EQ(cudaGetLastError(), kCudaSuccess) << "an error was left for torch to find";
  }

  static runtime::PlannedAllocator& allocator(int device = 0) {
    return runtime::DeviceRuntime::gpu(device, runtime::Fallback::kAlways).allocator();
  }
  static void* stream() {
    void* s = nullptr;
    EXPECT_EQ(cudaStreamCreateWithFlags(&s, kCudaNonBlocking), kCudaSuccess);
    return s;
  }
  static void use(void* stream, void* p, Bytes size, std::uint64_t owner) {
    EXPECT_EQ(standin_use(stream, p, static_cast<std::uint64_t>(size), owner), kCudaSuccess)
        << standin_last_complaint();
  }
  // Orders two streams as a program does before stream `b` uses a result of stream `a`.
  static void order(void* a, void* b) {
    void* event = nullptr;
    cudaEventCreateWithFlags(&event, kCudaNoTiming);
    cudaEventRecord(event, a);
    cudaStreamWaitEvent(b, event, 0);
    cudaEventDestroy(event);
  }
  static plan::Plan one_block(Bytes size) {
    plan::Decision d;
    d.size = size;
    d.lower = 0;
    d.upper = 1;
    return testing::plan_of({d}, 2);
  }
  static void enter_phase() { allocator().loop().enter_phase(trace::PhaseKind::kForward, 0, 0); }

  std::int64_t hazards_ = standin_hazards();
  std::int64_t misuses_ = standin_misuses();
};

TEST_F(Compat, NothingIsNoMemory) {
  EXPECT_EQ(stalloc_malloc(0, 0, nullptr), nullptr);
  stalloc_free(nullptr, 0, 0, nullptr);
}

TEST_F(Compat, ServesWithoutAPlan) {
  void* a = stalloc_malloc(1000, 0, nullptr);
  void* b = stalloc_malloc(1000, 0, nullptr);
  use(nullptr, a, 1000, 1);
  use(nullptr, b, 1000, 2);
  EXPECT_EQ(compat::CompatGpu::of(0).figures().held.all.bytes.current, 2 * kMiB);
  stalloc_free(a, 1000, 0, nullptr);
  void* c = stalloc_malloc(900, 0, nullptr);
  EXPECT_EQ(c, a) << "segments are kept";
  use(nullptr, c, 900, 3);
  stalloc_free(b, 1000, 0, nullptr);
  stalloc_free(c, 900, 0, nullptr);
  EXPECT_EQ(standin_used(0), static_cast<std::uint64_t>(2 * kMiB));
  stalloc_reset();
  EXPECT_EQ(standin_used(0), 0u);
}

TEST_F(Compat, ServesTrainingWithoutAPlan) {
  enter_phase();
  std::map<void*, Bytes> blocks;
  // Some are so large that the plan's idle space would be tried for them in a phase.
  for (const Bytes size : {Bytes{512}, Bytes{31} << 10, Bytes{32} << 10, kMiB, 40 * kMiB}) {
    void* p = stalloc_malloc(size, 0, nullptr);
    use(nullptr, p, size, static_cast<std::uint64_t>(size));
    blocks[p] = size;
  }
  EXPECT_EQ(blocks.size(), 5u);
  EXPECT_EQ(compat::CompatGpu::of(0).figures().all.blocks.current, 5);
  for (const auto& [p, size] : blocks) stalloc_free(p, size, 0, nullptr);
}

TEST_F(Compat, ServesThePlanAndFallsBack) {
  allocator().enable(one_block(kGiB));
  enter_phase();
  void* planned = stalloc_malloc(kGiB, 0, nullptr);
  void* other = stalloc_malloc(3 * kGiB, 0, nullptr);
  const auto pool = compat::CompatGpu::of(0).piece_of(planned);
  EXPECT_EQ(pool.begin, planned);
  EXPECT_EQ(pool.size, kGiB);
  EXPECT_NE(compat::CompatGpu::of(0).piece_of(other).begin, pool.begin);
  EXPECT_EQ(allocator().figures().statistics().hits, 1);
  EXPECT_EQ(allocator().figures().statistics().fallback_requests, 1);
  use(nullptr, planned, kGiB, 1);
  use(nullptr, other, 3 * kGiB, 2);
  allocator().disable();
  stalloc_free(planned, kGiB, 0, nullptr);
  stalloc_free(other, 3 * kGiB, 0, nullptr);
}

TEST_F(Compat, DevicesAreApart) {
  void* a = stalloc_malloc(kGiB, 0, nullptr);
  void* b = stalloc_malloc(2 * kGiB, 1, nullptr);
  EXPECT_EQ(standin_used(0), static_cast<std::uint64_t>(kGiB));
  EXPECT_EQ(standin_used(1), static_cast<std::uint64_t>(2 * kGiB));
  EXPECT_EQ(compat::CompatGpu::of(1).figures().all.requested.current, 2 * kGiB);
  EXPECT_THROW(stalloc_malloc(1, 2, nullptr), Error);
  stalloc_free(a, kGiB, 0, nullptr);
  stalloc_free(b, 2 * kGiB, 1, nullptr);
}

TEST_F(Compat, RunsOutWithFigures) {
  standin_set_memory(0, kGiB);
  compat::CompatGpu::of(0).reset_totals();
  try {
    stalloc_malloc(2 * kGiB, 0, nullptr);
    FAIL() << "it has to throw";
  } catch (const OutOfMemory& e) {
    const std::string text = e.what();
    EXPECT_NE(text.find("2.0 GiB on cuda:0"), std::string::npos) << text;
    EXPECT_NE(text.find("1.0 GiB free"), std::string::npos) << text;
  }
  EXPECT_EQ(compat::CompatGpu::of(0).figures().out_of_memory, 1);
}

struct TorchsError {
  std::string message;
};

TEST_F(Compat, TorchThrowsItsOwnErrorWhereItCan) {
  compat::CompatTorch torch;
  torch.throw_out_of_memory = [](const char* message) { throw TorchsError{message}; };
  stalloc_set_torch(&torch);
  EXPECT_THROW(stalloc_malloc(81 * kGiB, 0, nullptr), TorchsError);
}

TEST_F(Compat, GivesBackCachedMemoryBeforeItRunsOut) {
  standin_set_memory(0, kGiB);
  compat::CompatGpu::of(0).reset_peaks();
  void* a = stalloc_malloc(600 * kMiB, 0, nullptr);
  stalloc_free(a, 600 * kMiB, 0, nullptr);
  void* b = stalloc_malloc(800 * kMiB, 0, stream());
  EXPECT_NE(b, nullptr);
  // What was asked of the device in vain was never held.
  EXPECT_EQ(compat::CompatGpu::of(0).figures().held.all.bytes.peak, 800 * kMiB);
  EXPECT_EQ(compat::CompatGpu::of(0).figures().all.rounded.peak, 800 * kMiB);
  stalloc_free(b, 800 * kMiB, 0, nullptr);
}

// The driver waits for the device before it unmaps memory, which no capture survives.
TEST_F(Compat, NoMemoryIsUnmappedDuringACapture) {
  std::vector<plan::Decision> decisions;
  for (int i = 0; i < 5; ++i) {
    decisions.push_back(testing::decision(16 * kMiB, i * 16 * kMiB, 2 * i, 10));
  }
  const plan::Plan plan = testing::plan_of(decisions, 10);
  allocator().enable(plan);
  enter_phase();
  std::vector<void*> planned;
  for (int i = 0; i < 5; ++i) planned.push_back(stalloc_malloc(16 * kMiB, 0, nullptr));
  allocator().drain(/*departed=*/true);
  stalloc_free(stalloc_malloc(300 * kMiB, 0, nullptr), 300 * kMiB, 0, nullptr);
  ASSERT_EQ(standin_used(0), 380u << 20);
  while (planned.size() > 1) {
    stalloc_free(planned.back(), 16 * kMiB, 0, nullptr);
    planned.pop_back();
  }
  void* s = stream();
  const auto capture = [&](auto work) {
    stalloc_begin_allocate_to_pool(0, kGraph, [s](void* other) { return other == s; });
    ASSERT_EQ(cudaStreamBeginCapture(s, 0), kCudaSuccess);
    work();
    void* graph = nullptr;
    EXPECT_EQ(cudaStreamEndCapture(s, &graph), kCudaSuccess) << standin_last_complaint();
    stalloc_end_allocate_to_pool(0, kGraph);
    stalloc_release_pool(0, kGraph);
  };
  capture([] {
    for (int i = 0; i < 8; ++i) allocator().loop().end_iteration();
  });
  capture([&] { allocator().enable(plan); });
  EXPECT_LT(standin_used(0), (380u + 80) << 20) << "the earlier pool is trimmed after the capture";
  capture([] { allocator().disable(); });
  stalloc_free(planned.front(), 16 * kMiB, 0, nullptr);
}

// If the device runs out of memory, at any call, torch's program sees no more than an exception.
TEST_F(Compat, EveryFailureOfTheDeviceIsSurvived) {
  allocator().enable(one_block(kGiB));
  enter_phase();
  constexpr Bytes kLarge = kGiB + kMiB;  // does not fit into the pool
  for (const int error : {kCudaOutOfMemory, kCudaIllegalAddress}) {
    for (int nth = 1; nth <= 3; ++nth) {
      for (const char* call : {"cudaMalloc", "cuMemCreate"}) standin_fail(call, nth, error, -1);
      std::vector<void*> blocks;
      bool threw = false;
      for (int i = 0; i < 4; ++i) {
        try {
          blocks.push_back(stalloc_malloc(kLarge, 0, nullptr));
        } catch (const Error&) {
          threw = true;
        }
      }
      for (const char* call : {"cudaMalloc", "cuMemCreate"}) standin_fail(call, 0, 0, 0);
      EXPECT_EQ(cudaGetLastError(), kCudaSuccess);
      EXPECT_EQ(threw, error == kCudaIllegalAddress || blocks.size() < 4);
      for (void* p : blocks) stalloc_free(p, kLarge, 0, nullptr);
      allocator().inspect().check();
      stalloc_reset();
    }
  }
}

TEST_F(Compat, HoldsNoMoreThanItsShare) {
  stalloc_memory_fraction(0.25, 0);
  void* a = stalloc_malloc(19 * kGiB, 0, nullptr);
  EXPECT_THROW(stalloc_malloc(2 * kGiB, 0, nullptr), OutOfMemory);
  stalloc_memory_fraction(1.0, 0);
  void* b = stalloc_malloc(2 * kGiB, 0, nullptr);
  stalloc_free(a, 19 * kGiB, 0, nullptr);
  stalloc_free(b, 2 * kGiB, 0, nullptr);
}

TEST_F(Compat, KnowsThePieceThatABlockLiesIn) {
  auto* a = static_cast<std::byte*>(stalloc_malloc(1000, 0, nullptr));
  auto* b = static_cast<std::byte*>(stalloc_malloc(1000, 0, nullptr));
  std::size_t size = 0;
  EXPECT_EQ(stalloc_base_allocation(b + 10, &size), a);
  EXPECT_EQ(size, static_cast<std::size_t>(2 * kMiB));
  int other = 0;
  EXPECT_EQ(stalloc_base_allocation(&other, &size), &other);
  stalloc_free(a, 1000, 0, nullptr);
  stalloc_free(b, 1000, 0, nullptr);
}

TEST_F(Compat, CountsAsTorchDoes) {
  compat::CompatGpu& gpu = compat::CompatGpu::of(0);
  gpu.reset_peaks();
  gpu.reset_totals();
  void* a = stalloc_malloc(1000, 0, nullptr);
  void* b = stalloc_malloc(3 * kMiB, 0, nullptr);
  stalloc_free(b, 3 * kMiB, 0, nullptr);
  const auto f = gpu.figures();
  EXPECT_EQ(f.all.blocks.current, 1);
  EXPECT_EQ(f.all.requested.current, 1000);
  EXPECT_EQ(f.all.rounded.current, 1024);
  EXPECT_EQ(f.all.rounded.peak, 1024 + 3 * kMiB);
  EXPECT_EQ(f.all.requested.added, 1000 + 3 * kMiB);
  EXPECT_EQ(f.all.requested.removed, 3 * kMiB);
  EXPECT_EQ(f.small.rounded.peak, 1024);
  EXPECT_EQ(f.large.rounded.peak, 3 * kMiB);
  EXPECT_EQ(f.held.all.bytes.current, 22 * kMiB);
  EXPECT_EQ(f.held.small.bytes.current, 2 * kMiB);
  EXPECT_EQ(f.held.all.pieces.current, 2);
  gpu.reset_peaks();
  EXPECT_EQ(gpu.figures().all.rounded.peak, 1024);
  const auto segments = gpu.segments();
  ASSERT_EQ(segments.size(), 2u);
  std::size_t blocks = 0;
  for (const auto& segment : segments) blocks += segment.content.blocks.size();
  EXPECT_EQ(blocks, 1u);
  stalloc_free(a, 1000, 0, nullptr);
}

TEST_F(Compat, ABlockWaitsForTheStreamsThatUseIt) {
  standin_set_manual(1);
  void* main = stream();
  void* side = stream();
  void* a = stalloc_malloc(5000, 0, main);
  use(main, a, 5000, 1);
  order(main, side);
  use(side, a, 5000, 1);
  stalloc_record_stream(a, side);
  stalloc_free(a, 5000, 0, main);
  standin_drain(main);
  void* b = stalloc_malloc(5000, 0, main);
  EXPECT_NE(b, a) << "the side stream is not done";
  use(main, b, 5000, 2);
  standin_drain(side);
  void* c = stalloc_malloc(5000, 0, main);
  EXPECT_EQ(c, a);
  use(main, c, 5000, 3);
  stalloc_free(b, 5000, 0, main);
  stalloc_free(c, 5000, 0, main);
}

// The stand-in would notice if record_stream did nothing, as happens without its hook.
TEST_F(Compat, WithoutRecordStreamAReusedAddressIsNoticed) {
  standin_set_manual(1);
  void* main = stream();
  void* side = stream();
  void* a = stalloc_malloc(5000, 0, main);
  use(main, a, 5000, 1);
  order(main, side);
  use(side, a, 5000, 1);
  stalloc_free(a, 5000, 0, main);
  void* b = stalloc_malloc(5000, 0, main);
  use(main, b, 5000, 2);
  EXPECT_EQ(standin_hazards(), hazards_ + 1);
  hazards_ = standin_hazards();
  stalloc_free(b, 5000, 0, main);
}

TEST_F(Compat, AStreamMayGoWhileBlocksWaitForIt) {
  standin_set_manual(1);
  void* main = stream();
  void* side = stream();
  void* a = stalloc_malloc(5000, 0, main);
  void* b = stalloc_malloc(5000, 0, main);
  for (void* p : {a, b}) {
    use(side, p, 5000, 1);
    stalloc_record_stream(p, side);
  }
  stalloc_free(a, 5000, 0, main);  // its event is recorded
  cudaStreamDestroy(side);
  stalloc_free(b, 5000, 0, main);  // and this one's cannot be
  EXPECT_EQ(standin_misuses(), misuses_ + 1) << "an event on a stream that is gone";
  misuses_ = standin_misuses();
  void* c = stalloc_malloc(5000, 0, main);
  EXPECT_TRUE(c != a && c != b);
  use(main, c, 5000, 2);
  stalloc_free(c, 5000, 0, main);
}

TEST_F(Compat, BlocksWhoseEventsFailAreNotReusedUnknowing) {
  standin_set_manual(1);
  for (const char* call : {"cudaEventRecord", "cudaEventQuery"}) {
    void* main = stream();
    void* side = stream();
    void* a = stalloc_malloc(5000, 0, main);
    use(side, a, 5000, 1);
    stalloc_record_stream(a, side);
    standin_fail(call, 1, kCudaIllegalAddress, 1);
    stalloc_free(a, 5000, 0, main);
    void* b = stalloc_malloc(5000, 0, main);
    EXPECT_NE(b, a) << call;
    use(main, b, 5000, 2);
    stalloc_free(b, 5000, 0, main);
    void* c = stalloc_malloc(5000, 0, main);
    use(main, c, 5000, 3);
    stalloc_free(c, 5000, 0, main);
  }
}

TEST_F(Compat, OutOfMemoryWaitsForStreamsBeforeItGivesUp) {
  standin_set_manual(1);
  standin_set_memory(0, kGiB);
  void* main = stream();
  void* side = stream();
  void* a = stalloc_malloc(800 * kMiB, 0, main);
  use(side, a, 800 * kMiB, 1);
  stalloc_record_stream(a, side);
  stalloc_free(a, 800 * kMiB, 0, main);
  void* b = stalloc_malloc(900 * kMiB, 0, main);
  use(main, b, 900 * kMiB, 2);
  stalloc_free(b, 900 * kMiB, 0, main);
}

TEST_F(Compat, GraphsHaveTheirMemoryToThemselves) {
  void* captured = stream();
  void* other = stream();
  const auto filter = [captured](void* s) { return s == captured; };
  allocator().enable(one_block(5000));
  enter_phase();

  stalloc_begin_allocate_to_pool(0, kGraph, filter);
  ASSERT_EQ(cudaStreamBeginCapture(captured, 0), kCudaSuccess);
  void* temporary = stalloc_malloc(5000, 0, captured);
  EXPECT_NE(compat::CompatGpu::of(0).piece_of(temporary).size,
            allocator().figures().statistics().pool)
      << "captured requests keep away from planned addresses";
  use(captured, temporary, 5000, 1);
  stalloc_free(temporary, 5000, 0, captured);
  void* result = stalloc_malloc(6000, 0, captured);
  use(captured, result, 6000, 2);
  void* meanwhile = stalloc_malloc(7000, 0, other);
  use(other, meanwhile, 7000, 3);
  stalloc_record_stream(meanwhile, captured);
  stalloc_free(meanwhile, 7000, 0, other);
  void* graph = nullptr;
  EXPECT_EQ(cudaStreamEndCapture(captured, &graph), kCudaSuccess) << "the capture was spoilt";
  stalloc_end_allocate_to_pool(0, kGraph);

  void* exec = nullptr;
  ASSERT_EQ(cudaGraphInstantiateWithFlags(&exec, graph, 0), kCudaSuccess);
  std::vector<void*> blocks;
  for (std::uint64_t i = 0; i < 20; ++i) {
    cudaGraphLaunch(exec, captured);
    blocks.push_back(stalloc_malloc(5000, 0, captured));
    use(captured, blocks.back(), 5000, 10 + i);
    blocks.push_back(stalloc_malloc(5000, 0, other));
    use(other, blocks.back(), 5000, 50 + i);
  }
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    stalloc_free(blocks[i], 5000, 0, i % 2 == 0 ? captured : other);
  }

  stalloc_release_pool(0, kGraph);
  use(captured, result, 6000, 2);  // live blocks stay
  stalloc_reset();
  EXPECT_GE(standin_used(0), static_cast<std::uint64_t>(2 * kMiB));
  stalloc_free(result, 6000, 0, captured);
}

TEST_F(Compat, GraphsThatShareAPoolShareItsMemory) {
  void* captured = stream();
  const auto filter = [captured](void* s) { return s == captured; };
  void* first = nullptr;
  for (int graph = 0; graph < 2; ++graph) {
    stalloc_begin_allocate_to_pool(0, kGraph, filter);
    void* p = stalloc_malloc(5000, 0, captured);
    if (graph == 0) first = p;
    EXPECT_EQ(p, first);
    stalloc_free(p, 5000, 0, captured);
    stalloc_end_allocate_to_pool(0, kGraph);
  }
  stalloc_release_pool(0, kGraph);
  EXPECT_GT(standin_used(0), 0u) << "the second graph needs it";
  stalloc_release_pool(0, kGraph);
  EXPECT_EQ(standin_used(0), 0u);
}

TEST_F(Compat, AForkedChildIsToldAndCanFree) {
  void* a = stalloc_malloc(5000, 0, nullptr);
  const pid_t child = fork();
  if (child == 0) {
    int told = 1;
    try {
      stalloc_malloc(5000, 0, nullptr);
    } catch (const OutOfMemory&) {
    } catch (const Error& e) {
      told = std::string(e.what()).find("forked") == std::string::npos ? 2 : 0;
    }
    stalloc_free(a, 5000, 0, nullptr);
    _exit(told);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  stalloc_free(a, 5000, 0, nullptr);
}

using CompatDeathTest = Compat;

TEST_F(CompatDeathTest, TheProcessEndsWithLiveBlocks) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        struct Late {  // dies after everything else, as tensors held by modules do
          void* p = stalloc_malloc(5000, 0, nullptr);
          ~Late() { stalloc_free(p, 5000, 0, nullptr); }
        };
        static Late late;
        void* waiting = stalloc_malloc(5000, 0, nullptr);
        standin_set_manual(1);
        void* side = stream();
        standin_submit(side);
        stalloc_record_stream(waiting, side);
        stalloc_free(waiting, 5000, 0, nullptr);
        std::exit(0);
      },
      ::testing::ExitedWithCode(0), "");
}

// A plan's pool and blocks as large as a whole device, on a machine of any size. Each block is used
// by the streams recorded for it, in a program that orders its own streams correctly.
struct Block {
  void* p = nullptr;
  Bytes size = 0;
  void* stream = nullptr;
  std::uint64_t owner = 0;
};

plan::Plan scaled(plan::Plan plan, Bytes by) {
  for (plan::Decision& d : plan.decisions) {
    d.size *= by;
    d.offset *= by;
  }
  plan.pool *= by;
  plan.bound *= by;
  return plan;
}

TEST_F(Compat, NoAddressIsReusedBeforeItsStreamsAreDone) {
  std::uint64_t owner = 1;
  for (unsigned seed = 0; seed < 12; ++seed) {
    std::mt19937 random(seed);
    const auto pick = [&](int low, int high) {
      return std::uniform_int_distribution<int>(low, high)(random);
    };
    standin_set_manual(1);
    const plan::Plan plan = scaled(testing::random_plan(random, 60, 2, 3), 1 << 16);
    // The plan's streams are numbered by first use: the default one and two more.
    const std::vector<void*> streams = {nullptr, stream(), stream()};
    allocator().enable(plan);
    std::vector<StreamId> ids;
    for (void* s : streams) ids.push_back(runtime::DeviceRuntime::find_gpu(0)->streams().id_of(s));
    const auto waits = standin_host_waits();
    const auto frees = standin_calls("cudaFree");

    std::vector<Block> live;
    const auto free_one = [&](std::size_t i) {
      stalloc_free(live[i].p, live[i].size, 0, live[i].stream);
      live.erase(live.begin() + static_cast<std::ptrdiff_t>(i));
    };
    for (int iteration = 0; iteration < 4; ++iteration) {
      for (std::size_t d = 0; d < plan.decisions.size(); ++d) {
        const plan::Decision& decision = plan.decisions[d];
        if (d == 0 || plan.decisions[d - 1].phase != decision.phase) {
          allocator().loop().enter_phase(trace::PhaseKind::kForward, decision.phase.number(), 0);
        }
        const bool foreign = pick(0, 9) == 0;
        Block b;
        b.size = foreign ? pick(1, 100) * kMiB : decision.size;
        b.stream = streams[static_cast<std::size_t>(foreign ? pick(0, 2) : decision.stream)];
        b.owner = owner++;
        b.p = stalloc_malloc(b.size, 0, b.stream);
        use(b.stream, b.p, b.size, b.owner);
        if (pick(0, 2) == 0) {
          void* other = streams[static_cast<std::size_t>(pick(0, 2))];
          order(b.stream, other);
          use(other, b.p, b.size, b.owner);
          stalloc_record_stream(b.p, other);
        }
        live.push_back(b);
        while (live.size() > 12 || (live.size() > 4 && pick(0, 1) == 0)) {
          free_one(static_cast<std::size_t>(pick(0, static_cast<int>(live.size()) - 1)));
        }
        if (pick(0, 3) == 0) {
          standin_advance(streams[static_cast<std::size_t>(pick(0, 2))], pick(1, 12));
        }
        ASSERT_EQ(standin_hazards(), hazards_) << standin_last_complaint() << ", seed " << seed;
      }
      allocator().loop().end_iteration();
    }
    EXPECT_GT(allocator().figures().statistics().hits, 0) << "seed " << seed;
    if (standin_calls("cudaFree") == frees) {
      EXPECT_EQ(standin_host_waits(), waits) << "the host waited in the hot path";
    }
    while (!live.empty()) free_one(0);
    allocator().inspect().check();
    allocator().disable();
    standin_drain_all();
  }
}

TEST_F(Compat, ThreadsShareAGpu) {
  constexpr int kThreads = 4;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([t] {
      std::mt19937 random(static_cast<unsigned>(t));
      cudaSetDevice(t % 2);
      void* mine = stream();
      void* side = stream();
      for (std::uint64_t i = 1; i <= 300; ++i) {
        const Bytes size = std::uniform_int_distribution<int>(1, 3'000'000)(random);
        const std::uint64_t owner = static_cast<std::uint64_t>(t + 1) * 1'000'000 + i;
        void* p = stalloc_malloc(size, t % 2, mine);
        standin_use(mine, p, static_cast<std::uint64_t>(size), owner);
        if (i % 3 == 0) {
          order(mine, side);
          standin_use(side, p, static_cast<std::uint64_t>(size), owner);
          stalloc_record_stream(p, side);
        }
        stalloc_free(p, size, t % 2, mine);
        if (i % 50 == 0) stalloc_reset();
      }
    });
  }
  for (std::thread& t : threads) t.join();
  for (int device = 0; device < 2; ++device) allocator(device).inspect().check();
}

TEST_F(Compat, AStreamWithoutANumberSharesNoAddresses) {
  const auto per_thread = reinterpret_cast<void*>(std::uintptr_t{2});
  void* p = stalloc_malloc(kMiB, 0, per_thread);
  use(per_thread, p, kMiB, 1);
  stalloc_free(p, kMiB, 0, per_thread);
  std::thread([&] {
    void* q = stalloc_malloc(kMiB, 0, per_thread);
    use(per_thread, q, kMiB, 2);
    stalloc_free(q, kMiB, 0, per_thread);
  }).join();
  const auto legacy = reinterpret_cast<void*>(std::uintptr_t{1});
  p = stalloc_malloc(kMiB, 0, legacy);
  stalloc_free(p, kMiB, 0, legacy);
  void* q = stalloc_malloc(kMiB, 0, nullptr);
  EXPECT_EQ(p, q) << "the default stream by another name";
  stalloc_free(q, kMiB, 0, nullptr);
}

TEST_F(Compat, OnlyItsOwnerLearnsOfAStream) {
  runtime::StreamTable& first =
      runtime::DeviceRuntime::gpu(0, runtime::Fallback::kAlways).streams();
  runtime::StreamTable& second =
      runtime::DeviceRuntime::gpu(1, runtime::Fallback::kAlways).streams();
  compat::CompatGpu::of(0);
  const auto count = [](const runtime::StreamTable& table) {
    int streams = 0;
    table.visit([&](StreamId) { ++streams; });
    return streams;
  };
  const int before = count(first), owners = count(second);
  void* p = stalloc_malloc(kMiB, 1, nullptr);
  ASSERT_EQ(cudaSetDevice(1), kCudaSuccess);
  stalloc_record_stream(p, stream());
  EXPECT_EQ(count(first), before);
  EXPECT_EQ(count(second), owners + 1);
  stalloc_free(p, kMiB, 1, nullptr);
}

TEST_F(Compat, ABlockThatAnotherDeviceUsesKeepsItsPlaceUntilThatIsDone) {
  allocator().enable(one_block(kMiB));
  standin_set_manual(1);
  ASSERT_EQ(cudaSetDevice(1), kCudaSuccess);
  void* there = stream();
  ASSERT_EQ(cudaSetDevice(0), kCudaSuccess);
  enter_phase();
  void* p = stalloc_malloc(kMiB, 0, nullptr);
  use(there, p, kMiB, 1);
  stalloc_record_stream(p, there);
  stalloc_free(p, kMiB, 0, nullptr);
  allocator().loop().enter_phase(trace::PhaseKind::kForward, 0, 0);
  void* q = stalloc_malloc(kMiB, 0, nullptr);
  EXPECT_NE(q, p);
  stalloc_free(q, kMiB, 0, nullptr);
  allocator().loop().end_iteration();
  EXPECT_EQ(standin_pending(there), 0) << "no event tells: the other device is waited for";
  enter_phase();
  q = stalloc_malloc(kMiB, 0, nullptr);
  EXPECT_EQ(q, p);
  use(nullptr, q, kMiB, 2);
  stalloc_free(q, kMiB, 0, nullptr);
}

// Waiting for the device is forbidden now, so the block stays until it is known to be unused.
TEST_F(Compat, APoolWhoseLastBlockGoesDuringACaptureGoesAfterIt) {
  device::DeviceMemory& memory =
      runtime::DeviceRuntime::gpu(0, runtime::Fallback::kAlways).memory();
  ASSERT_TRUE(memory.use_virtual(device::VirtualPools::kAll));
  allocator().enable(one_block(kMiB));
  enter_phase();
  void* p = stalloc_malloc(kMiB, 0, nullptr);
  void* s = stream();
  stalloc_begin_allocate_to_pool(0, kGraph, [s](void* other) { return other == s; });
  ASSERT_EQ(cudaStreamBeginCapture(s, 0), kCudaSuccess);
  EXPECT_THROW(allocator().release_pool(), Error);
  allocator().disable();
  stalloc_free(p, kMiB, 0, nullptr);
  EXPECT_GT(standin_used(0), 0u);
  void* graph = nullptr;
  EXPECT_EQ(cudaStreamEndCapture(s, &graph), kCudaSuccess) << "the capture was spoilt";
  stalloc_end_allocate_to_pool(0, kGraph);
  EXPECT_EQ(standin_used(0), 0u);
  stalloc_release_pool(0, kGraph);
  memory.use_virtual(device::VirtualPools::kNone);
}

}  // namespace
}  // namespace stalloc
