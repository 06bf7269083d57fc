// Changing batches under one plan: sizes by law, layouts for larger extents, exchanged pools.
#include <gtest/gtest.h>

#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "base/align.h"
#include "device/pretend.h"
#include "plan/layout.h"
#include "plan/resize.h"
#include "runtime/planned_allocator.h"

namespace stalloc::runtime {
namespace {

using profile::Extent;
using profile::LawProof;
using profile::LawSource;
using profile::SizeLaw;
using trace::PhaseKind;

constexpr Bytes kUnit = 512;
const std::vector<std::string> kNames = {"ids.0", "ids.1"};  // rows never change, tokens do
const std::vector<std::string> kTokens = {"ids.1"};

SizeLaw law_of(Bytes constant, Bytes a_token, LawSource source = LawSource::kOwn) {
  SizeLaw law;
  law.constant = constant;
  law.terms = {{a_token, {0, kNone, kNone}}};
  law.proof = LawProof::kProven;
  law.source = source;
  return law;
}

// A program with that number of microbatches: data, activations that backward frees, a temporary in
// each backward, and a gradient that the optimizer frees.
struct Program {
  // `receives`: between the phases it gets a gradient, too, of the microbatch that goes back next.
  // `refers`: another model reads the data before.
  explicit Program(int microbatches, Extent tokens, bool receives = false, bool refers = false)
      : count(microbatches) {
    plan.extent_names = kTokens;
    plan.extents = {tokens};
    plan.seen = {{tokens}};
    plan.laws = {law_of(0, 2 * kUnit, LawSource::kUpcoming), law_of(kUnit, 8 * kUnit),
                 law_of(0, 4 * kUnit), law_of(0, 2 * kUnit, LawSource::kReturning),
                 law_of(3 * kUnit, 6 * kUnit, LawSource::kUpcoming)};
    Tick t = 0;
    const auto phase = [&](PhaseKind kind, int microbatch, int occurrence) {
      if (!plan.phases.empty()) plan.phases.back().end = t;
      plan.phases.push_back({{kind, microbatch, 0, occurrence}, t, t});
      return static_cast<PhaseIndex>(plan.phases.size()) - 1;
    };
    for (int m = 0; m < count; ++m) {
      const PhaseIndex other = phase(PhaseKind::kOther, kNone, m);
      const Tick data = t++;
      const Tick received = receives ? t++ : kNever;
      const Tick hidden = t;
      if (refers) t += 3;
      const PhaseIndex forward = phase(PhaseKind::kForward, m, 0);
      const Tick one = t++;
      const Tick two = t++;
      const PhaseIndex backward = phase(PhaseKind::kBackward, m, 0);
      const Tick scratch = t++;
      const Tick gradient = m == 0 ? t++ : kNever;
      const Tick end = t;
      t += 5;
      const auto add = [&](Bytes size, Tick lower, Tick upper, PhaseIndex p, profile::LawIndex l) {
        plan.decisions.push_back({.size = size,
                                  .lower = lower,
                                  .upper = upper,
                                  .phase = p,
                                  .phase_end = backward,
                                  .law = l});
      };
      add(2 * kUnit * tokens, data, end + 3, other, 0);
      if (receives) add(2 * kUnit * tokens, received, end + 4, other, 3);
      for (int i = 0; refers && i < 2; ++i) {
        add(3 * kUnit + 6 * kUnit * tokens, hidden + i, hidden + 2, other, 4);
        plan.decisions.back().phase_end = other;
      }
      add(kUnit + 8 * kUnit * tokens, one, end + 2, forward, 1);
      add(4 * kUnit * tokens, two, end + 1, forward, 2);
      add(4 * kUnit * tokens, scratch, end, backward, 2);
      if (m == 0) {
        gradient_row = plan.decisions.size();
        add(16 * kUnit, gradient, gradient + 1, backward, kNone);
      }
    }
    const PhaseIndex optimizer = phase(PhaseKind::kOptimizer, kNone, 0);
    t += 2;
    plan.phases.back().end = t;
    plan.period = t;
    plan.decisions[gradient_row].upper = t;
    plan.decisions[gradient_row].phase_end = optimizer;
    plan::lay_out(plan, {.search_steps = 0}, {});
    plan.check();
  }

  plan::Plan plan;
  int count;
  std::size_t gradient_row = 0;
};

// Runs it, and checks that no two live blocks overlap.
class Session {
 public:
  // `grows`: the device can add memory behind a pool.
  explicit Session(const plan::Plan& plan, Bytes capacity = Bytes{1} << 40, bool grows = false)
      : memory_(capacity, grows), allocator_(memory_) {
    allocator_.enable(plan);
  }
  ~Session() {
    while (!live_.empty()) free(live_.begin()->second.name);
    allocator_.disable();
    EXPECT_EQ(memory_.used(), 0);
    EXPECT_EQ(memory_.wrong_releases(), 0);
  }

  void alloc(const std::string& name, Bytes size) {
    if (size == 0) return;  // no program asks for no bytes
    auto* p = static_cast<std::byte*>(allocator_.allocate(size, 0, true));
    ASSERT_NE(p, nullptr);
    const auto after = live_.upper_bound(p);
    if (after != live_.end()) {
      ASSERT_LE(p + size, after->first);
    }
    if (after != live_.begin()) {
      const auto& [before, block] = *std::prev(after);
      ASSERT_LE(before + block.size, p);
    }
    live_[p] = {name, size};
    by_name_[name] = p;
  }
  void free(const std::string& name) {
    const auto at = by_name_.find(name);
    if (at == by_name_.end()) return;
    EXPECT_TRUE(allocator_.deallocate(at->second));
    live_.erase(at->second);
    by_name_.erase(at);
  }

  // Another model reads the data.
  void refer(Extent tokens) {
    alloc("first", 3 * kUnit + 6 * kUnit * tokens);
    alloc("second", 3 * kUnit + 6 * kUnit * tokens);
    free("first");
    free("second");
  }
  void microbatch(int m, Extent tokens, bool told = true, Extent rows = 4, bool refers = false) {
    allocator_.loop().enter_phase(PhaseKind::kOther, kNone, 0);
    const Bytes share = rows;
    const auto size = [&](Bytes of) { return of * share / 4; };
    alloc("data", size(2 * kUnit * tokens));
    if (refers) refer(tokens);
    if (told) {
      const std::vector<std::int64_t> values = {rows, tokens};
      allocator_.loop().set_extents(kNames, values);
    }
    allocator_.loop().enter_phase(PhaseKind::kForward, m, 0);
    alloc("one", size(kUnit + 8 * kUnit * tokens));
    alloc("two", size(4 * kUnit * tokens));
    allocator_.loop().enter_phase(PhaseKind::kBackward, m, 0);
    alloc("scratch", size(4 * kUnit * tokens));
    if (m == 0) alloc("gradient", 16 * kUnit);
    for (const char* name : {"scratch", "two", "one", "data"}) free(name);
    allocator_.inspect().check();
  }
  void step() {
    allocator_.loop().enter_phase(PhaseKind::kOptimizer, kNone, 0);
    free("gradient");
    allocator_.loop().end_iteration();
    allocator_.inspect().check();
  }
  // The hits of one iteration whose microbatches have these numbers of tokens.
  std::int64_t iterate(const std::vector<Extent>& tokens, bool told = true) {
    const std::int64_t before = allocator_.figures().statistics().hits;
    for (std::size_t m = 0; m < tokens.size(); ++m) {
      microbatch(static_cast<int>(m), tokens[m], told);
    }
    step();
    return allocator_.figures().statistics().hits - before;
  }

  PlannedAllocator& allocator() { return allocator_; }
  device::PretendMemory& memory() { return memory_; }
  // The first address of the pool.
  const void* base() { return allocator_.inspect().pools().front().piece.begin; }
  Bytes reserved() const { return allocator_.figures().statistics().reserved.current; }
  Bytes peak_reserved() const { return allocator_.figures().statistics().reserved.peak; }

 private:
  struct Live {
    std::string name;
    Bytes size = 0;
  };
  device::PretendMemory memory_;
  PlannedAllocator allocator_;
  std::map<std::byte*, Live> live_;
  std::map<std::string, std::byte*> by_name_;
};

TEST(ServingSizes, ServesSmallerBatchesFromTheLayoutOfTheLargest) {
  const Program program(2, 64);
  Session run(program.plan);
  for (const Extent tokens : {64, 1, 63, 17, 64}) {
    EXPECT_EQ(run.iterate({tokens, 65 - tokens}), 9) << tokens;
  }
  EXPECT_EQ(run.peak_reserved(), program.plan.pool);
  EXPECT_EQ(run.allocator().figures().statistics().relayouts, 0);
}

TEST(ServingSizes, CountsTheBytesThatAreAskedFor) {
  const Program program(1, 64);
  Session run(program.plan);
  run.iterate({2});
  EXPECT_EQ(run.allocator().figures().statistics().allocated.peak, (4 + 17 + 8 + 8 + 16) * kUnit);
}

TEST(ServingSizes, ExchangesAnEmptyPoolForALargerOneWithoutHoldingBoth) {
  const Program program(2, 16);
  Session run(program.plan);
  run.iterate({16, 16});
  EXPECT_EQ(run.iterate({40, 16}), 8) << "the data of the larger batch came before its extents";
  const Bytes larger = plan::bound_at(program.plan, std::vector<Extent>{40});
  EXPECT_EQ(run.reserved(), larger);
  EXPECT_LE(run.peak_reserved(), larger + (Bytes{2} << 20)) << "but for the data beside the pool";
  EXPECT_EQ(run.iterate({40, 16}), 9);
  EXPECT_EQ(run.iterate({16, 40}), 9);
}

TEST(ServingSizes, AddsAPieceWhereSomethingIsLive) {
  const Program program(2, 16);
  Session run(program.plan);
  run.iterate({16, 16});
  EXPECT_EQ(run.iterate({16, 40}), 8) << "the gradient is live when the second one begins";
  EXPECT_EQ(run.allocator().figures().statistics().relayouts, 2)
      << "one with two pieces, one without";
  const Bytes larger = plan::bound_at(program.plan, std::vector<Extent>{40});
  EXPECT_EQ(run.reserved(), larger) << "joined when the pool is empty again";
  EXPECT_EQ(run.iterate({40, 40}), 9);
}

TEST(ServingSizes, GrowsInPlaceWhereSomethingIsLive) {
  const Program program(2, 16);
  Session run(program.plan, Bytes{1} << 40, /*grows=*/true);
  run.iterate({16, 16});
  const void* base = run.base();
  EXPECT_EQ(run.iterate({16, 40}), 8) << "the data of the larger batch came before its extents";
  EXPECT_EQ(run.allocator().figures().statistics().relayouts, 1) << "there is nothing to join";
  const Bytes larger = plan::bound_at(program.plan, std::vector<Extent>{40});
  EXPECT_EQ(run.reserved(), larger);
  EXPECT_EQ(run.iterate({40, 40}), 9);
  EXPECT_EQ(run.base(), base);
  EXPECT_EQ(run.iterate({80, 16}), 8) << "with an empty pool, too";
  EXPECT_EQ(run.reserved(), plan::bound_at(program.plan, std::vector<Extent>{80}));
  EXPECT_EQ(run.base(), base);
}

TEST(ServingSizes, AnotherModelsRequestsTellOfALargerBatchBeforeItsForward) {
  for (const bool grows : {false, true}) {
    const Program program(1, 16, /*receives=*/false, /*refers=*/true);
    Session run(program.plan, Bytes{1} << 40, grows);
    for (const Extent tokens : {16, 16, 40}) {
      run.microbatch(0, tokens, true, 4, /*refers=*/true);
      run.step();
    }
    const Statistics s = run.allocator().figures().statistics();
    EXPECT_EQ(s.misses, 1) << "the data alone came before the layout";
    EXPECT_EQ(s.relayouts, 1);
    const Bytes larger = plan::bound_at(program.plan, std::vector<Extent>{40});
    EXPECT_EQ(run.reserved(), larger);
    EXPECT_LE(run.peak_reserved(), larger + (Bytes{2} << 20)) << "but for the data";
  }
}

// A request that only looks like one of a giant batch: nothing confirms it.
TEST(ServingSizes, OneRequestAloneAddsNoMemory) {
  const Program program(1, 16, /*receives=*/false, /*refers=*/true);
  Session run(program.plan, Bytes{1} << 40, /*grows=*/true);
  for (int i = 0; i < 2; ++i) {
    run.microbatch(0, 16, true, 4, /*refers=*/true);
    run.step();
  }
  run.allocator().loop().enter_phase(PhaseKind::kOther, kNone, 0);
  run.alloc("data", 2 * kUnit * 5000);
  run.alloc("first", 3 * kUnit + 6 * kUnit * 16);
  EXPECT_EQ(run.allocator().figures().statistics().relayouts, 0);
  EXPECT_EQ(run.allocator().figures().statistics().pool, program.plan.pool);
  run.free("first");
  run.free("data");
  run.step();
}

// A layout adds addresses. Each gets memory with its first request.
TEST(ServingSizes, ALargerLayoutTakesNoMoreThanItsRequests) {
  const Program program(1, 16);
  constexpr Extent kLarge = 1 << 14;
  Session run(program.plan, Bytes{1} << 40, /*grows=*/true);
  run.iterate({16});
  run.allocator().loop().enter_phase(PhaseKind::kOther, kNone, 0);
  const std::vector<std::int64_t> values = {4, kLarge};
  run.allocator().loop().set_extents(kNames, values);
  run.allocator().loop().enter_phase(PhaseKind::kForward, 0, 0);
  EXPECT_EQ(run.allocator().figures().statistics().relayouts, 1);
  EXPECT_LE(run.reserved(), Bytes{2} << 20) << "one unit of the device";
  run.allocator().loop().end_iteration();
  EXPECT_EQ(run.iterate({kLarge}), 5);
  const Bytes larger = plan::bound_at(program.plan, std::vector<Extent>{kLarge});
  EXPECT_LE(run.reserved(), larger + (Bytes{2} << 20));
  EXPECT_EQ(run.iterate({kLarge}), 5);
  EXPECT_EQ(run.allocator().figures().statistics().moves, 0) << "the bound tells what is needed";
}

// As where activations are recomputed in long batches alone.
TEST(ServingSizes, ALargerBatchOfAnotherStructureNeedsNoMemoryForWhatItLeavesOut) {
  const Program program(1, 16);
  constexpr Extent kLarge = 1 << 14;
  constexpr Bytes kTokenBytes = kUnit * kLarge;  // 8 MiB
  Session run(program.plan, Bytes{1} << 40, /*grows=*/true);
  run.iterate({16});
  runtime::TrainingLoop& loop = run.allocator().loop();
  for (int i = 0; i < 3; ++i) {
    loop.enter_phase(PhaseKind::kOther, kNone, 0);
    const std::vector<std::int64_t> values = {4, kLarge};
    loop.set_extents(kNames, values);
    loop.enter_phase(PhaseKind::kForward, 0, 0);
    run.alloc("one", kUnit + 8 * kTokenBytes);
    run.free("one");
    run.alloc("two", 4 * kTokenBytes);
    loop.enter_phase(PhaseKind::kBackward, 0, 0);
    run.alloc("scratch", 4 * kTokenBytes);
    for (const char* name : {"scratch", "two"}) run.free(name);
    run.step();
    EXPECT_LE(run.peak_reserved(), 9 * kTokenBytes) << "of a load of 8, and a bound of 18";
  }
  EXPECT_EQ(run.iterate({kLarge}), 5);
  EXPECT_LE(run.peak_reserved(), 19 * kTokenBytes);
}

TEST(ServingSizes, KeepsTheOldPoolIfALargerOneDoesNotFit) {
  for (const bool grows : {false, true}) {
    const Program program(1, 16);
    const Bytes enough = program.plan.pool + (Bytes{4} << 20);
    Session run(program.plan, enough, grows);
    run.iterate({16});
    run.allocator().loop().enter_phase(PhaseKind::kOther, kNone, 0);
    const std::vector<std::int64_t> values = {4, 1 << 20};
    run.allocator().loop().set_extents(kNames, values);
    run.allocator().loop().enter_phase(PhaseKind::kForward, 0, 0);
    run.allocator().loop().end_iteration();
    EXPECT_EQ(run.reserved(), program.plan.pool);
    EXPECT_EQ(run.iterate({16}), 5);
  }
}

TEST(ServingSizes, TheFirstSizesTellTheExtentsWhereNobodyDoes) {
  const Program program(2, 64);
  Session run(program.plan);
  for (const Extent tokens : {64, 1, 63, 17, 64}) {
    EXPECT_EQ(run.iterate({tokens, 65 - tokens}, /*told=*/false), 9) << tokens;
  }
}

// Samples of the same rows are kept before a batch is made of others.
TEST(ServingSizes, ABatchIsFoundAmongDynamicRequestsByItsRows) {
  plan::Plan plan = Program(1, 100).plan;
  plan.seen = {{80}, {100}};
  plan::DynamicGroup group;
  group.phase = PhaseIndex(0);
  plan.groups.push_back(group);
  Matcher m(plan);
  m.trust_all(/*makes_states=*/false);
  const auto batch = [](Extent tokens) { return 2 * kUnit * tokens; };
  const auto iterate = [&](Extent tokens, auto requests) {
    m.enter_phase(PhaseKind::kOther, kNone, 0);
    m.use_extents(std::vector<Extent>{kNone}, {}, /*told=*/false);
    requests();
    m.enter_phase(PhaseKind::kForward, 0, 0);
    m.use_extents(std::vector<Extent>{tokens}, {}, /*told=*/true);
    m.end_iteration();
  };
  iterate(90, [&] {
    EXPECT_EQ(m.match(batch(20), 0).group, 0) << "no batch was so small";
    EXPECT_EQ(m.match(batch(250), 0).group, 0) << "nor so large";
    EXPECT_EQ(m.match(batch(90) + 8, 0).group, 0) << "no whole row";
    EXPECT_EQ(m.match(batch(90), 0).decision, 0);
  });
  iterate(60, [&] { EXPECT_EQ(m.match(batch(60), 0).group, 0); });
  iterate(60, [&] { EXPECT_EQ(m.match(batch(60), 0).decision, 0) << "the run has had it"; });
  iterate(130, [&] { EXPECT_TRUE(m.match(batch(130), 0).outgrows); });
}

// An epoch begins with the order of its samples, which is larger than a batch, and with two batches
// instead of one. The first one stays, so it has to keep out of a temporary's place.
TEST(ServingSizes, AKeptBatchAfterALargerExtentIsNoTemporary) {
  plan::Plan plan = Program(1, 8, /*receives=*/true, /*refers=*/true).plan;
  plan::DynamicGroup batches;  // kept
  batches.phase = PhaseIndex(0);
  batches.after = plan::DecisionIndex(0);
  batches.upper = plan.period;
  plan.groups.push_back(batches);
  ASSERT_TRUE(plan.is_kept(batches));
  Matcher m(plan);
  m.trust_all(/*makes_states=*/false);
  const auto begin = [&] {
    m.enter_phase(PhaseKind::kOther, kNone, 0);
    m.use_extents(std::vector<Extent>{kNone}, {}, /*told=*/false);
  };
  const auto first = [](Extent tokens) { return 3 * kUnit + 6 * kUnit * tokens; };
  const Bytes received = 2 * kUnit * 8;
  begin();
  EXPECT_EQ(m.match(2 * kUnit * 8, 0).decision, 0);
  EXPECT_EQ(m.match(received, 0).decision, 1);
  EXPECT_EQ(m.match(first(8), 0).decision, 2);
  m.end_iteration();
  begin();
  EXPECT_TRUE(m.match(2 * kUnit * 9, 0).outgrows);
  EXPECT_EQ(m.match(received, 0).decision, 1) << "of another microbatch";
  const Matcher::Match batch = m.match(first(8), 0);
  EXPECT_EQ(batch.decision, kNone);
  EXPECT_TRUE(batch.persistent);
  m.end_iteration();
  begin();
  EXPECT_TRUE(m.match(2 * kUnit * 9, 0).outgrows);
  EXPECT_EQ(m.match(received, 0).decision, 1);
  EXPECT_EQ(m.match(first(9), 0).decision, 2) << "the same extent, for which a layout is made";
}

TEST(ServingSizes, TheNextBatchTellsNothingOfTheGradientThatComesWithIt) {
  const Program program(1, 64, /*receives=*/true);
  Session run(program.plan);
  for (const Extent tokens : {64, 1, 17}) {
    const std::int64_t before = run.allocator().figures().statistics().hits;
    run.allocator().loop().enter_phase(PhaseKind::kOther, kNone, 0);
    run.alloc("data", 2 * kUnit * tokens);
    run.alloc("received", 2 * kUnit * (65 - tokens));
    run.allocator().loop().end_iteration();
    EXPECT_EQ(run.allocator().figures().statistics().hits - before, 2) << tokens;
    run.free("data");
    run.free("received");
  }
}

TEST(ServingSizes, AShortLastBatchKeepsThePlacesOfAFullOne) {
  const Program program(1, 64);
  Session run(program.plan);
  run.iterate({64});
  run.iterate({64});
  const std::int64_t before = run.allocator().figures().statistics().hits;
  run.microbatch(0, 64, true, /*rows=*/1);
  run.step();
  EXPECT_GE(run.allocator().figures().statistics().hits - before, 4);
  EXPECT_EQ(run.peak_reserved(), program.plan.pool);
}

TEST(ServingSizes, ZeroTokensAskForNothing) {
  const Program program(2, 16);
  Session run(program.plan);
  run.iterate({16, 16});
  EXPECT_GE(run.iterate({0, 16}), 5);
  EXPECT_EQ(run.iterate({16, 16}), 9);
}

TEST(ServingSizes, AnUnexplainedSizeIsServedByItsPlace) {
  Program program(1, 64);
  program.plan.laws[2].terms.clear();
  program.plan.laws[2].constant = 4 * kUnit * 64;
  program.plan.laws[2].proof = LawProof::kUnexplained;
  program.plan.check();
  Session run(program.plan);
  for (const Extent tokens : {64, 7, 33}) EXPECT_EQ(run.iterate({tokens}), 5);
}

TEST(ServingSizes, ALawThatBreaksCostsHitsAndNoAddress) {
  const Program program(2, 64);
  Program other(2, 64);
  other.plan.laws[1] = law_of(3 * kUnit, 7 * kUnit);  // at 64 tokens less than what is asked for
  for (plan::Decision& d : other.plan.decisions) {
    if (d.law == 1) d.size = 3 * kUnit + 7 * kUnit * 64;
  }
  plan::lay_out(other.plan, {.search_steps = 0}, {});
  other.plan.check();
  Session run(other.plan);
  for (int i = 0; i < 4; ++i) {
    const std::int64_t idle = run.allocator().figures().statistics().idle_requests;
    const std::int64_t hits = run.iterate({64, 20});
    EXPECT_GE(hits + run.allocator().figures().statistics().idle_requests - idle, 5)
        << "a departure may take a decision's place, which then lies elsewhere in the pool";
  }
}

// Two dimensions under a budget: many short rows, or few long ones.
TEST(ServingSizes, BatchesThatObeyABudgetShareThePool) {
  plan::Plan plan;
  plan.extent_names = kNames;
  plan.extents = {64, 8};
  SizeLaw both;
  both.terms = {{kUnit, {0, 1, kNone}}};
  SizeLaw rows;
  rows.terms = {{kUnit, {0, kNone, kNone}}};
  plan.laws = {both, rows};
  plan.phases = {{{PhaseKind::kForward, 0, 0, 0}, 0, 8}};
  plan.period = 8;
  for (const auto& [law, size, lower] :
       {std::tuple{0, 512, 0}, std::tuple{1, 64, 1}, std::tuple{0, 512, 2}}) {
    plan.decisions.push_back(
        {.size = size * kUnit, .lower = lower, .upper = 7, .phase = 0, .phase_end = 0, .law = law});
  }
  plan::lay_out(plan, {.search_steps = 0}, {});
  plan.check();
  Session run(plan);
  const auto iterate = [&](Extent r, Extent t) {
    const std::vector<std::int64_t> values = {r, t};
    const std::int64_t before = run.allocator().figures().statistics().hits;
    run.allocator().loop().set_extents(kNames, values);
    run.allocator().loop().enter_phase(PhaseKind::kForward, 0, 0);
    run.alloc("a", kUnit * r * t);
    run.alloc("b", kUnit * r);
    run.alloc("c", kUnit * r * t);
    for (const char* name : {"a", "b", "c"}) run.free(name);
    run.allocator().loop().end_iteration();
    return run.allocator().figures().statistics().hits - before;
  };
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(iterate(64, 8), 3);
    EXPECT_EQ(iterate(8, 64), 3);
    EXPECT_EQ(iterate(16, 32), 3);
  }
  EXPECT_EQ(run.peak_reserved(), plan.pool);
}

// Random programs with extents beyond the plan, late frees, unplanned requests, and exchanges at
// any moment.
TEST(ServingSizes, NoTwoLiveBlocksEverShareAnAddress) {
  for (unsigned seed = 0; seed < 40; ++seed) {
    std::mt19937 random(seed);
    const auto pick = [&](int low, int high) {
      return std::uniform_int_distribution<int>(low, high)(random);
    };
    const bool refers = seed % 4 > 1;
    const Program program(pick(1, 4), pick(1, 40), /*receives=*/false, refers);
    const bool scarce = pick(0, 3) == 0;
    Session run(program.plan, scarce ? program.plan.pool * 3 + (Bytes{8} << 20) : Bytes{1} << 40,
                /*grows=*/seed % 2 == 0);
    int strangers = 0;
    for (int iteration = 0; iteration < 12; ++iteration) {
      const int microbatches = pick(0, 5) == 0 ? pick(1, 6) : program.count;
      for (int m = 0; m < microbatches; ++m) {
        const Extent tokens = pick(0, 7) == 0 ? pick(0, 200) : pick(0, 40);
        const std::string own = std::to_string(iteration) + "." + std::to_string(m);
        if (pick(0, 3) == 0) {
          run.alloc("stranger" + std::to_string(strangers++), pick(1, 90) * 700);
        }
        run.microbatch(m, tokens, pick(0, 9) > 0, pick(0, 9) == 0 ? 2 : 4, refers);
        if (testing::Test::HasFatalFailure()) FAIL() << "seed " << seed;
        if (strangers > 0 && pick(0, 2) == 0) {
          run.free("stranger" + std::to_string(pick(0, strangers - 1)));
        }
      }
      run.step();
    }
  }
}

}  // namespace
}  // namespace stalloc::runtime
