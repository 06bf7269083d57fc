// The program's own order: recorded, used by a plan, and checked.
#include "runtime/program_order.h"

#include <gtest/gtest.h>

#include <vector>

#include "base/error.h"
#include "fake_streams.h"
#include "plan/shared.h"
#include "plans.h"
#include "runtime/recorder.h"
#include "solve/order.h"
#include "solve/waits.h"
#include "verify/order_validator.h"

namespace stalloc {
namespace {

using testing::FakeStreams;

constexpr Bytes kMiB = Bytes{1} << 20;

class ProgramOrderTest : public ::testing::Test {
 protected:
  using Handle = runtime::ProgramOrder::Handle;

  static Handle handle(int stream) {
    return stream == 0 ? 0 : reinterpret_cast<Handle>(FakeStreams::stream(stream));
  }
  // Names streams 0, 1, 2, ... by number.
  ProgramOrderTest() {
    for (int i = 1; i < 4; ++i) table_.id_of(FakeStreams::stream(i));
  }
  void pass(int from, int to, Tick recorded, Tick awaited) {
    order_.record(++events_, handle(from), recorded);
    order_.wait(events_, handle(to), awaited);
  }
  // Up to which tick `stream` is ordered after `after` in the end; -1 for not at all.
  static Tick last(const std::vector<Order>& rows, StreamId stream, StreamId after) {
    Tick upto = -1;
    for (const Order& o : rows) {
      if (o.stream == stream && o.after == after) upto = o.upto;
    }
    return upto;
  }

  runtime::StreamTable table_;
  runtime::ProgramOrder order_;
  Handle events_ = 1000;
};

TEST_F(ProgramOrderTest, AWaitReachesToTheNextWork) {
  pass(0, 1, 5, 9);
  order_.note_work(0, 3);
  order_.note_work(0, 20);
  order_.record(++events_, handle(0), 30);
  const std::vector<Order> rows = order_.take(table_, 99);
  ASSERT_EQ(rows.size(), 1u);
  EXPECT_EQ(rows[0].tick, 9);
  EXPECT_EQ(rows[0].stream, 1);
  EXPECT_EQ(rows[0].after, 0);
  EXPECT_EQ(rows[0].upto, 20);
  EXPECT_TRUE(order_.take(table_, 99).empty());
}

TEST_F(ProgramOrderTest, OrderIsTransitive) {
  pass(0, 1, 5, 6);
  pass(1, 2, 7, 8);
  pass(0, 1, 9, 10);
  pass(2, 3, 12, 13);
  pass(1, 2, 15, 16);
  pass(0, 1, 17, 18);
  const std::vector<Order> rows = order_.take(table_, 99);
  EXPECT_EQ(last(rows, 2, 0), 17) << "busy again";
  EXPECT_EQ(last(rows, 2, 1), 18);
  EXPECT_EQ(last(rows, 0, 2), -1);
}

TEST_F(ProgramOrderTest, OrderPassesThroughStreamsWithoutANumber) {
  pass(0, 70, 5, 6);
  pass(70, 1, 7, 8);
  order_.note_work(0, 5);
  EXPECT_EQ(last(order_.take(table_, 99), 1, 0), 5);
}

TEST_F(ProgramOrderTest, AnEventThatIsGoneOrdersNothing) {
  order_.record(1, handle(0), 5);
  order_.forget(1);
  order_.wait(1, handle(1), 6);
  order_.wait(2, handle(1), 6);
  EXPECT_TRUE(order_.take(table_, 99).empty());
}

TEST_F(ProgramOrderTest, TheHostOrdersAllStreamsAndThoseToCome) {
  pass(0, 1, 1, 2);
  order_.record(1, handle(0), 5);
  order_.synchronize_event(1, 6);
  order_.note_work(0, 5);
  pass(2, 3, 7, 8);
  std::vector<Order> rows = order_.take(table_, 99);
  EXPECT_EQ(last(rows, 1, 0), 5);
  EXPECT_EQ(last(rows, 2, 0), 5) << "seen later";
  EXPECT_EQ(last(rows, 1, 2), -1);
  pass(0, 1, 1, 2);
  order_.synchronize_device(9);
  rows = order_.take(table_, 99);
  EXPECT_EQ(last(rows, 1, 0), 99);
  EXPECT_EQ(last(rows, 0, 1), 99);
}

TEST_F(ProgramOrderTest, ThousandsOfStreamsAreNotFollowed) {
  for (int i = 1; i < 5000; ++i) pass(i, i + 1, i, i);
  const auto most = static_cast<std::ptrdiff_t>(runtime::ProgramOrder::kMostStreams);
  EXPECT_LT(std::ssize(order_.take(table_, 99)), most * most);
}

TEST_F(ProgramOrderTest, ARecordingHasIt) {
  runtime::Recorder recorder;
  recorder.start();
  recorder.on_allocate(this, 512, 0, true, {});
  recorder.on_event(runtime::Recorder::Event::kRecorded, 1, handle(0));
  recorder.on_free(this, {});
  recorder.on_event(runtime::Recorder::Event::kAwaited, 1, handle(1));
  recorder.on_allocate(this, 512, 0, true, {});
  const trace::Trace trace = recorder.finish(&table_);
  ASSERT_EQ(trace.orders.size(), 1u);
  EXPECT_EQ(trace.orders[0].tick, 2);
  EXPECT_EQ(trace.orders[0].upto, 2) << "the next allocation";
  trace.check();
}

// Two streams with a block each, which may share an address if stream 1 waits in between.
class SharedTest : public ::testing::Test {
 protected:
  static plan::Plan separate() {
    plan::Plan plan =
        testing::plan_of({{.size = kMiB, .offset = 0, .lower = 0, .upper = 1, .stream = 0},
                          {.size = kMiB, .offset = kMiB, .lower = 4, .upper = 6, .stream = 1}},
                         8);
    return plan;
  }
  // Stream 1 comes at `tick` after what stream 0 had got before `upto`.
  static std::vector<Order> orders(Tick tick, Tick upto) {
    return {{.tick = 0, .stream = 0, .after = 1, .upto = -1},
            {.tick = tick, .stream = 1, .after = 0, .upto = upto}};
  }
  static plan::Plan shared(const std::vector<Order>& orders) {
    plan::Plan plan = separate();
    plan::share_addresses(plan, orders, {}, {});
    plan.check();
    return plan;
  }
};

TEST_F(SharedTest, AddressesAreSharedWhereTheProgramOrdersThem) {
  const plan::Plan plan = shared(orders(3, 2));
  EXPECT_EQ(plan.pool, kMiB);
  EXPECT_EQ(plan.streams, solve::Streams::kOrdered);
  EXPECT_FALSE(plan.orders.empty());
}

TEST_F(SharedTest, AnOrderThatComesTooLateOrReachesNotFarEnoughIsOfNoUse) {
  for (const auto& rows : {orders(5, 2), orders(3, 1), std::vector<Order>{}}) {
    const plan::Plan plan = shared(rows);
    EXPECT_EQ(plan.pool, 2 * kMiB);
    EXPECT_EQ(plan.streams, solve::Streams::kSeparate);
    EXPECT_TRUE(plan.orders.empty());
  }
}

TEST_F(SharedTest, AnAddressStaysIdleUntilTheProgramOrdersTheStreams) {
  // A third block could follow the first one at once, but for the order at tick 3.
  plan::Plan plan = testing::plan_of(
      {{.size = kMiB, .offset = 0, .lower = 0, .upper = 1, .stream = 0},
       {.size = kMiB, .offset = kMiB, .lower = 2, .upper = 4, .stream = 1},
       {.size = kMiB, .offset = 2 * kMiB, .lower = 4, .upper = 5, .stream = 1},
       {.size = 2 * kMiB, .offset = 3 * kMiB, .lower = 5, .upper = 6, .stream = 1}},
      8);
  plan::share_addresses(plan, orders(3, 2), {}, {});
  plan.check();
  EXPECT_EQ(plan.pool, 2 * kMiB);
  EXPECT_NE(plan.decisions[0].offset, plan.decisions[1].offset);
  EXPECT_EQ(plan.orders.size(), 2u);
}

TEST_F(SharedTest, TheCheckNoticesABrokenOrder) {
  plan::Plan plan = shared(orders(3, 2));
  plan.orders[1].upto = 1;
  EXPECT_THROW(plan.check(), PlanError);
  plan.orders[1] = {.tick = 5, .stream = 1, .after = 0, .upto = 2};
  EXPECT_THROW(plan.check(), PlanError);
  for (const Order& damaged : {Order{.tick = -1}, Order{.tick = 8}, Order{.stream = -1},
                               Order{.upto = kNever}, Order{.upto = -kNever}}) {
    plan.orders[1] = damaged;
    EXPECT_THROW(plan.check(), PlanError);
  }
  plan.orders[1] = {.tick = 3, .stream = 1, .after = 0, .upto = 2};
  EXPECT_NO_THROW(plan.check());
  plan.orders.erase(plan.orders.begin());
  EXPECT_THROW(plan.check(), PlanError) << "the next iteration";
}

TEST_F(SharedTest, TheOrderRepeatsWithTheIteration) {
  // The second block, freed at tick 6, is followed by the first one of the next iteration, which
  // comes after all work up to tick -2 + 8.
  const std::vector<Order> enough{{.tick = 0, .stream = 0, .after = 1, .upto = -1},
                                  {.tick = 3, .stream = 1, .after = 0, .upto = 2}};
  EXPECT_EQ(shared(enough).pool, kMiB);
  std::vector<Order> short_of_it = enough;
  short_of_it[0].upto = -2;
  EXPECT_EQ(shared(short_of_it).pool, 2 * kMiB);
}

}  // namespace
}  // namespace stalloc
