// A pool whose memory goes while blocks lie in it: theirs stays, and the rest comes back.
#include "runtime/partial_release.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "base/error.h"
#include "checked_allocator.h"
#include "device/host.h"
#include "device/pretend.h"
#include "marked_blocks.h"
#include "plans.h"
#include "runtime/planned_allocator.h"

namespace stalloc {
namespace {

using trace::PhaseKind;

constexpr Bytes kMiB = Bytes{1} << 20;

// Five decisions side by side, one after the other in time: 80 MiB.
plan::Plan five_blocks() {
  std::vector<plan::Decision> decisions;
  for (Tick i = 0; i < 5; ++i) {
    decisions.push_back(testing::decision(16 * kMiB, i * 16 * kMiB, 2 * i, 10));
  }
  return testing::plan_of(decisions, 10);
}

class PartialRelease : public testing::CheckedAllocator {
 protected:
  PartialRelease() : CheckedAllocator(200 * kMiB) { allocator_.enable(five_blocks()); }

  std::vector<void*> forward() {
    allocator_.loop().enter_phase(PhaseKind::kForward, 0, 0);
    std::vector<void*> blocks;
    for (int i = 0; i < 5; ++i) blocks.push_back(allocate(16 * kMiB));
    return blocks;
  }
  void end_iteration() {
    allocator_.loop().enter_phase(PhaseKind::kOther, 0, 0);
    allocator_.loop().end_iteration();
  }
  // Trains an iteration. Returns the number of decisions at their addresses.
  std::int64_t train() {
    const std::int64_t hits = statistics().hits;
    for (void* p : forward()) free(p);
    end_iteration();
    return statistics().hits - hits;
  }
  // An iteration of which the third block stays.
  void* train_and_keep() {
    std::vector<void*> blocks = forward();
    void* kept = blocks[2];
    for (void* p : blocks) {
      if (p != kept) free(p);
    }
    end_iteration();
    return kept;
  }
  void release_partly() {
    allocator_.release_pool(/*partly=*/true);
    allocator_.inspect().check();
  }
  void acquire() {
    allocator_.acquire_pool();
    allocator_.inspect().check();
  }
};

TEST_F(PartialRelease, OnlyTheMemoryOfABlockStays) {
  void* kept = train_and_keep();
  EXPECT_THROW(allocator_.release_pool(), Error) << "unless it is asked for";
  EXPECT_EQ(device_.used(), 80 * kMiB);
  release_partly();
  EXPECT_EQ(device_.used(), 16 * kMiB);
  EXPECT_EQ(statistics().reserved.current, 16 * kMiB);
  const runtime::Inspection::Piece piece = allocator_.inspect().pool_of(kept);
  EXPECT_EQ(piece.begin, kept);
  EXPECT_EQ(piece.size, 16 * kMiB);
  release_partly();  // again is nothing
  EXPECT_EQ(device_.used(), 16 * kMiB);
  acquire();
  EXPECT_EQ(device_.used(), 80 * kMiB);
  EXPECT_EQ(statistics().reserved.current, 80 * kMiB);
  free(kept);
  EXPECT_EQ(train(), 5);
  EXPECT_EQ(device_.used(), 80 * kMiB);
}

TEST_F(PartialRelease, APoolWithoutABlockGoesAsAWhole) {
  train();
  release_partly();
  EXPECT_EQ(device_.used(), 0);
  acquire();
  EXPECT_EQ(train(), 5);
}

TEST_F(PartialRelease, MemoryOfABlockThatHasGoneGoesWithTheNextCall) {
  void* kept = train_and_keep();
  release_partly();
  free(kept);
  EXPECT_EQ(device_.used(), 16 * kMiB);
  release_partly();
  EXPECT_EQ(device_.used(), 0);
  EXPECT_EQ(statistics().reserved.current, 0);
  release_partly();  // there is no more
  acquire();
  EXPECT_EQ(device_.used(), 80 * kMiB);
  EXPECT_EQ(train(), 5);
}

TEST_F(PartialRelease, NoRequestGetsAnAddressMeanwhile) {
  void* kept = train_and_keep();
  release_partly();
  const std::int64_t fallback = statistics().fallback_requests;
  EXPECT_EQ(train(), 0);
  EXPECT_EQ(statistics().fallback_requests, fallback + 5);
  EXPECT_EQ(allocator_.rescue(kMiB, 0), nullptr);
  free(kept);
  EXPECT_EQ(train(), 0) << "the memory of the block does not serve alone";
  allocator_.release_cached();
  EXPECT_EQ(device_.used(), 16 * kMiB);
  acquire();
  EXPECT_EQ(train(), 5);
}

TEST_F(PartialRelease, APoolThatCannotComeBackStaysAway) {
  void* kept = train_and_keep();
  release_partly();
  void* engine = device_.allocate(150 * kMiB);
  EXPECT_THROW(allocator_.acquire_pool(), OutOfMemory);
  EXPECT_EQ(device_.used(), (150 + 16) * kMiB) << "nothing was taken";
  allocator_.inspect().check();
  device_.release(engine, 150 * kMiB);
  for (const int call : {1, 2}) {  // the first half comes back, the second does not
    device_.fail_at(call);
    EXPECT_THROW(allocator_.acquire_pool(), OutOfMemory) << call;
    EXPECT_EQ(device_.used(), 16 * kMiB) << call;
    allocator_.inspect().check();
  }
  acquire();
  free(kept);
  EXPECT_EQ(train(), 5);
}

TEST_F(PartialRelease, APlanThatEndsMeanwhileLeavesTheBlock) {
  void* kept = train_and_keep();
  release_partly();
  allocator_.disable();
  EXPECT_EQ(statistics().reserved.current, 16 * kMiB);
  allocator_.enable(five_blocks());
  EXPECT_EQ(device_.used(), (16 + 80) * kMiB);
  EXPECT_EQ(train(), 5);
  free(kept);
  EXPECT_EQ(device_.used(), 80 * kMiB) << "the old pool goes with its last block";
}

// Requests that no plan knows, and a decision.
TEST_F(PartialRelease, ASmallBlockKeepsMemoryOnce) {
  constexpr int kDecisions = 200;
  std::vector<plan::Decision> decisions;
  for (Tick i = 0; i < kDecisions; ++i)
    decisions.push_back(testing::decision(2048, i * 2048, 2 * i, 2 * i + 2));
  decisions.push_back(testing::decision(64 * kMiB, kMiB, 1, 2 * kDecisions));
  allocator_.enable(testing::plan_of(decisions, 2 * kDecisions));
  for (int i = 0; i < 3; ++i) {
    allocator_.loop().enter_phase(PhaseKind::kForward, 0, 0);
    std::vector<void*> kept = {allocate(2048), allocate(100)};
    void* large = allocate(64 * kMiB);
    free(large);
    release_partly();
    EXPECT_EQ(statistics().live_blocks, i == 0 ? 2 : 0) << i;
    acquire();
    for (void* p : kept) free(p);
    end_iteration();
  }
}

TEST_F(PartialRelease, AZoneOfAnEvaluationGivesWay) {
  train();
  for (int i = 0; i < 3; ++i) {
    allocator_.loop().enter_unplanned();
    allocator_.loop().begin_evaluation();
    void* hidden = allocate(30 * kMiB);
    if (i == 2) {
      release_partly();
      EXPECT_LE(device_.used(), 34 * kMiB) << "and the chunks at its ends";
      acquire();
    }
    free(hidden);
    allocator_.loop().leave_unplanned();
    EXPECT_EQ(train(), 5) << i;
  }
}

TEST_F(PartialRelease, AddressesThatLackedMemoryBeforeLackItAfterwards) {
  train();
  allocator_.loop().enter_unplanned();
  allocator_.loop().begin_evaluation();
  std::vector<void*> blocks;
  for (int i = 0; i < 4; ++i) blocks.push_back(allocate(20 * kMiB));
  free(blocks[0]);
  free(blocks[2]);
  void* large = allocate(36 * kMiB);  // of both holes, behind the pool
  free(blocks[1]);
  release_partly();
  EXPECT_LE(device_.used(), (36 + 20 + 6) * kMiB);
  acquire();
  EXPECT_EQ(device_.used(), 80 * kMiB);
  free(large);
  free(blocks[3]);
  allocator_.loop().leave_unplanned();
  EXPECT_EQ(train(), 5);
}

// A region with a block in it closes, and opens again around the block.
TEST(PartialReleaseOfARegion, ABlockInItStays) {
  plan::Plan plan = testing::plan_of({testing::decision(16 * kMiB, 0, 0, 4)}, 4);
  plan.groups = {testing::group(0, 16 * kMiB, 16 * kMiB, 1, 3)};
  plan.pool = plan.bound = 32 * kMiB;
  device::PretendMemory device(200 * kMiB, /*grows=*/true);
  runtime::PlannedAllocator allocator(device);
  allocator.enable(plan);
  const auto dynamic = [&] {
    allocator.loop().enter_dynamic();
    void* p = allocator.allocate(4 * kMiB, 0, true);
    allocator.loop().leave_dynamic();
    allocator.inspect().check();
    return p;
  };
  allocator.loop().enter_phase(PhaseKind::kForward, 0, 0);
  void* first = allocator.allocate(16 * kMiB, 0, true);
  void* inside = dynamic();
  EXPECT_TRUE(allocator.deallocate(first));
  allocator.release_pool(/*partly=*/true);
  allocator.inspect().check();
  EXPECT_EQ(device.used(), 4 * kMiB);
  allocator.acquire_pool();
  void* next = dynamic();
  EXPECT_EQ(allocator.figures().statistics().dynamic_region_requests, 2);
  EXPECT_NE(next, inside);
  EXPECT_TRUE(allocator.deallocate(inside));
  EXPECT_TRUE(allocator.deallocate(next));
}

// Two slots: the one with a block keeps its memory.
TEST(PartialReleaseOfSlots, AFreeSlotGoes) {
  plan::Decision scores = testing::decision(16 * kMiB, 0, 0, 4);
  scores.over = 1;
  scores.slots = 0;
  plan::Plan plan = testing::plan_of({scores, testing::decision(16 * kMiB, 32 * kMiB, 1, 2)}, 4);
  plan.slots.push_back({.size = 16 * kMiB, .offset = 0, .count = 2});
  plan.check();
  device::PretendMemory device(200 * kMiB, /*grows=*/true);
  runtime::PlannedAllocator allocator(device);
  allocator.enable(plan);
  void* held = nullptr;
  for (int i = 0; i < 4; ++i) {
    allocator.loop().enter_phase(PhaseKind::kForward, 0, 0);
    void* next = allocator.allocate(16 * kMiB, 0, true);
    if (held) {
      EXPECT_TRUE(allocator.deallocate(held));
    }
    held = next;
    EXPECT_TRUE(allocator.deallocate(allocator.allocate(16 * kMiB, 0, true)));
    allocator.loop().enter_phase(PhaseKind::kOther, 0, 0);
    allocator.release_pool(/*partly=*/true);
    allocator.inspect().check();
    EXPECT_EQ(device.used(), 16 * kMiB);
    allocator.acquire_pool();
    allocator.inspect().check();
    allocator.loop().end_iteration();
  }
  EXPECT_EQ(allocator.figures().statistics().hits, 8);
  EXPECT_TRUE(allocator.deallocate(held));
}

// Plain memory of one piece stays while a block lies in it.
TEST(PartialReleaseOfPlainMemory, OnePieceStays) {
  device::PretendMemory device(200 * kMiB);
  runtime::PlannedAllocator allocator(device);
  allocator.enable(five_blocks());
  allocator.loop().enter_phase(PhaseKind::kForward, 0, 0);
  void* p = allocator.allocate(16 * kMiB, 0, true);
  EXPECT_THROW(allocator.release_pool(/*partly=*/true), Error);
  EXPECT_EQ(device.used(), 80 * kMiB);
  EXPECT_TRUE(allocator.deallocate(p));
  allocator.release_pool(/*partly=*/true);
  EXPECT_EQ(device.used(), 0);
}

// Three pieces of 16 MiB with walls between them, one decision in each.
class PartialReleaseOfPieces : public ::testing::Test {
 protected:
  static constexpr Offset kStep = 16 * kMiB + kDefaultAlignment;

  static plan::Plan three_pieces() {
    std::vector<plan::Decision> decisions;
    for (Tick i = 0; i < 3; ++i) decisions.push_back(testing::decision(16 * kMiB, i * kStep, i, 4));
    plan::Plan plan = testing::plan_of(decisions, 4);
    plan.walls = {16 * kMiB, 16 * kMiB + kStep};
    plan.check();
    return plan;
  }
  PartialReleaseOfPieces() : pool_(three_pieces(), take()) {
    pool_.first_size = 16 * kMiB;
    for (const int i : {1, 2}) pool_.more.push_back({take(), 16 * kMiB, i * kStep});
  }
  ~PartialReleaseOfPieces() override {
    for (const runtime::Pool::Piece& piece : pool_.pieces()) {
      device_.release(piece.memory, piece.size);
    }
    EXPECT_EQ(device_.used(), 0);
    EXPECT_EQ(device_.wrong_releases(), 0);
  }
  std::byte* take() { return static_cast<std::byte*>(device_.allocate(16 * kMiB)); }

  device::PretendMemory device_{64 * kMiB};
  runtime::Pool pool_;
  runtime::PartialRelease release_{device_};
};

TEST_F(PartialReleaseOfPieces, PiecesWithoutABlockGo) {
  for (plan::DecisionIndex d(0); d < plan::DecisionIndex(3); ++d) {
    std::byte* p = pool_.address(pool_.space.place(d));
    ASSERT_TRUE(release_.release(pool_));
    pool_.space.check();
    EXPECT_EQ(device_.used(), 16 * kMiB);
    EXPECT_EQ(release_.size(), 32 * kMiB);
    EXPECT_EQ(pool_.mapped().size(), 1u);
    EXPECT_TRUE(pool_.contains(p));
    EXPECT_EQ(pool_.offset_of(p), d.number() * kStep);

    device_.fail_at(2);
    EXPECT_FALSE(release_.acquire(pool_));
    EXPECT_EQ(device_.used(), 16 * kMiB);
    EXPECT_EQ(release_.size(), 32 * kMiB);
    ASSERT_TRUE(release_.acquire(pool_));
    pool_.space.check();
    EXPECT_EQ(pool_.mapped().size(), 3u);
    EXPECT_EQ(pool_.release(p, /*capturing=*/false).decision, d);
    pool_.space.end_iteration();
  }
}

TEST_F(PartialReleaseOfPieces, ABlockInEachKeepsAll) {
  for (plan::DecisionIndex d(0); d < plan::DecisionIndex(3); ++d) pool_.space.place(d);
  EXPECT_FALSE(release_.release(pool_));
  EXPECT_FALSE(release_.is_partial());
  EXPECT_EQ(device_.used(), 48 * kMiB);
}

// Memory of the machine: each block keeps its content while the rest of the pool comes and goes.
TEST(PartialReleaseOfHostMemory, NoBlockLosesItsContent) {
  for (unsigned seed = 0; seed < 6; ++seed) {
    std::mt19937 random(seed);
    device::HostMemory device(Bytes{1} << 30);
    runtime::PlannedAllocator allocator(device);
    const plan::Plan plan = testing::with_groups(
        testing::random_plan(random, 60, 3, 1, solve::Streams::kSeparate, 30'000), 4);
    allocator.enable(plan);
    testing::MarkedBlocks live(allocator, random);
    std::int64_t releases = 0;
    bool away = false;
    const auto release = [&] {
      const Bytes before = allocator.figures().statistics().reserved.current;
      bool is_full = false;  // blocks lie everywhere
      try {
        allocator.release_pool(/*partly=*/true);
      } catch (const Error&) {
        is_full = true;
      }
      const Bytes after = allocator.figures().statistics().reserved.current;
      if (away) {
        EXPECT_LE(after, before) << "what blocks had that have gone";
      } else {
        EXPECT_EQ(after < before, !is_full);
      }
      releases += away || is_full ? 0 : 1;
      away = away || !is_full;
      allocator.inspect().check();
    };
    const auto acquire = [&] {
      allocator.acquire_pool();
      away = false;
    };
    for (int iteration = 0; iteration < 30; ++iteration) {
      PhaseIndex phase = kNone;
      for (const plan::Decision& d : plan.decisions) {
        if (d.phase != phase) {
          phase = d.phase;
          allocator.loop().enter_phase(PhaseKind::kForward, phase.number(), 0);
        }
        if (live.below(3) == 0) {
          live.allocate_dynamic(1 + live.below(60'000));
        }
        live.allocate(d.size);
        if (live.size() > 8 || live.below(2) == 0) live.free_any();
        if (live.below(30) == 0) release();
        if (live.below(10) == 0) acquire();
      }
      allocator.loop().enter_phase(PhaseKind::kOther, 0, 0);
      while (live.size() > static_cast<std::size_t>(live.below(4))) live.free_any();
      release();
      live.allocate(1 + live.below(plan.pool), live.below(2) == 0);
      allocator.loop().enter_unplanned();
      allocator.loop().begin_evaluation();
      live.allocate(1 + live.below(plan.pool / 4));
      if (live.below(2) == 0) release();
      live.allocate(1 + live.below(plan.pool / 4));
      allocator.loop().leave_unplanned();
      if (live.below(2) == 0) live.free_any();
      if (live.below(4) > 0) acquire();
      allocator.loop().end_iteration();
    }
    EXPECT_GT(releases, 30);
    while (!live.empty()) live.free_any();
    acquire();
    allocator.disable();
    allocator.release_cached();
    EXPECT_EQ(device.available(), std::min(Bytes{1} << 30, device::HostMemory(0).available()))
        << "all was given back";
  }
}

}  // namespace
}  // namespace stalloc
