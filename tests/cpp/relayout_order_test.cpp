// Blocks that are live when a layout follows another: a stream that gets their addresses later
// waits for theirs.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

#include "device/pretend.h"
#include "fake_streams.h"
#include "plans.h"
#include "runtime/caching_pool.h"
#include "runtime/pools.h"
#include "solve/portfolio.h"

namespace stalloc {
namespace {

using testing::FakeStreams;

constexpr Bytes kMiB = Bytes{1} << 20;
constexpr StreamId kMain = 0;
constexpr StreamId kSide = 1;

// A decision of the main stream and a later one of the side stream.
plan::Plan layout_of(Offset main, Offset side, solve::Streams streams) {
  plan::Plan plan =
      testing::plan_of({{.size = kMiB, .offset = main, .lower = 0, .upper = 4, .stream = kMain},
                        {.size = kMiB, .offset = side, .lower = 5, .upper = 7, .stream = kSide}},
                       8);
  plan.streams = streams;
  plan.pool = plan.bound = 3 * kMiB;
  plan.check();
  return plan;
}

class RelayoutOrder : public ::testing::TestWithParam<solve::Streams> {
 protected:
  RelayoutOrder() { table_.id_of(FakeStreams::stream(7)); }

  void use(Offset offset, StreamId stream) {
    const auto begin = reinterpret_cast<std::uintptr_t>(pool().address(offset));
    streams_.use(begin, begin + kMiB, table_.handle_of(stream));
  }
  // The block at `offset` goes to `stream`, which works on it.
  void hand_over(Offset offset, StreamId stream) {
    ASSERT_NE(offset, kUnplaced);
    ASSERT_TRUE(pool().hand_over(offset, /*capturing=*/false));
    const auto begin = reinterpret_cast<std::uintptr_t>(pool().address(offset));
    streams_.hand_out(begin, begin + kMiB, table_.handle_of(stream));
    use(offset, stream);
  }
  runtime::Pool& pool() { return *pools_.active(); }
  runtime::StaticPool& space() { return pool().space; }

  device::PretendMemory device_{100 * kMiB};
  FakeStreams streams_;
  runtime::StreamTable table_;
  runtime::CachingPool fallback_{device_};
  runtime::Pools pools_{device_, fallback_, &streams_, &table_};
};

TEST_P(RelayoutOrder, ADecisionThatStaysWhereItWasIsWaitedFor) {
  pools_.enable(layout_of(0, kMiB, GetParam()), /*with_resident=*/false);
  const plan::DecisionIndex main(0);
  const plan::DecisionIndex side(1);
  const Offset a = space().place(main);
  hand_over(a, kMain);
  const plan::Plan next = layout_of(2 * kMiB, 0, GetParam());
  pools_.relayout(next);
  use(a, kMain);
  pool().release(pool().address(a), /*capturing=*/false);
  const Offset b = space().place(side);
  EXPECT_EQ(b, a);
  hand_over(b, kSide);
  EXPECT_EQ(streams_.hazards, 0);
  EXPECT_EQ(pool().waits(), 1);
  pools_.relayout(next);
  EXPECT_EQ(pool().waits(), 1) << "of all layouts";
}

TEST_P(RelayoutOrder, ABlockThatThePlanDoesNotKnowIsWaitedFor) {
  pools_.enable(layout_of(0, kMiB, GetParam()), /*with_resident=*/false);
  const Offset a = space().place_idle(kMiB, kMain);
  ASSERT_NE(a, kUnplaced);
  hand_over(a, kMain);
  pools_.relayout(layout_of(a == 0 ? kMiB : 0, a, GetParam()));
  use(a, kMain);
  pool().release(pool().address(a), /*capturing=*/false);
  const Offset b = space().place(plan::DecisionIndex(1));
  EXPECT_EQ(b, a);
  hand_over(b, kSide);
  EXPECT_EQ(streams_.hazards, 0);
}

// Another layout of the same decisions.
plan::Plan other_layout(plan::Plan plan, const char* algorithm) {
  solve::Problem problem = plan::problem_of(plan);
  const solve::Layout layout = solve::solve(problem, {.algorithm = algorithm}, {}).layout;
  for (std::size_t i = 0; i < plan.decisions.size(); ++i) {
    plan.decisions[i].offset = layout.offsets[i];
  }
  plan.pool = layout.height;
  plan.check();
  return plan;
}

// Random plans on three streams, whose layouts follow each other at any moment.
TEST_P(RelayoutOrder, NoAddressIsUsedBeforeItsUsersAreDone) {
  int followed = 0;
  for (unsigned seed = 0; seed < 20; ++seed) {
    std::mt19937 random(seed);
    const auto chance = [&](unsigned one_in) { return random() % one_in == 0; };
    const plan::Plan first = testing::random_plan(random, 120, 4, /*streams=*/2, GetParam());
    std::vector<plan::Plan> layouts = {first};
    for (const char* name : {"first-fit-size", "first-fit-start", "best-fit-size"}) {
      layouts.push_back(other_layout(first, name));
    }
    Bytes most = 0;
    for (const plan::Plan& l : layouts) most = std::max(most, l.pool);
    for (plan::Plan& l : layouts) l.pool = most;
    pools_.enable(layouts.front(), /*with_resident=*/false);
    std::vector<Offset> live;
    const auto take = [&](Offset offset) {
      if (offset == kUnplaced || !pool().hand_over(offset, /*capturing=*/false)) return;
      const runtime::StaticPool::Block block = space().at(offset);
      const auto begin = reinterpret_cast<std::uintptr_t>(pool().address(offset));
      const auto end = begin + static_cast<std::uintptr_t>(block.size);
      streams_.hand_out(begin, end, table_.handle_of(block.stream));
      streams_.use(begin, end, table_.handle_of(block.stream));
      live.push_back(offset);
    };
    const auto free_one = [&] {
      const auto at = live.begin() + static_cast<std::ptrdiff_t>(random() % live.size());
      const runtime::StaticPool::Block block = space().at(*at);
      const auto begin = reinterpret_cast<std::uintptr_t>(pool().address(*at));
      const auto end = begin + static_cast<std::uintptr_t>(block.size);
      streams_.use(begin, end, table_.handle_of(block.stream));
      pool().release(pool().address(*at), /*capturing=*/false);
      live.erase(at);
    };
    for (int iteration = 0; iteration < 6; ++iteration) {
      for (const plan::DecisionIndex d : indices<plan::DecisionIndex>(first.decisions)) {
        if (chance(12)) {
          pools_.relayout(layouts[random() % layouts.size()]);
          ++followed;
        }
        take(space().place(d));
        if (chance(8)) take(space().place_idle(512 * (1 + random() % 20), random() % 2));
        while (live.size() > 10) free_one();
        if (chance(9)) streams_.complete(table_.handle_of(random() % 2));
      }
      space().end_iteration();
      pools_.check();
    }
    while (!live.empty()) free_one();
    EXPECT_EQ(streams_.hazards, 0) << "seed " << seed;
    EXPECT_EQ(streams_.misuses, 0);
  }
  EXPECT_GT(followed, 500);
}

INSTANTIATE_TEST_SUITE_P(Streams, RelayoutOrder,
                         ::testing::Values(solve::Streams::kOrdered, solve::Streams::kSeparate));

}  // namespace
}  // namespace stalloc
