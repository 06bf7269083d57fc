// Plans with start-up: permanent allocations of start-up and the first iteration are found, laid
// out without holes, and served there. For any beginning of a run, no two live blocks share an
// address.
#include <gtest/gtest.h>

#include <array>
#include <map>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/align.h"
#include "base/error.h"
#include "complaint.h"
#include "damage.h"
#include "device/pretend.h"
#include "plan/build.h"
#include "plan/plan_json.h"
#include "profile/lifetimes.h"
#include "replay/replay.h"
#include "runtime/planned_allocator.h"
#include "runtime/startup_guide.h"
#include "trace_builder.h"

namespace stalloc {
namespace {

using ::testing::IsSubstring;
using testing::TraceBuilder;

constexpr Bytes kMiB = Bytes{1} << 20;

// Two weights, each made from a temporary; activations; a gradient that is permanent from the first
// backward on, as large as its temporaries; a state that the first optimizer step makes.
trace::Trace training(int iterations) {
  TraceBuilder t;
  for (int i = 0; i < 2; ++i) {
    const auto raw = t.alloc(8 * kMiB);
    t.alloc(4 * kMiB + 100);
    t.free(raw);
  }
  for (int i = 0; i < iterations; ++i) {
    t.phase(trace::PhaseKind::kForward, 0);
    const auto a = t.alloc(6 * kMiB);
    const auto b = t.alloc(5 * kMiB);
    t.phase(trace::PhaseKind::kBackward, 0);
    t.free(t.alloc(3 * kMiB));
    if (i == 0) t.alloc(3 * kMiB);
    t.free(t.alloc(3 * kMiB));
    t.free(b);
    t.free(a);
    t.phase(trace::PhaseKind::kOptimizer);
    if (i == 0) t.alloc(8 * kMiB);
    t.free(t.alloc(8 * kMiB));
    t.step();
  }
  return t.finish();
}

plan::Plan plan_of(const trace::Trace& trace) {
  return plan::make_plan(profile::profile_iteration(trace), {});
}

TEST(Startup, HasTheRequestsOfTheFirstIterationAlone) {
  const trace::Trace trace = training(4);
  const profile::IterationProfile profile = profile::profile_iteration(trace);
  std::vector<Bytes> sizes;
  std::vector<bool> stays;
  for (const profile::StartupSighting& s : profile.startup.requests) {
    sizes.push_back(s.size);
    stays.push_back(s.upper == kNever);
  }
  EXPECT_EQ(sizes, (std::vector<Bytes>{8 * kMiB, 4 * kMiB + 100, 8 * kMiB, 4 * kMiB + 100, 3 * kMiB,
                                       8 * kMiB}));
  EXPECT_EQ(stays, (std::vector<bool>{false, true, false, true, true, true}));
  // The gradient comes between the two temporaries of its size and is not taken for one of them.
  const profile::StartupSighting& gradient = profile.startup.requests[4];
  EXPECT_EQ(profile[gradient.phase].key.kind, trace::PhaseKind::kBackward);
  EXPECT_EQ(profile.requests[gradient.after].size, 3 * kMiB);
  EXPECT_EQ(profile.startup.stays.size(), 5u);
}

TEST(Startup, NeedsAFirstIterationThatIsNotCompared) {
  EXPECT_TRUE(profile::profile_iteration(training(2)).startup.requests.empty());
  EXPECT_FALSE(profile::profile_iteration(training(3)).startup.requests.empty());
}

TEST(Startup, LiesWithoutHolesAndItsTemporariesInThePool) {
  const plan::Plan plan = plan_of(training(4));
  const Bytes weight = align_up(4 * kMiB + 100, plan.alignment);
  EXPECT_EQ(plan.resident, 2 * weight + 3 * kMiB + 8 * kMiB);
  ASSERT_EQ(plan.startup.size(), 6u);
  Bytes resident = 0;
  for (const plan::StartupRequest& r : plan.startup) {
    if (r.stays()) {
      resident += align_up(r.size, plan.alignment);
    } else {
      EXPECT_LE(r.offset + r.size, plan.pool);
    }
  }
  EXPECT_EQ(resident, plan.resident);
  EXPECT_EQ(plan.pool, plan.bound);
}

TEST(Startup, TemporariesTooLargeForThePoolLieWhereStatesWillBe) {
  TraceBuilder t;
  const auto loaded = t.alloc(20 * kMiB);
  t.alloc(10 * kMiB);
  t.free(loaded);
  for (int i = 0; i < 4; ++i) {
    t.phase(trace::PhaseKind::kForward, 0);
    t.free(t.alloc(kMiB));
    t.phase(trace::PhaseKind::kOptimizer);
    if (i == 0) t.alloc(30 * kMiB);
    t.free(t.alloc(2 * kMiB));
    t.step();
  }
  const trace::Trace trace = t.finish();
  const plan::Plan plan = plan_of(trace);
  EXPECT_EQ(plan.pool, 2 * kMiB);
  EXPECT_EQ(plan.resident, 40 * kMiB);
  EXPECT_GE(plan.startup[0].offset, plan.pool + 10 * kMiB);
  const replay::ReplayResult result = replay::replay_planned(trace, plan);
  EXPECT_EQ(result.peak_reserved, 42 * kMiB);
  EXPECT_EQ(result.misses, 0);
}

// A check of the model before its first step, on larger batches. See Note [Left out].
trace::Trace checked(Bytes batch) {
  TraceBuilder t;
  t.alloc(4 * kMiB);
  for (Bytes size = batch; size >= kMiB; size /= 2) {
    const auto input = t.alloc(size);
    const auto output = t.alloc(size);
    t.free(input);
    t.free(output);
  }
  for (int i = 0; i < 4; ++i) {
    t.phase(trace::PhaseKind::kForward, 0);
    const auto a = t.alloc(16 * kMiB);
    const auto b = t.alloc(24 * kMiB);
    t.free(a);
    t.phase(trace::PhaseKind::kOptimizer);
    if (i == 0) t.alloc(8 * kMiB);
    t.free(b);
    t.step();
  }
  return t.finish();
}

TEST(Startup, TemporariesBesideLargerOnesGetNoMemoryOfThePool) {
  const trace::Trace trace = checked(64 * kMiB);
  const plan::Plan plan = plan_of(trace);
  EXPECT_EQ(plan.pool, 40 * kMiB);
  EXPECT_EQ(plan.resident, 12 * kMiB);
  for (const plan::StartupRequest& r : plan.startup) {
    EXPECT_EQ(r.offset != kUnplaced, r.stays()) << r.size;
  }
  const replay::ReplayResult result = replay::replay_planned(trace, plan);
  EXPECT_LE(result.peak_reserved, 4 * kMiB + 2 * 64 * kMiB + 2 * kMiB);
}

TEST(Startup, TemporariesOfACheckThatFitsLieInThePool) {
  const plan::Plan plan = plan_of(checked(16 * kMiB));
  for (const plan::StartupRequest& r : plan.startup) EXPECT_NE(r.offset, kUnplaced) << r.size;
}

TEST(Startup, ReplaysWithoutAByteBesideThePlan) {
  const trace::Trace trace = training(5);
  const plan::Plan plan = plan_of(trace);
  const replay::ReplayResult result = replay::replay_planned(trace, plan);
  EXPECT_EQ(result.peak_reserved, plan.pool + plan.resident);
  EXPECT_EQ(result.misses, 0);
  EXPECT_EQ(result.mallocs, 2);
  EXPECT_EQ(result.frees, 0);
  EXPECT_GT(static_cast<double>(result.peak_load) / static_cast<double>(result.peak_reserved),
            0.999);
}

// From the second iteration on, backward adds to a gradient. The first iteration does not make the
// temporary for that.
TEST(Startup, DecisionsAbsentFromTheFirstIterationCostNothing) {
  TraceBuilder t;
  for (int i = 0; i < 5; ++i) {
    t.phase(trace::PhaseKind::kBackward, 0);
    t.free(t.alloc(2 * kMiB));
    if (i == 0) t.alloc(3 * kMiB);
    if (i > 0) t.free(t.alloc(3 * kMiB));
    t.free(t.alloc(4 * kMiB));
    t.step();
  }
  const trace::Trace trace = t.finish();
  const plan::Plan plan = plan_of(trace);
  EXPECT_EQ(plan.absent, std::vector<plan::DecisionIndex>{1});
  const replay::ReplayResult result = replay::replay_planned(trace, plan);
  EXPECT_EQ(result.hits, 5 * 3 - 1);
  EXPECT_EQ(result.misses, 0);
  EXPECT_EQ(result.peak_reserved, plan.pool + plan.resident);
}

// A loop variable holds an output until the next iteration's exists. In the first iteration too, it
// is not taken for a temporary of its size.
TEST(Startup, ABlockThatTheNextIterationReplacesIsNoTemporary) {
  TraceBuilder t;
  std::int32_t output = kNone;
  for (int i = 0; i < 5; ++i) {
    t.phase(trace::PhaseKind::kForward, 0);
    t.free(t.alloc(kMiB));
    const auto next = t.alloc(2 * kMiB);
    if (i > 0) t.free(output);
    output = next;
    t.free(t.alloc(2 * kMiB));
    t.free(t.alloc(3 * kMiB));
    t.step();
  }
  const trace::Trace trace = t.finish();
  const plan::Plan plan = plan_of(trace);
  EXPECT_TRUE(plan.persistent.empty());
  ASSERT_EQ(plan.slots.size(), 1u);
  EXPECT_EQ(plan.slots[0].count, 2) << "one for it, and one for its successor";
  EXPECT_EQ(plan.absent, std::vector<plan::DecisionIndex>{});
  const replay::ReplayResult result = replay::replay_planned(trace, plan);
  EXPECT_EQ(result.hits, 5 * 4);
  EXPECT_EQ(result.misses, 0);
}

// A loop variable holds scores until the next ones exist. They come where dynamic requests do. In
// the first iteration too, they are none of these, whose region would hold them for too long. With
// a second stream they take no turns, and lie beside the pool.
TEST(Startup, ABlockThatTheNextIterationReplacesIsNotDynamic) {
  for (const StreamId other : {0, 1}) {
    TraceBuilder t;
    std::int32_t scores = kNone;
    for (const std::int64_t n : {100, 512, 200, 333, 470}) {
      t.phase(trace::PhaseKind::kForward, 0);
      t.extents({"ids.1"}, {n});
      const auto hidden = t.alloc(4096 * n);
      const auto routed = t.alloc(4096 * n + 512 * (n % 7));
      t.tag_dynamic(routed);
      t.free(routed);
      const auto next = t.alloc(8192 * n);
      if (scores != kNone) t.free(scores);
      scores = next;
      t.phase(trace::PhaseKind::kBackward, 0);
      t.free(t.alloc(8192 * n, other));
      t.free(hidden);
      t.step();
    }
    const profile::IterationProfile profile = profile::profile_iteration(t.finish());
    ASSERT_EQ(profile.groups.size(), 1u);
    ASSERT_EQ(profile.startup.requests.size(), other == 0 ? 0u : 1u);
    if (other == 0) continue;
    EXPECT_TRUE(profile.startup.requests[0].recurs);
    EXPECT_EQ(profile.startup.requests[0].size, 8192 * 512);
  }
}

// The plan has no states. After the first unexpected request, none of that phase is taken for a
// temporary.
TEST(Startup, AFirstIterationThatDepartsIsNotTrusted) {
  TraceBuilder t;
  for (int i = 0; i < 4; ++i) {
    if (i == 0) t.alloc(kMiB);
    t.phase(trace::PhaseKind::kOptimizer);
    for (int k = 1; k < 6; ++k) t.free(t.alloc(k * kMiB));
    t.step();
  }
  const plan::Plan plan = plan_of(t.finish());
  runtime::Matcher matcher(plan, runtime::Matcher::Part::kStartup);
  matcher.enter_phase(trace::PhaseKind::kOther, kNone, 0);
  EXPECT_EQ(matcher.match(9 * kMiB, 0).startup, kNone);
  EXPECT_EQ(matcher.match(kMiB, 0).startup, 0) << "start-up is, whatever comes before";
  matcher.enter_phase(trace::PhaseKind::kOptimizer, kNone, 0);
  EXPECT_EQ(matcher.match(kMiB, 0).decision, 0);
  EXPECT_EQ(matcher.match(3 * kMiB, 0).decision, kNone);
  EXPECT_EQ(matcher.match(4 * kMiB, 0).decision, kNone);
  matcher.end_iteration();
  runtime::Matcher next(plan);
  next.trust_like(matcher);
  next.enter_phase(trace::PhaseKind::kOptimizer, kNone, 0);
  EXPECT_FALSE(next.in_step());
}

// The first iteration of a compiled model: each layer may try kernels, on copies of its input and
// with a buffer of their own.
trace::Trace compiled_training(bool tries) {
  constexpr int kLayers = 12;
  TraceBuilder t;
  for (int k = 0; k < kLayers; ++k) t.alloc(4 * kMiB);
  const auto try_kernels = [&] {
    for (int k = 0; k < 3; ++k) {
      const auto copy = t.alloc(4 * kMiB);
      const auto buffer = t.alloc(64 * kMiB);
      t.free(copy);
      t.free(buffer);
    }
  };
  for (int i = 0; i < 4; ++i) {
    std::vector<std::int32_t> kept;
    t.phase(trace::PhaseKind::kForward, 0);
    for (int k = 0; k < kLayers; ++k) {
      if (tries && i == 0) try_kernels();
      for (const int size : {4, 4, 6, 16, 16, 4}) kept.push_back(t.alloc(size * kMiB));
    }
    t.phase(trace::PhaseKind::kBackward, 0);
    for (int k = 0; k < kLayers; ++k) {
      if (tries && i == 0) try_kernels();
      for (int n = 0; n < 6; ++n) {
        t.free(t.alloc(4 * kMiB));
        t.free(kept.back());
        kept.pop_back();
      }
    }
    t.phase(trace::PhaseKind::kOptimizer);
    t.free(t.alloc(4 * kMiB));
    t.step();
  }
  return t.finish();
}

TEST(Startup, KernelsThatOnlyTheProfileTriedCostNothing) {
  const plan::Plan plan = plan_of(compiled_training(true));
  const replay::ReplayResult result = replay::replay_planned(compiled_training(false), plan);
  EXPECT_EQ(result.misses, 0);
  EXPECT_EQ(result.peak_reserved, plan.pool + plan.resident);
}

TEST(Startup, KernelsThatOnlyTheRunTriesDisplaceFewRequests) {
  const plan::Plan plan = plan_of(compiled_training(false));
  const trace::Trace trace = compiled_training(true);
  const replay::ReplayResult result = replay::replay_planned(trace, plan);
  EXPECT_LT(result.peak_reserved, result.peak_load * 106 / 100);
}

TEST(Startup, ATraceThatBeginsLaterReservesNoRegion) {
  TraceBuilder t;
  for (int i = 0; i < 3; ++i) {
    t.phase(trace::PhaseKind::kForward, 0);
    t.free(t.alloc(6 * kMiB));
    t.step();
  }
  const plan::Plan plan = plan_of(training(4));
  EXPECT_EQ(replay::replay_planned(t.finish(), plan).peak_reserved, plan.pool);
}

TEST(Startup, IsUnrolledWithThePlan) {
  const plan::Plan plan = plan_of(training(4));
  const trace::Trace trace = replay::unroll(plan, 3);
  trace.check();
  EXPECT_EQ(trace.requests.size(), 3 * plan.decisions.size() + 4);
  const replay::ReplayResult result = replay::replay_planned(trace, plan);
  EXPECT_EQ(result.peak_reserved, plan.pool + plan.resident);
  EXPECT_EQ(result.misses, 0);
  EXPECT_EQ(result.mallocs, 2);
}

TEST(Startup, OverlapsAreRefused) {
  const plan::Plan good = plan_of(training(4));
  ASSERT_EQ(testing::complaint_of(good), "no complaint");
  std::vector<std::size_t> stay;
  std::size_t goes = 0;
  for (std::size_t i = 0; i < good.startup.size(); ++i) {
    if (good.startup[i].stays()) {
      stay.push_back(i);
    } else {
      goes = i;
    }
  }
  plan::Plan plan = good;
  plan.startup[stay[1]].offset = plan.startup[stay[0]].offset;
  EXPECT_PRED_FORMAT2(IsSubstring, "startup (as buffers, by row): buffer",
                      testing::complaint_of(plan));
  EXPECT_PRED_FORMAT2(IsSubstring, "overlap", testing::complaint_of(plan));
  plan = good;
  plan.startup[goes].offset = plan.startup[stay[0]].offset;  // the first weight is there by then
  EXPECT_PRED_FORMAT2(IsSubstring, "overlap", testing::complaint_of(plan));
  plan = good;
  plan.startup[stay[0]].offset = 0;
  EXPECT_PRED_FORMAT2(IsSubstring, "bytes at 0 stay, and are not inside the resident region",
                      testing::complaint_of(plan));
  plan = good;
  plan.startup[goes].offset = plan.pool - plan.alignment;
  EXPECT_PRED_FORMAT2(IsSubstring, "nor inside the pool below it", testing::complaint_of(plan));
  plan = good;
  for (plan::StartupRequest& r : plan.startup) {
    if (!r.stays()) r.offset = kUnplaced;
  }
  EXPECT_EQ(testing::complaint_of(plan), "no complaint");
  plan.startup[goes].offset = 0;
  plan.startup[goes].stream = 1;
  EXPECT_PRED_FORMAT2(IsSubstring, "startup, then decisions", testing::complaint_of(plan));
  plan = good;
  plan.startup[stay[0]].offset += 1;
  EXPECT_PRED_FORMAT2(IsSubstring, "startup", testing::complaint_of(plan));
  plan = good;
  plan.resident -= plan.alignment;
  EXPECT_PRED_FORMAT2(IsSubstring, "inside the resident region", testing::complaint_of(plan));
  plan = good;
  plan.resident += 1;
  EXPECT_PRED_FORMAT2(IsSubstring, "resident: ", testing::complaint_of(plan));
  plan = good;
  plan.pool += 64;  // each address is aligned, and none in its pool
  plan.resident += plan.alignment;
  for (plan::StartupRequest& r : plan.startup) {
    if (r.offset >= good.pool) r.offset += plan.alignment;
  }
  EXPECT_PRED_FORMAT2(IsSubstring, "pool: ", testing::complaint_of(plan));
  plan = good;
  std::swap(plan.startup[0], plan.startup[1]);
  EXPECT_PRED_FORMAT2(IsSubstring, "startup, row 1: out of order", testing::complaint_of(plan));
}

TEST(Startup, IsWrittenAndReadAgain) {
  const std::string text = to_json(plan_of(training(4)));
  const plan::Plan again = plan::plan_from_json(text, "");
  EXPECT_EQ(to_json(again), text);
  EXPECT_EQ(again.startup.size(), 6u);
  const auto refuses = [&](const char* column, const char* value, const char* what) {
    try {
      plan::plan_from_json(testing::with_column(text, "startup", column, value), "plan.json");
      ADD_FAILURE() << column;
    } catch (const PlanError& error) {
      EXPECT_PRED_FORMAT2(IsSubstring, what, error.what());
    }
  };
  refuses("phase", "[9,0,0,0,2,3]", "plan.json: startup, row 0: belongs to phase 9");
  refuses("after", "[-1,-1,-1,-1,0,3]", "row 4: comes after decision 0, which is none of");
  refuses("size", "[0,1,1,1,1,1]", "row 0: a size of 0");
  refuses("upper", "[0,null,null,null,null,null]", "row 0: lives from tick 0 to 0");
  refuses("stream", "[0]", "rows");
}

TEST(Startup, PhasesOfTheFirstIterationAloneAreNoMicrobatchesWhenReadAgain) {
  TraceBuilder t;
  for (int i = 0; i < 4; ++i) {
    for (std::int32_t microbatch = 0; microbatch < (i == 0 ? 2 : 1); ++microbatch) {
      t.phase(trace::PhaseKind::kForward, microbatch);
      const auto a = t.alloc(6 * kMiB);
      t.phase(trace::PhaseKind::kBackward, microbatch);
      t.free(a);
    }
    t.phase(trace::PhaseKind::kOptimizer);
    if (i == 0) t.alloc(8 * kMiB);
    t.free(t.alloc(8 * kMiB));
    t.step();
  }
  const plan::Plan plan = plan_of(t.finish());
  const plan::Plan again = plan::plan_from_json(to_json(plan), "");
  ASSERT_EQ(again.phases.size(), plan.phases.size());
  ASSERT_GT(plan.phases.size(), 3U) << "the second microbatch, which only the first iteration has";
  for (std::size_t p = 0; p < plan.phases.size(); ++p) {
    EXPECT_EQ(again.phases[p].own, plan.phases[p].own) << p;
    EXPECT_EQ(again.phases[p].upcoming, plan.phases[p].upcoming) << p;
  }
}

constexpr std::array<Bytes, 3> kWeights{60, 20, 60};  // MiB

trace::Trace weights(std::span<const Bytes> mib) {
  TraceBuilder t;
  for (const Bytes size : mib) t.alloc(size * kMiB);
  for (int i = 0; i < 4; ++i) {
    t.phase(trace::PhaseKind::kForward, 0);
    t.free(t.alloc(8 * kMiB));
    t.step();
  }
  return t.finish();
}

class StartupRun : public ::testing::Test {
 protected:
  void* allocate(Bytes size, StreamId stream = 0) {
    return allocator_.allocate(size, stream, /*for_training=*/true);
  }
  void enter(trace::PhaseKind kind, std::int32_t microbatch = kNone) {
    allocator_.loop().enter_phase(kind, microbatch, 0);
  }

  const plan::Plan plan_ = plan_of(training(4));
  device::PretendMemory device_{200 * kMiB};
  runtime::PlannedAllocator allocator_{device_};
};

// The bytes that the plan in force has of the device.
Bytes plan_bytes(runtime::PlannedAllocator& allocator) {
  const auto statistics = allocator.figures().statistics();
  return statistics.pool + statistics.resident;
}

TEST_F(StartupRun, NothingIsReservedOrServedMidWay) {
  allocator_.enable(plan_);
  EXPECT_EQ(device_.used(), plan_.pool);
  enter(trace::PhaseKind::kOther);
  for (const plan::StartupRequest& r : plan_.startup) {
    if (r.phase == 0) allocator_.deallocate(allocate(r.size));
  }
  EXPECT_EQ(allocator_.figures().statistics().startup_requests, 0);
  EXPECT_EQ(allocator_.figures().statistics().resident, 0);
}

// A state that start-up makes and each iteration replaces may take a slot.
TEST_F(StartupRun, ARequestThatTakesASlotIsOneOfThoseWithAPlace) {
  TraceBuilder t;
  t.alloc(4 * kMiB);
  auto state = t.alloc(2 * kMiB);
  for (int i = 0; i < 5; ++i) {
    t.phase(trace::PhaseKind::kForward, 0);
    t.free(t.alloc(kMiB));
    const auto next = t.alloc(2 * kMiB);
    t.free(std::exchange(state, next));
    t.free(t.alloc(3 * kMiB));
    t.step();
  }
  plan::Plan plan = plan_of(t.finish());
  ASSERT_EQ(plan.slots.size(), 1u);
  ASSERT_EQ(plan.startup.size(), 2u);
  // As if pool and region had no other place for it.
  plan.startup[1].offset = kUnplaced;
  plan.startup[1].slots = 0;
  allocator_.enable(plan, {.startup = true});
  enter(trace::PhaseKind::kOther);
  allocate(4 * kMiB);
  allocate(2 * kMiB);
  EXPECT_EQ(allocator_.figures().statistics().startup_requests, 2);
  EXPECT_EQ(allocator_.figures().statistics().startup, 2);
}

TEST_F(StartupRun, TheRegionOutlivesThePlanWithItsBlocks) {
  allocator_.enable(plan_, {.startup = true});
  EXPECT_EQ(device_.used(), plan_.pool + plan_.resident);
  enter(trace::PhaseKind::kOther);
  void* raw = allocate(8 * kMiB);
  void* weight = allocate(4 * kMiB + 100);
  allocator_.deallocate(raw);
  EXPECT_EQ(allocator_.figures().statistics().startup_requests, 2);
  EXPECT_EQ(allocator_.figures().statistics().fallback_requests, 0);
  allocator_.loop().end_iteration();
  allocator_.disable();
  EXPECT_EQ(device_.used(), plan_.resident) << "the pool is not held up by the weight";
  EXPECT_TRUE(allocator_.deallocate(weight));
  EXPECT_EQ(device_.used(), 0);
  EXPECT_EQ(device_.wrong_releases(), 0);
}

TEST_F(StartupRun, ThePoolsFiguresLeaveOutTheResidentRegion) {
  allocator_.enable(plan_, {.startup = true});
  enter(trace::PhaseKind::kOther);
  void* raw = allocate(8 * kMiB);
  allocate(4 * kMiB + 100);
  allocator_.deallocate(raw);
  enter(trace::PhaseKind::kForward, 0);
  void* activation = allocate(6 * kMiB);
  EXPECT_PRED_FORMAT2(IsSubstring, "pool holds 6.0 MiB of its 14.0 MiB",
                      allocator_.figures().out_of_memory_message(kMiB));
  try {
    allocator_.release_pool();
    ADD_FAILURE() << "the activation is live";
  } catch (const Error& error) {
    EXPECT_PRED_FORMAT2(IsSubstring, "1 tensors lie in it, of 6.0 MiB", error.what());
  }
  allocator_.deallocate(activation);
  allocator_.release_pool();
  EXPECT_EQ(device_.used(), plan_.resident) << "the weight stays where it is";
}

TEST_F(StartupRun, ARegionThatNothingCameForGoesBackAfterTheFirstIteration) {
  allocator_.enable(plan_, {.startup = true});
  enter(trace::PhaseKind::kForward, 0);
  allocator_.loop().end_iteration();
  EXPECT_EQ(device_.used(), plan_.pool);
}

// In whole chunks, where memory can leave its addresses.
TEST_F(StartupRun, PartsOfTheRegionThatNothingCameForGoBack) {
  device::PretendMemory device(200 * kMiB, /*grows=*/true);
  runtime::PlannedAllocator allocator(device);
  allocator.enable(plan_, {.startup = true});
  allocator.loop().enter_phase(trace::PhaseKind::kOther, kNone, 0);
  void* raw = allocator.allocate(8 * kMiB, 0, /*for_training=*/true);
  void* weight = allocator.allocate(4 * kMiB + 100, 0, /*for_training=*/true);
  EXPECT_TRUE(allocator.deallocate(raw));
  allocator.loop().end_iteration();
  EXPECT_LE(device.used(), plan_.pool + 8 * kMiB) << "the weight and chunks of 2 MiB at its ends";
  EXPECT_GE(device.used(), plan_.pool + 4 * kMiB);
  EXPECT_EQ(allocator.figures().statistics().reserved.current, device.used());
  allocator.inspect().check();
  EXPECT_TRUE(allocator.deallocate(weight));
  allocator.disable();
  EXPECT_EQ(device.used(), 0);
  EXPECT_EQ(device.wrong_releases(), 0);
}

// If the device can add memory later. Until then others may have it.
TEST_F(StartupRun, TheRegionGetsMemoryWithItsRequests) {
  const plan::Plan plan = plan_of(weights(kWeights));
  device::PretendMemory device(400 * kMiB, /*grows=*/true);
  runtime::PlannedAllocator allocator(device);
  allocator.enable(plan, {.startup = true});
  allocator.loop().enter_phase(trace::PhaseKind::kOther, kNone, 0);
  constexpr Bytes kChunk = 2 * kMiB;
  EXPECT_LE(device.used(), plan.pool + kChunk);
  Bytes live = 0;
  for (const Bytes mib : kWeights) {
    void* p = allocator.allocate(mib * kMiB, 0, /*for_training=*/true);
    ASSERT_NE(p, nullptr);
    live += mib * kMiB;
    EXPECT_GE(device.used(), plan.pool + live);
    EXPECT_LE(device.used(), plan.pool + live + kChunk);
    EXPECT_EQ(allocator.figures().statistics().reserved.current, device.used());
    allocator.inspect().check();
  }
  EXPECT_EQ(allocator.figures().statistics().startup_requests, 3);
}

TEST_F(StartupRun, ARequestOfARegionWhoseMemoryOthersHaveFindsThemGone) {
  const plan::Plan plan = plan_of(weights(kWeights));
  device::PretendMemory device(plan.pool + plan.resident, /*grows=*/true);
  runtime::PlannedAllocator allocator(device);
  allocator.enable(plan, {.startup = true});
  allocator.loop().enter_phase(trace::PhaseKind::kOther, kNone, 0);
  const Bytes taken = device.available() - 30 * kMiB;
  void* others = device.allocate(taken);
  ASSERT_NE(others, nullptr);
  EXPECT_THROW(allocator.allocate(60 * kMiB, 0, /*for_training=*/true), OutOfMemory);
  EXPECT_EQ(allocator.figures().statistics().reserved.current, device.used() - taken);
  allocator.inspect().check();
  device.release(others, taken);
  void* weight = allocator.allocate(20 * kMiB, 0, /*for_training=*/true);
  EXPECT_EQ(allocator.figures().statistics().startup_requests, 1);
  allocator.inspect().check();
  EXPECT_TRUE(allocator.deallocate(weight));
  allocator.disable();
  EXPECT_EQ(device.used(), 0);
  EXPECT_EQ(device.wrong_releases(), 0);
}

// A model that another one replaces. A wait for a few bytes is not worth it.
TEST_F(StartupRun, LargePartsOfTheRegionGoBackOnceTheyAreFreed) {
  const plan::Plan plan = plan_of(weights(kWeights));
  device::PretendMemory device(400 * kMiB, /*grows=*/true);
  runtime::PlannedAllocator allocator(device);
  allocator.enable(plan, {.startup = true});
  allocator.loop().enter_phase(trace::PhaseKind::kOther, kNone, 0);
  std::vector<void*> weights;
  for (const Bytes mib : kWeights) {
    weights.push_back(allocator.allocate(mib * kMiB, 0, /*for_training=*/true));
  }
  EXPECT_EQ(allocator.figures().statistics().startup_requests, 3);
  allocator.loop().end_iteration();
  const Bytes all = device.used();
  EXPECT_EQ(all, plan.pool + 140 * kMiB);
  EXPECT_TRUE(allocator.deallocate(weights[1]));
  allocator.loop().end_iteration();
  EXPECT_EQ(device.used(), all);
  EXPECT_TRUE(allocator.deallocate(weights[0]));
  EXPECT_EQ(device.used(), all) << "not while it trains";
  allocator.loop().end_iteration();
  EXPECT_LE(device.used(), all - 76 * kMiB) << "whole chunks of both";
  EXPECT_EQ(allocator.figures().statistics().reserved.current, device.used());
  allocator.inspect().check();
  EXPECT_TRUE(allocator.deallocate(weights[2]));
  EXPECT_EQ(device.used(), plan.pool);
  EXPECT_EQ(device.wrong_releases(), 0);
}

TEST_F(StartupRun, NothingChangesIfTheRegionDoesNotFit) {
  device::PretendMemory small(plan_.pool + plan_.resident - 1);
  runtime::PlannedAllocator allocator(small);
  EXPECT_THROW(allocator.enable(plan_, {.startup = true}), OutOfMemory);
  EXPECT_EQ(small.used(), 0);
  EXPECT_FALSE(allocator.enabled());
  allocator.enable(plan_);
}

// With one more request of the temporaries' size, every weight could be taken for a temporary.
TEST_F(StartupRun, ATemporaryThatStaysIsTheOnlyOne) {
  TraceBuilder t;
  for (int i = 0; i < 8; ++i) {
    t.free(t.alloc(kMiB));
    t.alloc(kMiB);
  }
  for (int i = 0; i < 3; ++i) {
    t.phase(trace::PhaseKind::kForward, 0);
    t.free(t.alloc(9 * kMiB));
    t.step();
  }
  const plan::Plan plan = plan_of(t.finish());
  ASSERT_EQ(plan.startup.size(), 16u);
  allocator_.enable(plan, {.startup = true});
  enter(trace::PhaseKind::kOther);
  allocator_.deallocate(allocate(kMiB));
  allocator_.deallocate(allocate(kMiB));  // too many: it has the first weight's place
  for (int i = 0; i < 7; ++i) {
    allocate(kMiB);  // weight
    allocator_.deallocate(allocate(kMiB));
  }
  allocator_.inspect().check();
  EXPECT_EQ(allocator_.figures().statistics().live_blocks, 1) << "in the pool";
  enter(trace::PhaseKind::kForward, 0);
}

// As threads of a communication library free them.
TEST_F(StartupRun, TinyTemporariesMayBeFreedLate) {
  constexpr int kMessages = 12, kLate = 5;
  TraceBuilder t;
  t.alloc(kMiB);
  for (int i = 0; i < kMessages; ++i) t.free(t.alloc(46));
  t.free(t.alloc(kMiB));
  for (int i = 0; i < 3; ++i) {
    t.phase(trace::PhaseKind::kForward, 0);
    t.free(t.alloc(9 * kMiB));
    t.step();
  }
  const plan::Plan plan = plan_of(t.finish());
  EXPECT_EQ(plan.pool, 9 * kMiB);
  EXPECT_EQ(plan.resident, kMiB);
  allocator_.enable(plan, {.startup = true});
  enter(trace::PhaseKind::kOther);
  allocate(kMiB);
  std::vector<void*> messages;
  for (int i = 0; i < kMessages; ++i) {
    messages.push_back(allocate(46));
    if (i >= kLate) allocator_.deallocate(messages[static_cast<std::size_t>(i - kLate)]);
  }
  allocator_.deallocate(allocate(kMiB));
  allocator_.inspect().check();
  EXPECT_EQ(allocator_.figures().statistics().startup_requests, kMessages + 2);
}

TEST_F(StartupRun, ATemporaryWithoutAPlaceLiesInIdleAddresses) {
  TraceBuilder t;
  for (const Bytes size : {9 * kMiB, 3 * kMiB}) {
    const auto raw = t.alloc(size);
    t.alloc(3 * kMiB);
    t.free(raw);
  }
  for (int i = 0; i < 3; ++i) {
    t.phase(trace::PhaseKind::kForward, 0);
    t.free(t.alloc(11 * kMiB));
    t.step();
  }
  plan::Plan plan = plan_of(t.finish());
  for (plan::StartupRequest& r : plan.startup) {
    if (!r.stays()) r.offset = kUnplaced;
  }
  allocator_.enable(plan, {.startup = true});
  enter(trace::PhaseKind::kOther);
  const auto beside = [this] { return device_.used() - plan_bytes(allocator_); };
  void* raw = allocate(9 * kMiB);
  EXPECT_EQ(beside(), 0);
  allocate(3 * kMiB);  // a weight
  allocator_.deallocate(raw);
  allocate(3 * kMiB);
  EXPECT_GT(beside(), 0) << "it has the size of the weights, and would be one of them";
  allocator_.inspect().check();
}

TEST_F(StartupRun, TheFirstIterationIsServedAndTheNextAreTrusted) {
  allocator_.enable(plan_, {.startup = true});
  for (int i = 0; i < 2; ++i) {
    enter(trace::PhaseKind::kOther);
    enter(trace::PhaseKind::kForward, 0);
    void* a = allocate(6 * kMiB);
    void* b = allocate(5 * kMiB);
    enter(trace::PhaseKind::kBackward, 0);
    allocator_.deallocate(allocate(3 * kMiB));
    if (i == 0) allocate(3 * kMiB);
    if (i == 1) allocate(7 * kMiB);  // new, and no reason to mistrust what follows
    allocator_.deallocate(allocate(3 * kMiB));
    allocator_.deallocate(b);
    allocator_.deallocate(a);
    enter(trace::PhaseKind::kOptimizer);
    if (i == 0) allocate(8 * kMiB);
    allocator_.deallocate(allocate(8 * kMiB));
    allocator_.loop().end_iteration();
    allocator_.inspect().check();
  }
  EXPECT_EQ(allocator_.figures().statistics().misses, 0);
  EXPECT_EQ(allocator_.figures().statistics().hits, 10);
  EXPECT_EQ(allocator_.figures().statistics().startup_requests, 2) << "the weights never came";
  EXPECT_EQ(allocator_.figures().statistics().startup, 6);
}

// Live blocks must be disjoint, and of a stream's own addresses.
class Overlaps {
 public:
  void add(void* p, Bytes size, StreamId stream) {
    const auto begin = reinterpret_cast<std::uintptr_t>(p);
    const auto end = begin + static_cast<std::uintptr_t>(size);
    const auto next = live_.lower_bound(begin);
    ASSERT_TRUE(next == live_.end() || end <= next->first) << "two live blocks overlap";
    ASSERT_TRUE(next == live_.begin() || std::prev(next)->second.end <= begin)
        << "two live blocks overlap";
    live_[begin] = {end, stream};
  }
  void remove(void* p) { live_.erase(reinterpret_cast<std::uintptr_t>(p)); }

 private:
  struct Block {
    std::uintptr_t end;
    StreamId stream;
  };
  std::map<std::uintptr_t, Block> live_;
};

// A random program: start-up with weights and temporaries, and iterations, of which the first makes
// permanent blocks. It is a list of actions, so that the test can run it with departures.
struct Action {
  enum : std::uint8_t { kAlloc, kFree, kPhase, kStep } what = kAlloc;
  Bytes size = 0;
  StreamId stream = 0;
  int handle = 0;  // of the request
  trace::PhaseKind kind = trace::PhaseKind::kOther;
  std::int32_t microbatch = kNone;
};

// If each has a size of its own, no request of the first iteration alone resembles one that recurs.
// `unit`: sizes are up to 12 times as large.
std::vector<Action> random_program(std::mt19937& random, StreamId streams, bool sizes, Bytes unit) {
  constexpr int kIterations = 4;
  const int add = sizes ? 6 : 0;
  const auto pick = [&](int low, int high) {
    return std::uniform_int_distribution<int>(low, high)(random);
  };
  const unsigned seed = random();
  std::vector<Action> program;
  int handles = 0;
  const auto alloc = [&](int size, int stream) {
    program.push_back({Action::kAlloc, size * unit, stream, handles});
    return handles++;
  };
  const auto release = [&](int handle) { program.push_back({Action::kFree, 0, 0, handle}); };
  for (int i = pick(0, 12); i > 0; --i) {
    const int stream = pick(0, streams - 1);
    const int temporary = alloc(pick(1, 6), stream);
    const bool early = pick(0, 1) == 0;
    if (early) release(temporary);
    if (pick(0, 3) > 0) alloc(pick(1, 6), stream);
    if (!early) release(temporary);
  }
  for (int t = 0; t < kIterations; ++t) {
    std::mt19937 same(seed);  // every iteration alike
    const auto again = [&](int low, int high) {
      return std::uniform_int_distribution<int>(low, high)(same);
    };
    std::vector<int> live;
    for (int m = 0; m < 3; ++m) {
      program.push_back(
          {.what = Action::kPhase, .kind = trace::PhaseKind::kForward, .microbatch = m});
      for (int i = again(1, 8); i > 0; --i) {
        const int size = again(1, 6);
        live.push_back(alloc(size, again(0, streams - 1)));
        if (t == 0 && pick(0, 4) == 0) alloc(add + pick(1, 6), pick(0, streams - 1));
        if (t == 0 && pick(0, 6) == 0) release(alloc(add + pick(1, 6), pick(0, streams - 1)));
        if (again(0, 1) == 0) {
          release(live.back());
          live.pop_back();
        }
      }
    }
    for (; !live.empty(); live.pop_back()) release(live.back());
    program.push_back({.what = Action::kStep});
  }
  return program;
}

plan::Plan plan_of(const std::vector<Action>& program) {
  TraceBuilder t;
  std::map<int, std::int32_t> requests;
  for (const Action& a : program) {
    if (a.what == Action::kAlloc) requests[a.handle] = t.alloc(a.size, a.stream);
    if (a.what == Action::kFree) t.free(requests[a.handle]);
    if (a.what == Action::kPhase) t.phase(a.kind, a.microbatch);
    if (a.what == Action::kStep) t.step();
  }
  return plan::make_plan(profile::profile_iteration(t.finish()), {.time_limit = 0});
}

constexpr Bytes kSmall = 700;
constexpr Bytes kLarge = 700'000;  // so that a region has many chunks

// Runs the program with a departure in about one of `every` actions; 0: none. Large ones on a
// device whose memory moves.
void run(const std::vector<Action>& program, const plan::Plan& plan, Bytes unit,
         std::mt19937& random, int every, runtime::Statistics& statistics) {
  device::PretendMemory device(Bytes{1} << 30, /*grows=*/unit == kLarge);
  runtime::PlannedAllocator allocator(device);
  Overlaps overlaps;
  std::map<int, void*> live;
  std::vector<int> late;
  int foreign = -1;
  const auto departs = [&] { return every > 0 && static_cast<int>(random() % every) == 0; };
  const auto allocate = [&](int handle, Bytes size, StreamId stream) {
    void* p = allocator.allocate(size, stream, /*for_training=*/true);
    ASSERT_NE(p, nullptr);
    overlaps.add(p, size, stream);
    live[handle] = p;
  };
  const auto release = [&](int handle) {
    const auto it = live.find(handle);
    if (it == live.end()) return;  // it never came
    overlaps.remove(it->second);
    ASSERT_TRUE(allocator.deallocate(it->second));
    live.erase(it);
  };
  allocator.enable(plan, {.startup = true});
  allocator.loop().enter_phase(trace::PhaseKind::kOther, kNone, 0);
  for (const Action& a : program) {
    if (departs()) allocate(foreign--, static_cast<Bytes>(random() % 6 + 1) * unit, a.stream);
    if (departs() && foreign < -1) release(foreign + 1 + static_cast<int>(random() % 3));
    while (!late.empty() && departs()) {
      release(late.back());
      late.pop_back();
    }
    switch (a.what) {
      case Action::kAlloc:
        if (!departs()) allocate(a.handle, departs() ? a.size + unit - 100 : a.size, a.stream);
        break;
      case Action::kFree:
        if (departs()) {
          late.push_back(a.handle);
        } else {
          release(a.handle);
        }
        break;
      case Action::kPhase:
        allocator.loop().enter_phase(a.kind, a.microbatch, 0);
        break;
      case Action::kStep:
        allocator.loop().end_iteration();
        allocator.loop().enter_phase(trace::PhaseKind::kOther, kNone, 0);
        break;
    }
    if (::testing::Test::HasFatalFailure()) return;
    allocator.inspect().check();
  }
  statistics = allocator.figures().statistics();
  while (!live.empty()) release(live.begin()->first);
  allocator.disable();
  EXPECT_EQ(device.used(), 0);
  EXPECT_EQ(device.wrong_releases(), 0);
}

class RandomStartup : public ::testing::TestWithParam<unsigned> {};

TEST_P(RandomStartup, AsProfiledIsServedThroughout) {
  for (const Bytes unit : {kSmall, kLarge}) {
    std::mt19937 random(GetParam());
    const std::vector<Action> program = random_program(random, /*streams=*/1, /*sizes=*/true, unit);
    const plan::Plan plan = plan_of(program);
    runtime::Statistics statistics;
    run(program, plan, unit, random, /*every=*/0, statistics);
    EXPECT_EQ(statistics.misses, 0);
    EXPECT_EQ(statistics.conflicts, 0);
    EXPECT_EQ(statistics.startup_requests, statistics.startup);
    for (const plan::StartupRequest& r : plan.startup) {
      EXPECT_TRUE(!r.stays() || r.offset != kUnplaced);
    }
  }
}

TEST_P(RandomStartup, NoTwoBlocksOverlapAfterAnyDeparture) {
  for (const Bytes unit : {kSmall, kLarge}) {
    std::mt19937 random(GetParam());
    const std::vector<Action> program =
        random_program(random, static_cast<StreamId>(1 + GetParam() % 3), /*sizes=*/false, unit);
    const plan::Plan plan = plan_of(program);
    for (const int every : {3, 10, 40}) {
      runtime::Statistics statistics;
      run(program, plan, unit, random, every, statistics);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, RandomStartup, ::testing::Range(0u, 60u));

}  // namespace
}  // namespace stalloc
