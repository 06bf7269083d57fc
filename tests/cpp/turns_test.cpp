// Turns: two places for a request whose size varies and that lives until its successor exists.
#include "plan/turns.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <map>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "complaint.h"
#include "device/pretend.h"
#include "live_blocks.h"
#include "plan/build.h"
#include "plan/plan_json.h"
#include "plan/resize.h"
#include "profile/lifetimes.h"
#include "replay/replay.h"
#include "runtime/layouts.h"
#include "runtime/planned_allocator.h"
#include "runtime/static_pool.h"
#include "trace_builder.h"
#include "verify/validator.h"

namespace stalloc {
namespace {

using plan::DecisionIndex;
using plan::Turn;
using profile::Extent;
using runtime::Layouts;
using runtime::StaticPool;
using testing::TraceBuilder;
using Lengths = std::vector<Extent>;

constexpr Bytes kHidden = 2048;  // bytes of a token
constexpr int kLayers = 4;

struct Loop {
  bool early = false;         // the kept request comes before the forward
  StreamId other_stream = 0;  // of a temporary
  int microbatches = 1;
  bool loss_inside = false;  // the model itself computes the loss, at the peak
};

// A loop variable holds the scores of each batch until the next ones have been made.
trace::Trace keeping(const Lengths& lengths, const Loop& loop = {}) {
  TraceBuilder t;
  std::int32_t scores = kNone;
  const auto keep = [&](Extent n) {
    const auto next = t.alloc(2 * kHidden * n);
    if (loop.loss_inside) t.free(t.alloc(4 * kHidden * n));
    if (scores != kNone) t.free(scores);
    scores = next;
  };
  for (auto n = lengths.begin(); n != lengths.end();) {
    if (loop.early) keep(*n);
    for (int m = 0; m < loop.microbatches && n != lengths.end(); ++m, ++n) {
      t.phase(trace::PhaseKind::kForward, m);
      t.extents({"ids.1"}, {*n});
      std::vector<std::int32_t> saved;
      for (int l = 0; l < kLayers; ++l) {
        saved.push_back(t.alloc(kHidden * *n));
        t.free(t.alloc(kHidden * *n / 2, loop.other_stream));
      }
      if (!loop.early) keep(*n);
      t.phase(trace::PhaseKind::kBackward, m);
      const auto gradient = t.alloc(2 * kHidden * *n);
      for (int l = 0; l < kLayers; ++l) {
        t.free(t.alloc(kHidden * *n));
        t.free(saved.back());
        saved.pop_back();
      }
      t.free(gradient);
    }
    t.phase(trace::PhaseKind::kOptimizer);
    t.free(t.alloc(1 << 20));
    t.step();
  }
  return t.finish();
}

plan::Plan plan_of(const trace::Trace& trace) {
  return plan::make_plan(profile::profile_iteration(trace), {.time_limit = 1});
}

const Lengths kProfiled = {512, 1024, 256, 700, 333};
const Lengths kServed = {100, 900, 1024, 64, 512, 1023, 700, 1024, 8, 333, 1000, 256};

// No two blocks share an address at any time.
void expect_disjoint(const trace::Trace& trace, const replay::Placements& placements) {
  solve::Problem problem;
  solve::Layout layout;
  const Offset base = *std::ranges::min_element(placements.addresses());
  for (std::size_t i = 0; i < trace.requests.size(); ++i) {
    const trace::Request& r = trace.requests[i];
    problem.buffers.push_back({.size = r.size, .lower = r.lower, .upper = r.upper});
    layout.offsets.push_back(placements.addresses()[i] - base);
    layout.height = std::max(layout.height, layout.offsets.back() + align_up(r.size, Bytes{512}));
  }
  for (const trace::Request& r : trace.requests) {
    if (r.upper != kNever) problem.period = std::max(problem.period, r.upper + 1);
  }
  for (solve::Buffer& b : problem.buffers) b.upper = std::min(b.upper, problem.period);
  EXPECT_NO_THROW(verify::validate(problem, layout));
}

TEST(Turns, HaveTwoPlacesThatDoNotMeet) {
  const plan::Plan plan = plan_of(keeping(kProfiled));
  EXPECT_TRUE(plan.persistent.empty());
  ASSERT_EQ(plan.turns.size(), 1u);
  const Turn& turn = plan.turns[0];
  const plan::Decision& d = plan[turn.decision];
  EXPECT_EQ(d.size, 2 * kHidden * 1024) << "room for the largest";
  EXPECT_EQ(turn.size, 2 * kHidden * 512) << "the largest batch came after this one";
  EXPECT_GE(std::abs(turn.places[0] - turn.places[1]), d.size);
  EXPECT_EQ(plan.pool, plan.bound);
}

// The envelope of a budget is the batch that needs the most. The scores of another may be larger.
TEST(Turns, HaveRoomForTheLargestProfiled) {
  plan::Plan plan;
  plan.extent_names = {"ids.0"};
  plan.extents = {4};
  plan.seen = {{2}, {4}, {9}};
  plan.period = 10;
  plan.laws = {{.terms = {{512, {0, kNone, kNone}}}, .proof = profile::LawProof::kProven}};
  plan.decisions = {{.size = 512 * 4, .lower = 3, .upper = 13, .phase = 0, .law = 0}};
  profile::IterationProfile profile;
  profile.laws = plan.laws;
  profile.requests = {{.size = 512 * 4, .law = 0, .lower = 3, .upper = 13, .over = 2}};
  add_turns(plan, profile, std::vector<DecisionIndex>{0});
  ASSERT_EQ(plan.turns.size(), 1u);
  EXPECT_EQ(plan.turns[0].size, 512 * 9);
  EXPECT_EQ(plan.decisions[0].size, 512 * 9);
}

TEST(Turns, NeedAForwardBeforeThemAndOneStream) {
  for (const Loop& loop : {Loop{.early = true}, Loop{.other_stream = 1}}) {
    const plan::Plan plan = plan_of(keeping(kProfiled, loop));
    EXPECT_TRUE(plan.turns.empty());
    EXPECT_EQ(plan.persistent.size(), 1u);
  }
}

TEST(Turns, AreNotNeededBetweenMicrobatches) {
  Lengths lengths = kProfiled;
  lengths.insert(lengths.end(), kProfiled.begin(), kProfiled.end());
  EXPECT_TRUE(plan_of(keeping(lengths, {.microbatches = 2})).turns.empty());
}

TEST(Turns, NeedNoMoreThanTheLoad) {
  const plan::Plan plan = plan_of(keeping(kProfiled));
  const trace::Trace run = keeping(kServed);
  replay::Placements placements(run.requests.size());
  const replay::ReplayResult result = replay::replay_planned(run, plan, {}, &placements);
  EXPECT_EQ(result.misses, 0);
  EXPECT_LE(result.peak_reserved, result.peak_load + result.peak_load / 100);
  expect_disjoint(run, placements);
}

// Two of the largest batches in a row would need more. None come.
TEST(Turns, NeedNoMoreThanTheBatchesThatCome) {
  const Lengths profiled = {300, 4096, 256, 700, 333};
  const plan::Plan plan = plan_of(keeping(profiled, {.loss_inside = true}));
  Lengths lengths = profiled;
  std::mt19937 random(2);
  for (int i = 0; i < 30; ++i) {
    lengths.push_back(std::uniform_int_distribution<Extent>(64, 1500)(random));
  }
  const trace::Trace run = keeping(lengths, {.loss_inside = true});
  const replay::ReplayResult result = replay::replay_planned(run, plan);
  EXPECT_EQ(result.misses, 0);
  EXPECT_LE(result.peak_reserved, result.peak_load + result.peak_load / 100);
}

TEST(Turns, GrowWithBatchesBeyondTheProfile) {
  const plan::Plan plan = plan_of(keeping(kProfiled));
  for (const Lengths& lengths :
       {Lengths{100, 2048, 300, 2048, 2000, 64, 900}, Lengths{1500, 1600, 1700, 1800, 1900, 2000},
        Lengths{3000, 2000, 1000, 500, 3000, 3000}}) {
    const trace::Trace run = keeping(lengths);
    replay::Placements placements(run.requests.size());
    const replay::ReplayResult result = replay::replay_planned(run, plan, {}, &placements);
    EXPECT_LE(result.peak_reserved, result.peak_load + result.peak_load / 20) << lengths[0];
    expect_disjoint(run, placements);
  }
}

// The blocks of the iteration before where the layout has their decision: they have to turn.
StaticPool::LiveRows left_by(const plan::Plan& layout) {
  StaticPool::LiveRows live;
  for (const Turn& t : layout.turns) {
    live.turns.push_back({t.decision, layout[t.decision].offset, t.size});
  }
  return live;
}

TEST(Turns, TwoLayoutsServeAllIterations) {
  const plan::Plan plan = plan_of(keeping(kProfiled));
  Layouts layouts(plan);
  for (int i = 0; i < 20; ++i) {
    const plan::Plan& current = layouts.current();
    const Offset place = current[current.turns[0].decision].offset;
    const Offset other = current.turns[0].offset;
    const plan::Plan* next = layouts.find(Lengths{100}, kNone, {plan.pool, {}}, left_by(current));
    ASSERT_NE(next, nullptr);
    EXPECT_EQ((*next)[next->turns[0].decision].offset, other);
    EXPECT_EQ(next->turns[0].offset, place);
    layouts.use(next);
  }
  EXPECT_LE(layouts.made(), 2u);
}

TEST(Turns, NothingLiesOnABlockThatHasNoPlaceOfThePlan) {
  const plan::Plan plan = plan_of(keeping(kProfiled));
  Layouts layouts(plan);
  StaticPool::LiveRows live;
  const Turn block{plan.turns[0].decision, 512 * 77, 2 * kHidden * 1500};
  live.turns = {block};
  const plan::Plan* next =
      layouts.grow(Lengths{2048}, {plan.pool, {}}, live, Layouts::More::kBehindPool);
  ASSERT_NE(next, nullptr);
  EXPECT_EQ(next->turns[0].offset, block.offset);
  const Tick freed = (*next)[block.decision].lower + (*next)[block.decision].over;
  for (const plan::Decision& d : next->decisions) {
    if (d.lower >= freed && d.upper <= next->period) continue;
    EXPECT_TRUE(d.offset >= block.offset + block.size || d.offset + d.size <= block.offset);
  }
}

TEST(Turns, SurviveAFile) {
  const plan::Plan plan = plan_of(keeping(kProfiled));
  const std::string text = to_json(plan);
  const plan::Plan read = plan::plan_from_json(text, "the test's");
  ASSERT_EQ(read.turns.size(), 1u);
  EXPECT_EQ(read.turns[0].offset, plan.turns[0].offset);
  EXPECT_EQ(read.turns[0].size, plan.turns[0].size);
  EXPECT_EQ(read.turns[0].places, plan.turns[0].places);
  EXPECT_EQ(to_json(read), text);
}

std::string complaint(const std::function<void(plan::Plan&)>& damage) {
  plan::Plan plan = plan_of(keeping(kProfiled));
  damage(plan);
  return testing::complaint_of(plan);
}

TEST(Turns, AreChecked) {
  const auto decision = [](plan::Plan& p) -> plan::Decision& { return p[p.turns[0].decision]; };
  const auto expect = [](const std::string& said, const std::string& part) {
    EXPECT_NE(said.find(part), std::string::npos) << said;
  };
  expect(complaint([](plan::Plan& p) { p.turns.push_back(p.turns[0]); }), "out of order");
  expect(complaint([](plan::Plan& p) { p.turns[0].decision = DecisionIndex(999); }),
         "out of order");
  expect(complaint([](plan::Plan& p) { p.turns.clear(); }), "0 second places for 1 decisions");
  expect(complaint([&](plan::Plan& p) { decision(p).over = 0; }), "lives from tick");
  expect(complaint([&](plan::Plan& p) { decision(p).over = p.period; }), "lives from tick");
  expect(complaint([&](plan::Plan& p) { --decision(p).upper; }), "lives from tick");
  expect(complaint([&](plan::Plan& p) { p.turns[0].offset = decision(p).offset; }), "overlap");
  expect(complaint([](plan::Plan& p) { p.turns[0].offset = p.pool; }), "buffers");
  expect(complaint([](plan::Plan& p) { p.turns[0].places[1] = 100; }), "a place at 100 bytes");
}

// A pool of plain memory that is full, and a block in it that no layout can avoid.
TEST(Turns, GoOnBesideABlockThatIsInTheWay) {
  const plan::Plan changing = plan_of(keeping({256, 512, 300, 512, 512, 512}));
  ASSERT_EQ(changing.turns.size(), 1u);
  device::PretendMemory memory(Bytes{1} << 40, /*can_grow=*/false);
  runtime::PlannedAllocator allocator(memory);
  allocator.enable(changing);
  const auto count = [&] { return allocator.figures().statistics().relayouts; };
  const auto alloc = [&](Bytes size) { return allocator.allocate(size, 0, true); };
  void* scores = nullptr;
  void* left = nullptr;
  std::vector<std::int64_t> exchanges;
  for (int i = 0; i < 12; ++i) {
    const std::vector<std::string> names = {"ids.1"};
    const std::int64_t before = count();
    allocator.loop().set_extents(names, Lengths{512});
    allocator.loop().enter_phase(trace::PhaseKind::kForward, 0, 0);
    void* hidden = alloc(kHidden * 512);
    void* next = alloc(2 * kHidden * 512);
    if (scores) allocator.deallocate(scores);
    scores = next;
    allocator.loop().enter_phase(trace::PhaseKind::kBackward, 0, 0);
    allocator.deallocate(hidden);
    allocator.loop().end_iteration();
    exchanges.push_back(count() - before);
    if (i != 3) continue;
    allocator.loop().enter_unplanned();
    left = alloc(kHidden * 512);
    allocator.loop().leave_unplanned();
  }
  EXPECT_GT(std::accumulate(exchanges.end() - 4, exchanges.end(), std::int64_t{0}), 0);
  for (void* p : {scores, left}) allocator.deallocate(p);
  allocator.disable();
}

// Iterations that turn or forget to, with frees that come late and requests that are left out. No
// two blocks ever meet, whatever the layout expects.
TEST(Turns, NeverShareAnAddress) {
  const plan::Plan plan = plan_of(keeping(kProfiled));
  const DecisionIndex kept = plan.turns[0].decision;
  const Bytes memory = 3 * plan.pool;
  int turned = 0;
  int exchanged = 0;
  for (unsigned seed = 0; seed < 30; ++seed) {
    std::mt19937 random(seed);
    const auto chance = [&](int percent) {
      return std::uniform_int_distribution<int>(0, 99)(random) < percent;
    };
    StaticPool pool(plan);
    Layouts layouts(plan);
    testing::LiveBlocks blocks(pool, memory, plan.alignment);
    Offset last_kept = kUnplaced;
    std::vector<Offset> late;
    for (int i = 0; i < 60; ++i) {
      pool.begin_phase(0);
      if (pool.awaits_turn() && chance(90)) {
        const Lengths extents = {chance(20) ? 1800 : 500};
        if (const auto* next = layouts.find(extents, kNone, {memory, {}}, pool.live_rows())) {
          pool.relayout(*next, memory);
          layouts.use(next);
          ++exchanged;
          turned += !pool.awaits_turn();
        }
      }
      std::multimap<Tick, Offset> frees;
      for (const DecisionIndex d : indices<DecisionIndex>(plan.decisions)) {
        if (chance(2)) continue;
        const plan::Decision& row = layouts.current()[d];
        while (!frees.empty() && frees.begin()->first <= row.lower) {
          const Offset freed = frees.extract(frees.begin()).mapped();
          chance(98) ? blocks.release(freed) : late.push_back(freed);
        }
        const Bytes size = chance(90) ? row.size : row.size / 3;
        const Offset offset = pool.place(d, size);
        blocks.note(offset, size);
        if (d == kept) {
          frees.emplace(row.lower + row.over, last_kept);
          last_kept = offset;
        } else if (offset != kUnplaced) {
          frees.emplace(row.upper, offset);
        }
        if (chance(2)) {
          late.push_back(pool.place_idle(5000, 0));
          blocks.note(late.back(), 5000);
        }
        if (chance(2)) blocks.release_any(random);
        if (chance(5)) blocks.check();
      }
      for (const auto& [tick, offset] : frees) blocks.release(offset);
      if (chance(70)) {
        for (const Offset offset : std::exchange(late, {})) blocks.release(offset);
      }
      pool.end_iteration();
      blocks.check();
    }
  }
  EXPECT_GT(exchanged, 500);
  EXPECT_EQ(turned, exchanged);
}

}  // namespace
}  // namespace stalloc
