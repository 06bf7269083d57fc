#include "runtime/evaluations.h"

#include <gtest/gtest.h>

#include <array>
#include <cstdlib>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "device/pretend.h"
#include "plans.h"
#include "runtime/planned_allocator.h"

namespace stalloc {
namespace {

constexpr Bytes kMiB = Bytes{1} << 20;
constexpr auto kForward = runtime::Evaluations::Part::kForward;

// One iteration has one request of `pool` bytes.
plan::Plan one_block(Bytes pool) {
  plan::Decision d;
  d.size = pool;
  d.upper = 1;
  return testing::plan_of({d}, 2);
}

class EvaluationsTest : public ::testing::Test {
 protected:
  void* allocate(Bytes size) { return allocator_.allocate(size, 0, /*for_training=*/false); }
  void free(void* p) { EXPECT_TRUE(allocator_.deallocate(p)); }
  std::int64_t planned() const { return allocator_.figures().statistics().evaluation_requests; }
  runtime::TrainingLoop& loop() { return allocator_.loop(); }

  // A forward of two layers: the output of each lives until that of the next one is made.
  void forward(Bytes size) {
    loop().begin_evaluation();
    void* before = allocate(size);
    for (int i = 0; i < 2; ++i) {
      void* next = allocate(size);
      free(before);
      before = next;
    }
    free(before);
    allocator_.inspect().check();
  }
  void evaluate(const std::vector<Bytes>& sizes) {
    loop().enter_unplanned();
    for (const Bytes size : sizes) forward(size);
    loop().leave_unplanned();
    allocator_.inspect().check();
  }

  device::PretendMemory device_{100 * kMiB};
  runtime::PlannedAllocator allocator_{device_};
};

TEST_F(EvaluationsTest, PlansAllForwardsButTheFirst) {
  allocator_.enable(one_block(4 * kMiB));
  evaluate({kMiB, kMiB, kMiB / 2});
  EXPECT_EQ(planned(), 6) << "a smaller batch is served at the same offsets";
  evaluate({kMiB});
  EXPECT_EQ(planned(), 9);
  const runtime::Statistics s = allocator_.figures().statistics();
  EXPECT_EQ(s.unplanned_requests, 12);
  EXPECT_EQ(s.idle_requests, 3);
  EXPECT_EQ(s.served_as_planned(), 9);
  EXPECT_EQ(s.requests(), 12);
  EXPECT_EQ(s.run_peak_reserved, 4 * kMiB);
}

// A variable of the loop holds the output of a forward until that of the next one exists, and the
// last one until the next evaluation.
TEST_F(EvaluationsTest, OutputsThatOutliveTheirForwardLieAtTheEndsOfThePool) {
  allocator_.enable(one_block(16 * kMiB));
  void* kept = nullptr;
  std::vector<const char*> outputs;
  for (int evaluation = 0; evaluation < 3; ++evaluation) {
    loop().enter_unplanned();
    for (int i = 0; i < 3; ++i) {
      loop().begin_evaluation();
      void* const hidden = allocate(2 * kMiB);
      void* const output = allocate(kMiB);
      free(hidden);
      if (kept) free(kept);
      kept = output;
      outputs.push_back(static_cast<const char*>(output));
    }
    loop().leave_unplanned();
    allocator_.inspect().check();
    loop().end_iteration();
  }
  free(kept);
  std::vector<Bytes> offsets;  // the first one's place was not known to be that of an output
  for (std::size_t i = 1; i < outputs.size(); ++i) offsets.push_back(outputs[i] - outputs[2]);
  constexpr Bytes kGap = Bytes{64} << 10;  // for small blocks
  constexpr Bytes kLast = 15 * kMiB - 2 * kGap;
  constexpr Bytes kNext = kMiB + kGap;
  EXPECT_EQ(offsets, (std::vector<Bytes>{kLast, 0, kNext, kLast, 0, kNext, kLast, 0}));
}

TEST_F(EvaluationsTest, GrowsWithTheBatches) {
  allocator_.enable(one_block(4 * kMiB));
  evaluate({kMiB, 2 * kMiB, 2 * kMiB});
  EXPECT_EQ(planned(), 3) << "the second is larger than the first";
  EXPECT_EQ(allocator_.figures().statistics().fallback_requests, 0);
}

TEST_F(EvaluationsTest, AnotherProgramReplacesTheFirst) {
  allocator_.enable(one_block(8 * kMiB));
  evaluate({kMiB});
  for (int i = 0; i < 2; ++i) {
    loop().enter_unplanned();
    loop().begin_evaluation();
    for (int r = 0; r < 9; ++r) free(allocate(2 * kMiB));
    loop().leave_unplanned();
  }
  EXPECT_EQ(planned(), 9);
}

TEST_F(EvaluationsTest, AnEvaluationThatThePoolCannotHoldIsServedAsBefore) {
  allocator_.enable(one_block(kMiB));
  evaluate({kMiB / 4});
  loop().enter_phase(trace::PhaseKind::kForward, 0, 0);
  void* all = allocate(kMiB);
  evaluate({kMiB / 4});
  EXPECT_EQ(planned(), 0);
  EXPECT_EQ(allocator_.figures().statistics().fallback_requests, 3);
  free(all);
}

class GrowingEvaluationsTest : public EvaluationsTest {
 protected:
  GrowingEvaluationsTest() { growing_.enable(one_block(2 * kMiB)); }
  ~GrowingEvaluationsTest() override { EXPECT_EQ(memory_.wrong_releases(), 0); }

  void evaluate() {
    growing_.loop().enter_unplanned();
    growing_.loop().begin_evaluation();
  }

  // Makes two blocks live together, which the pool cannot hold, and returns what lies beside it.
  std::int64_t hold_two(Bytes size) {
    void* a = growing_.allocate(size, 0, /*for_training=*/true);
    void* b = growing_.allocate(size, 0, /*for_training=*/true);
    growing_.inspect().check();
    const std::int64_t beside = growing_.figures().statistics().fallback_requests;
    EXPECT_TRUE(growing_.deallocate(a));
    EXPECT_TRUE(growing_.deallocate(b));
    growing_.inspect().check();
    return beside;
  }
  Bytes reserved() const { return growing_.figures().statistics().reserved.current; }

  device::PretendMemory memory_{100 * kMiB, /*grows=*/true};
  runtime::PlannedAllocator growing_{memory_};
};

TEST_F(GrowingEvaluationsTest, ALargerEvaluationAddsMemoryBehindThePool) {
  evaluate();
  EXPECT_EQ(hold_two(3 * kMiB / 2), 0);
  growing_.loop().leave_unplanned();
  EXPECT_EQ(reserved(), 3 * kMiB) << "the idle end of the pool counts";
  EXPECT_EQ(memory_.used(), 3 * kMiB);
  EXPECT_EQ(growing_.figures().statistics().pool, 3 * kMiB);
}

// Two outputs that live together, of sizes that a first request tells.
TEST_F(GrowingEvaluationsTest, AFirstSizeTellsHowMuchALargerForwardNeeds) {
  growing_.loop().enter_unplanned();
  const auto forward = [&](Bytes size) {
    growing_.loop().begin_evaluation();
    void* first = growing_.allocate(size, 0, /*for_training=*/true);
    void* second = growing_.allocate(2 * size, 0, /*for_training=*/true);
    EXPECT_TRUE(growing_.deallocate(first));
    void* third = growing_.allocate(3 * size + kMiB / 4, 0, /*for_training=*/true);
    growing_.inspect().check();
    EXPECT_TRUE(growing_.deallocate(second));
    EXPECT_TRUE(growing_.deallocate(third));
  };
  for (const Bytes size : {kMiB / 8, kMiB / 4, kMiB}) forward(size);
  growing_.loop().leave_unplanned();
  growing_.inspect().check();
  EXPECT_EQ(growing_.figures().statistics().evaluation_requests, 3)
      << "those of the third forward, the largest";
  constexpr Bytes kLoad = 5 * kMiB + kMiB / 4;  // of the second and third request
  EXPECT_LE(reserved(), kLoad + kMiB) << "the first lies below the second";
}

// The first size that varies is that of a request after the outputs, such as a metric's.
TEST_F(GrowingEvaluationsTest, ASizeThatVariesLateAddsNoSecondLayout) {
  constexpr Bytes kOutput = 4 * kMiB;
  growing_.loop().enter_unplanned();
  for (const Bytes size : {kMiB / 8, kMiB / 4, kMiB / 2}) {
    growing_.loop().begin_evaluation();
    void* output = growing_.allocate(kOutput, 0, /*for_training=*/true);
    EXPECT_TRUE(growing_.deallocate(growing_.allocate(size, 0, /*for_training=*/true)));
    growing_.inspect().check();
    EXPECT_TRUE(growing_.deallocate(output));
  }
  growing_.loop().leave_unplanned();
  growing_.inspect().check();
  EXPECT_LE(growing_.figures().statistics().run_peak_reserved, kOutput + kMiB);
}

// The sizes of one program tell nothing of another one's.
TEST_F(GrowingEvaluationsTest, AnotherProgramsSizesAreForgotten) {
  growing_.loop().enter_unplanned();
  const auto forward = [&](Bytes first, Bytes others, int count) {
    growing_.loop().begin_evaluation();
    EXPECT_TRUE(growing_.deallocate(growing_.allocate(first, 0, /*for_training=*/true)));
    for (int i = 0; i < count; ++i) {
      EXPECT_TRUE(growing_.deallocate(growing_.allocate(others, 0, /*for_training=*/true)));
    }
    growing_.inspect().check();
  };
  for (const Bytes size : {kMiB / 16, kMiB / 8}) forward(size, 4 * size, 3);
  for (int i = 0; i < 2; ++i) forward(kMiB / 4, kMiB, 9);
  forward(4 * kMiB, kMiB, 9);
  growing_.loop().leave_unplanned();
  EXPECT_EQ(reserved(), 4 * kMiB) << "the others are no larger than before";
}

// A generation has many steps of one token each, whose sizes rise, and then a prompt: in proportion
// to its first size, the others would need 24 MiB.
TEST_F(GrowingEvaluationsTest, APromptAfterStepsIsNoLargerBatch) {
  growing_.loop().enter_unplanned();
  const auto forward = [&](Bytes first, Bytes others) {
    growing_.loop().begin_evaluation();
    EXPECT_TRUE(growing_.deallocate(growing_.allocate(first, 0, /*for_training=*/true)));
    for (int i = 0; i < 3; ++i) {
      EXPECT_TRUE(growing_.deallocate(growing_.allocate(others, 0, /*for_training=*/true)));
    }
    growing_.inspect().check();
  };
  for (const Bytes size : {kMiB / 16, kMiB / 8}) forward(size, 8 * size);
  forward(3 * kMiB, 2 * kMiB);
  growing_.loop().leave_unplanned();
  EXPECT_LE(growing_.figures().statistics().run_peak_reserved, 4 * kMiB);
}

TEST_F(GrowingEvaluationsTest, TheLossAfterAForwardBelongsToTheEvaluation) {
  growing_.loop().end_iteration();
  growing_.loop().enter_phase(trace::PhaseKind::kOther, 0, 0);
  evaluate();
  growing_.loop().leave_unplanned();
  EXPECT_EQ(hold_two(3 * kMiB / 2), 0);
  growing_.loop().enter_phase(trace::PhaseKind::kForward, 0, 0);
  growing_.loop().enter_phase(trace::PhaseKind::kOther, 0, 0);
  EXPECT_EQ(hold_two(2 * kMiB), 1) << "training departs beside the pool";
}

TEST_F(GrowingEvaluationsTest, WorkWithoutAForwardAddsNoMemory) {
  growing_.loop().enter_unplanned();
  EXPECT_GT(hold_two(2 * kMiB), 0);
  growing_.loop().leave_unplanned();
  evaluate();
  growing_.loop().leave_unplanned();
  growing_.loop().enter_unplanned();
  EXPECT_GT(hold_two(2 * kMiB), 1) << "nor after an evaluation";
  growing_.loop().leave_unplanned();
}

TEST_F(GrowingEvaluationsTest, ADeviceThatRefusesLeavesTheRequestBesideThePool) {
  evaluate();
  memory_.fail_at(1);
  EXPECT_EQ(hold_two(3 * kMiB / 2), 1);
  growing_.loop().leave_unplanned();
  EXPECT_EQ(growing_.figures().statistics().pool, 2 * kMiB);
}

// Each first forward takes idle addresses from the bottom, so that what the pool lacks is added to
// one idle range at its end.
TEST_F(GrowingEvaluationsTest, AFirstForwardNeedsNoMoreThanItsLoad) {
  evaluate();
  const auto allocate = [&](Bytes size) { return growing_.allocate(size, 0, true); };
  const auto free = [&](void* p) { EXPECT_TRUE(growing_.deallocate(p)); };
  void* tokens = allocate(1000);  // whose lifetime is not known: beside the pool
  void* x = allocate(kMiB / 16);
  for (int layer = 0; layer < 3; ++layer) {
    void* hidden = allocate(kMiB / 8);
    void* y = allocate(kMiB / 16);
    free(hidden);
    free(x);
    x = y;
  }
  void* scores = allocate(kMiB);
  free(x);
  void* copy = allocate(2 * kMiB);
  void* logarithms = allocate(2 * kMiB);
  growing_.inspect().check();
  EXPECT_LE(growing_.figures().statistics().pool, 5 * kMiB + kMiB / 4);
  EXPECT_EQ(growing_.figures().statistics().fallback_requests, 1);
  for (void* p : {tokens, scores, copy, logarithms}) free(p);
  growing_.loop().leave_unplanned();
}

// The same of a list: the pool grows once for all outputs, and they lie side by side.
TEST_F(GrowingEvaluationsTest, OutputsThatPileUpLieAtTheBeginning) {
  std::vector<void*> kept;
  growing_.loop().enter_unplanned();
  for (int i = 0; i < 6; ++i) {
    growing_.loop().begin_evaluation();
    void* hidden = growing_.allocate(2 * kMiB, 0, true);
    kept.push_back(growing_.allocate(kMiB, 0, true));
    EXPECT_TRUE(growing_.deallocate(hidden));
    growing_.inspect().check();
  }
  growing_.loop().leave_unplanned();
  EXPECT_LE(reserved(), 9 * kMiB) << "six of 1 MiB and one of 2 MiB, of which one may lie between";
  EXPECT_EQ(growing_.figures().statistics().fallback_requests, 0);
  for (void* p : kept) EXPECT_TRUE(growing_.deallocate(p));
}

// A device without virtual memory, or one that is to give plain memory only.
// A sample that the loop makes, and that the next batch may replace.
class ResultsTest : public ::testing::Test {
 protected:
  ResultsTest() { allocator_.enable(testing::block_of_tokens(kMiB)); }

  void enter_forward() {
    const std::vector<std::string> names = {"ids.0"};
    allocator_.loop().set_extents(names, std::vector<std::int64_t>{16});
    allocator_.loop().enter_phase(trace::PhaseKind::kForward, 0, 0);
  }
  void* allocate(Bytes size) { return allocator_.allocate(size, 0, /*for_training=*/true); }
  void free(void* p) {
    EXPECT_TRUE(allocator_.deallocate(p));
    allocator_.inspect().check();
  }
  void train(std::int64_t hits) {
    const std::int64_t before = allocator_.figures().statistics().hits;
    enter_forward();
    free(allocate(16 * kMiB));
    allocator_.loop().enter_phase(trace::PhaseKind::kOther, 0, 0);
    allocator_.loop().end_iteration();
    EXPECT_EQ(allocator_.figures().statistics().hits - before, hits);
  }
  void* evaluate() {
    allocator_.loop().enter_unplanned();
    allocator_.loop().begin_evaluation();
    void* result = allocate(12 * kMiB);
    allocator_.loop().leave_unplanned();
    return result;
  }

  device::PretendMemory device_{100 * kMiB, /*grows=*/true};
  runtime::PlannedAllocator allocator_{device_};
};

TEST_F(ResultsTest, ThatTheNextBatchReplacesNeedNoMemoryOfTheirOwn) {
  train(/*hits=*/1);
  void* result = evaluate();
  EXPECT_EQ(device_.used(), 16 * kMiB) << "it lies in the pool";
  enter_forward();
  free(result);
  train(/*hits=*/1);
  EXPECT_EQ(device_.used(), 16 * kMiB);
}

TEST_F(ResultsTest, ThatOutliveAnIterationGetALayoutAroundThem) {
  train(/*hits=*/1);
  void* result = evaluate();
  train(/*hits=*/0);
  train(/*hits=*/1);
  EXPECT_EQ(allocator_.figures().statistics().relayouts, 1);
  free(result);
}

TEST_F(EvaluationsTest, APoolOfPlainMemoryLeavesWhatItCannotHoldToTheFallback) {
  allocator_.enable(one_block(2 * kMiB));
  loop().enter_unplanned();
  loop().begin_evaluation();
  void* a = allocate(3 * kMiB / 2);
  void* b = allocate(kMiB);
  allocator_.inspect().check();
  EXPECT_EQ(allocator_.figures().statistics().fallback_requests, 1);
  EXPECT_EQ(allocator_.figures().statistics().pool, 2 * kMiB);
  free(a);
  free(b);
  loop().leave_unplanned();
}

// In a first forward it lies beside the pool, and its free tells that it does not stay.
TEST_F(GrowingEvaluationsTest, ASmallBlockThatIsFreedIsPlannedFromTheSecondForwardOn) {
  std::vector<void*> kept;
  growing_.loop().enter_unplanned();
  for (int i = 0; i < 3; ++i) {
    growing_.loop().begin_evaluation();
    void* hidden = growing_.allocate(kMiB, 0, /*for_training=*/true);
    void* mask = growing_.allocate(1000, 0, /*for_training=*/true);
    kept.push_back(growing_.allocate(500, 0, /*for_training=*/true));
    EXPECT_TRUE(growing_.deallocate(mask));
    EXPECT_TRUE(growing_.deallocate(hidden));
    growing_.inspect().check();
  }
  growing_.loop().leave_unplanned();
  const runtime::Statistics s = growing_.figures().statistics();
  EXPECT_EQ(s.evaluation_requests, 4) << "the large one and the mask, twice";
  EXPECT_EQ(s.fallback_requests, 4) << "the mask at first, and what is kept";
  for (void* p : kept) EXPECT_TRUE(growing_.deallocate(p));
}

TEST_F(GrowingEvaluationsTest, ThePoolCanGoAndComeBack) {
  evaluate();
  EXPECT_EQ(hold_two(2 * kMiB), 0);
  growing_.loop().leave_unplanned();
  EXPECT_EQ(reserved(), 4 * kMiB);
  growing_.release_pool();
  EXPECT_EQ(memory_.used(), 0);
  growing_.acquire_pool();
  EXPECT_EQ(reserved(), 4 * kMiB);
  growing_.loop().enter_phase(trace::PhaseKind::kForward, 0, 0);
  void* planned = growing_.allocate(2 * kMiB, 0, /*for_training=*/true);
  EXPECT_EQ(growing_.figures().statistics().conflicts, 0);
  growing_.disable();
  EXPECT_EQ(memory_.used(), 2 * kMiB) << "a block lies there, and the rest goes";
  EXPECT_TRUE(growing_.deallocate(planned));
  EXPECT_EQ(memory_.used(), 0);
}

TEST_F(GrowingEvaluationsTest, NoBlocksOverlapWhateverComes) {
  std::mt19937 random(1);
  const auto below = [&](std::size_t n) { return random() % n; };
  std::vector<void*> live;
  const auto free_one = [&] {
    std::swap(live[below(live.size())], live.back());
    EXPECT_TRUE(growing_.deallocate(live.back()));
    live.pop_back();
    growing_.inspect().check();
  };
  bool fails = false;  // a call will
  for (int step = 0; step < 3000; ++step) {
    if (below(3) == 0) evaluate();
    for (std::size_t r = below(6); r > 0; --r) {
      if (below(50) == 0) {
        memory_.fail_at(1 + static_cast<int>(below(2)));
        fails = true;
      }
      const auto size = static_cast<Bytes>(1 + below(3 * kMiB));
      try {
        live.push_back(growing_.allocate(size, 0, /*for_training=*/below(8) > 0));
      } catch (const OutOfMemory&) {
        EXPECT_TRUE(fails) << "memory is left";
        fails = false;
      }
      growing_.inspect().check();
    }
    while (live.size() > below(5)) free_one();
    if (below(2) == 0) {
      growing_.loop().leave_unplanned();
      growing_.loop().enter_phase(trace::PhaseKind::kForward, 0, 0);
    }
    if (below(4) == 0) growing_.loop().end_iteration();
    growing_.inspect().check();
  }
  while (!live.empty()) free_one();
  EXPECT_GT(growing_.figures().statistics().pool, 2 * kMiB);
}

TEST_F(EvaluationsTest, ABlockThatOutlivesItsForwardIsNoneOfTheLayout) {
  allocator_.enable(one_block(8 * kMiB));
  std::vector<void*> kept;
  loop().enter_unplanned();
  for (int i = 0; i < 4; ++i) {
    loop().begin_evaluation();
    void* p = allocate(kMiB);
    kept.push_back(allocate(1000));
    free(p);
    allocator_.inspect().check();
  }
  loop().leave_unplanned();
  EXPECT_EQ(planned(), 3);
  loop().enter_phase(trace::PhaseKind::kForward, 0, 0);
  EXPECT_NE(allocate(8 * kMiB), nullptr);
  EXPECT_EQ(allocator_.figures().statistics().conflicts, 1) << "they are in the way";
  for (void* p : kept) free(p);
}

TEST_F(EvaluationsTest, ASmallBlockThatStaysIsInNobodysWay) {
  allocator_.enable(one_block(8 * kMiB));
  std::vector<void*> batches;
  loop().enter_unplanned();
  for (int i = 0; i < 3; ++i) {
    loop().begin_evaluation();
    free(allocate(kMiB));
    batches.push_back(allocate(1000));  // for the next forward
    if (i > 0) free(batches[static_cast<std::size_t>(i) - 1]);
  }
  loop().leave_unplanned();
  EXPECT_EQ(allocator_.figures().statistics().fallback_requests, 2) << "the first is not known";
  loop().enter_phase(trace::PhaseKind::kForward, 0, 0);
  void* planned = allocate(8 * kMiB);
  EXPECT_EQ(allocator_.figures().statistics().conflicts, 0);
  free(planned);
  free(batches.back());
}

TEST_F(EvaluationsTest, LessThanAPageIsSmallInAPoolOfAnySize) {
  constexpr Bytes kPool = Bytes{64} << 10;
  allocator_.enable(one_block(kPool));
  std::vector<void*> batches;
  loop().enter_unplanned();
  for (int i = 0; i < 3; ++i) {
    loop().begin_evaluation();
    free(allocate(kPool / 2));
    batches.push_back(allocate(256));  // for the next forward
    if (i > 0) free(batches[static_cast<std::size_t>(i) - 1]);
  }
  loop().leave_unplanned();
  loop().enter_phase(trace::PhaseKind::kForward, 0, 0);
  void* planned = allocate(kPool);
  EXPECT_EQ(allocator_.figures().statistics().conflicts, 0);
  free(planned);
  free(batches.back());
}

TEST_F(EvaluationsTest, NoBlocksOverlapWhateverAnEvaluationDoes) {
  allocator_.enable(one_block(16 * kMiB));
  std::mt19937 random(1);
  const auto below = [&](std::size_t n) { return random() % n; };
  std::vector<void*> live;
  const auto free_one = [&](std::vector<void*>& blocks) {
    std::swap(blocks[below(blocks.size())], blocks.back());
    free(blocks.back());
    blocks.pop_back();
  };
  const auto end_iteration = [&] {
    loop().end_iteration();
    loop().enter_phase(trace::PhaseKind::kForward, 0, 0);
  };
  for (int step = 0; step < 300; ++step) {
    if (below(4) == 0) end_iteration();
    if (below(4) == 0) live.push_back(allocate(below(2) == 0 ? 16 * kMiB : 200000));
    if (live.size() > 3) free_one(live);
    loop().enter_unplanned();
    for (std::size_t f = below(4); f > 0; --f) {
      loop().begin_evaluation();
      std::vector<void*> mine;
      for (std::size_t r = 0; r < 8; ++r) {
        const std::size_t size = (r + 1) * 100000 / (1 + below(2));
        mine.push_back(allocate(static_cast<Bytes>(below(20) == 0 ? 2 * size : size)));
        if (mine.size() > 2) free_one(mine);
        if (below(50) == 0) end_iteration();
        allocator_.inspect().check();
      }
      if (below(8) == 0) {
        live.push_back(mine.back());
        mine.pop_back();
      }
      while (!mine.empty()) free_one(mine);
    }
    loop().leave_unplanned();
    allocator_.inspect().check();
  }
  EXPECT_GT(planned(), 300);
  for (void* p : live) free(p);
}

TEST(Evaluations, TellsOffsetsOfTheSecondForward) {
  runtime::Evaluations evaluations(512);
  int a = 0;
  int b = 0;
  for (int i = 0; i < 2; ++i) {
    evaluations.begin(kForward);
    const Offset first = evaluations.next(1000, 0);
    evaluations.serve(&a);
    const Offset second = evaluations.next(1000, 0);
    evaluations.serve(&b);
    evaluations.release(&b);
    evaluations.release(&a);
    EXPECT_EQ(first != kUnplaced, i == 1);
    if (i == 1) {
      EXPECT_EQ(std::abs(first - second), 1024);
    }
    EXPECT_EQ(evaluations.next(8, 0), kUnplaced) << "a third was never made";
    evaluations.end();
  }
  EXPECT_EQ(evaluations.height(), 2048);
}

// A part of two sizes, of which some are numbers. Each block is freed before the next request, but
// for those at `kept`. Returns the offsets.
std::vector<Offset> pass(runtime::Evaluations& evaluations, const std::vector<Bytes>& sizes,
                         const std::set<std::size_t>& kept = {}) {
  static std::array<char, 64> blocks;
  std::vector<Offset> offsets;
  evaluations.begin(kForward);
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    offsets.push_back(evaluations.next(sizes[i], 0));
    evaluations.serve(&blocks[i]);
    if (!kept.contains(i)) evaluations.release(&blocks[i]);
  }
  evaluations.end();
  return offsets;
}

TEST(Evaluations, ANumberHasThePlaceOfANumberOfItsSize) {
  runtime::Evaluations evaluations(512);
  pass(evaluations, {1000, 8, 1000, 4});
  EXPECT_EQ(pass(evaluations, {1000, 8, 1000, 4}), (std::vector<Offset>{0, 0, 0, 0}));
  EXPECT_EQ(pass(evaluations, {1000, 4, 8, 1000}),
            (std::vector<Offset>{0, kUnplaced, kUnplaced, kUnplaced}));
}

TEST(Evaluations, ALargerBatchHasNumbersOfTheSameSize) {
  runtime::Evaluations evaluations(512);
  pass(evaluations, {1000, 8, 500});
  pass(evaluations, {800, 8, 400});
  evaluations.begin(kForward);
  EXPECT_TRUE(evaluations.enlarge(1010, 0));
  EXPECT_NE(evaluations.next(1010, 0), kUnplaced);
  EXPECT_NE(evaluations.next(8, 0), kUnplaced);
  evaluations.end();
}

// The last forward of an evaluation, after which the sum of its losses is kept.
TEST(Evaluations, ANumberThatStaysTakesItsPlaceFromThoseToCome) {
  runtime::Evaluations evaluations(512);
  pass(evaluations, {1000, 1000, 4, 1000, 1000});
  EXPECT_EQ(pass(evaluations, {1000, 1000, 4}, {2}), (std::vector<Offset>{0, 0, 0}));
  EXPECT_EQ(pass(evaluations, {1000, 1000, 4, 1000, 1000}),
            (std::vector<Offset>{0, 0, kUnplaced, 0, 0}));
}

// After a forward, the samples of the next batch are fetched, and counted.
TEST(Evaluations, APartWithFewerRequestsGoesOnAtItsNumbers) {
  runtime::Evaluations evaluations(512);
  pass(evaluations, {1000, 600, 700, 800, 8, 4000, 8, 4000, 4});
  EXPECT_EQ(pass(evaluations, {1000, 600, 8, 3000, 8, 3000, 4}),
            (std::vector<Offset>{0, 0, kUnplaced, 0, 0, 0, 0}));
  EXPECT_EQ(pass(evaluations, {1000, 600, 8, 5000}),
            (std::vector<Offset>{0, 0, kUnplaced, kUnplaced}))
      << "a number alone tells nothing";
}

}  // namespace
}  // namespace stalloc
