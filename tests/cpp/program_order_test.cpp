// The program's own order: recorded, used by a plan, and checked.
#include "runtime/program_order.h"

#include <gtest/gtest.h>

#include <vector>

#include "base/error.h"
#include "fake_streams.h"
#include "plan/covered.h"
#include "plan/shared.h"
#include "plans.h"
#include "profile/lifetimes.h"
#include "runtime/recorder.h"
#include "solve/order.h"
#include "solve/waits.h"
#include "trace_builder.h"
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

// Stream 1 waits for stream 0 once an iteration, and works for the last time before the recording
// ends.
TEST(ProfiledOrders, AStreamThatIsIdleInTheEndIsBusyAgainAsBefore) {
  testing::TraceBuilder builder;
  std::vector<Order> orders;
  for (int i = 0; i < 3; ++i) {
    const Tick begin = builder.now();
    builder.free(builder.alloc(kMiB, 1));
    builder.free(builder.alloc(kMiB, 0));
    const Tick next = i < 2 ? begin + 4 : kNever;  // the next allocation of stream 1
    orders.push_back({.tick = begin + 2, .stream = 0, .after = 1, .upto = next});
    builder.step();
  }
  trace::Trace trace = builder.finish();
  orders.back().upto = trace.end;
  trace.orders = orders;
  const profile::IterationProfile profile = profile::profile_iteration(trace);
  ASSERT_EQ(profile.orders.size(), 1u);
  EXPECT_EQ(profile.orders[0].tick, 2);
  EXPECT_EQ(profile.orders[0].upto, 4);
  trace.end += 1;  // so is it if the recording goes on a little
  trace.orders.back().upto += 1;
  EXPECT_EQ(profile::profile_iteration(trace).orders[0].upto, 5);
  trace.orders[1].upto += 3;
  EXPECT_EQ(profile::profile_iteration(trace).orders[0].upto, 7);
  trace.orders[1].tick -= 1;
  EXPECT_EQ(profile::profile_iteration(trace).orders[0].upto, 5) << "another order before";
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

// Stream 1 comes after stream 0 from tick 5 on. Until then it has other addresses, and stream 0
// uses its own again:
//
//   offset   2 MiB        [ b )               stream 1
//            0      [ a )   [ c )[ d )        streams 0, 0 and 1
TEST_F(SharedTest, AnAddressIsClosedToOthersOnly) {
  plan::Plan plan = testing::plan_of(
      {{.size = 2 * kMiB, .offset = 0, .lower = 0, .upper = 2, .stream = 0},
       {.size = kMiB, .offset = 2 * kMiB, .lower = 2, .upper = 4, .stream = 1},
       {.size = kMiB, .offset = 0, .lower = 3, .upper = 4, .stream = 0},
       {.size = 2 * kMiB, .offset = 2 * kMiB, .lower = 5, .upper = 6, .stream = 1}},
      8);
  plan::share_addresses(plan, orders(5, 5), {}, {});
  plan.check();
  EXPECT_EQ(plan.pool, 3 * kMiB);
  EXPECT_EQ(plan.streams, solve::Streams::kOrdered);
}

// Two slots for state of stream 0 that is replaced, with a request of its iteration in the spare
// one, and blocks of two streams above them.
TEST_F(SharedTest, RequestsInIdleSlotsDoNotKeepStreamsApart) {
  plan::Plan plan = testing::plan_of(
      {{.size = kMiB, .offset = 0, .lower = 0, .upper = 8, .stream = 0, .slots = 0, .over = 1},
       {.size = kMiB, .offset = 0, .lower = 2, .upper = 4, .stream = 0, .slots = 0, .box = 0},
       {.size = kMiB, .offset = 2 * kMiB, .lower = 3, .upper = 5, .stream = 0},
       {.size = kMiB, .offset = 3 * kMiB, .lower = 6, .upper = 7, .stream = 1}},
      8);
  plan.slots = {{.size = kMiB, .offset = 0, .count = 2, .stream = 0}};
  plan.check();
  plan::share_addresses(plan,
                        {{{.tick = 0, .stream = 0, .after = 1, .upto = 0},
                          {.tick = 6, .stream = 1, .after = 0, .upto = 6}}},
                        {}, {});
  plan.check();
  EXPECT_EQ(plan.pool, 3 * kMiB);
  EXPECT_EQ(plan.streams, solve::Streams::kOrdered);
}

TEST_F(SharedTest, OrdersGoWhereALayoutDoesNotKeepThem) {
  plan::Plan plan = shared(orders(3, 2));
  plan::drop_uncovered_orders(plan);
  EXPECT_FALSE(plan.orders.empty());
  plan.orders[1].upto = 1;
  plan::drop_uncovered_orders(plan);
  EXPECT_TRUE(plan.orders.empty());
  EXPECT_NO_THROW(plan.check());
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
