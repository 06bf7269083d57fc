#include "runtime/recorder.h"

#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <vector>

namespace stalloc {
namespace {

class RecorderTest : public ::testing::Test {
 protected:
  const void* block(int i) { return reinterpret_cast<const void*>(static_cast<std::uintptr_t>(i)); }
  void allocate(int i, Bytes size, runtime::NodeSequence node = std::nullopt) {
    recorder_.on_allocate(block(i), size, 0, false, node);
  }
  void free(int i, runtime::NodeSequence node = std::nullopt) { recorder_.on_free(block(i), node); }

  runtime::Recorder recorder_;
};

TEST_F(RecorderTest, RecordsLifetimesInTicks) {
  recorder_.start();
  recorder_.enter_phase(trace::PhaseKind::kForward, 0, 0);
  allocate(1, 100);
  allocate(2, 200);
  free(1);
  recorder_.enter_phase(trace::PhaseKind::kBackward, 0, 0);
  allocate(1, 300);  // the address is used again
  free(2);
  const trace::Trace t = recorder_.finish();
  EXPECT_NO_THROW(t.check());
  ASSERT_EQ(t.requests.size(), 3u);
  EXPECT_EQ(t.requests[0].upper, 2);
  EXPECT_EQ(t.requests[1].upper, 4);
  EXPECT_EQ(t.requests[1].phase_begin, 0);
  EXPECT_EQ(t.requests[1].phase_end, 1);
  EXPECT_EQ(t.requests[2].upper, kNever);
  EXPECT_EQ(t.requests[2].phase_end, kNone);
  EXPECT_EQ(t.end, 5);
  EXPECT_EQ(t.phases[0].end, 3);
  EXPECT_EQ(t.phases[1].end, 5);
  EXPECT_FALSE(recorder_.active());
  EXPECT_TRUE(recorder_.finish().phases.empty()) << "finished twice";
}

TEST_F(RecorderTest, TellsThatAPoolIsShared) {
  const auto info_if_shared = [&](int shared) {
    recorder_.start();
    allocate(1, 100);  // a weight
    allocate(2, 100);
    free(2);
    recorder_.end_iteration();
    allocate(2, 200);  // a gradient that lives on
    recorder_.on_share(block(shared));
    return recorder_.finish().info.contains("shared");
  };
  EXPECT_FALSE(info_if_shared(3)) << "unknown";
  EXPECT_FALSE(info_if_shared(1)) << "not in the pool";
  EXPECT_TRUE(info_if_shared(2));
  recorder_.start();
  allocate(1, 100);
  recorder_.on_share(block(1));
  free(1);
  EXPECT_TRUE(recorder_.finish().info.contains("shared")) << "freed in the first iteration";
  recorder_.on_share(block(1));  // nothing is recorded
}

TEST_F(RecorderTest, ExtentsBelongToTheForwardThatIsOnOrComesNext) {
  using Names = std::vector<std::string>;
  using Values = std::vector<std::int64_t>;
  const auto tell = [&](const Names& names, const Values& values) {
    recorder_.set_extents(names, values);
  };
  recorder_.start();
  tell({"ids.0"}, {1});
  recorder_.enter_phase(trace::PhaseKind::kForward, 0, 0);  // span 0
  tell({"ids.0", "mask.0"}, {2, 7});                        // this one has extents
  recorder_.enter_phase(trace::PhaseKind::kForward, 1, 0);
  tell({"ids.0"}, {3});
  recorder_.enter_phase(trace::PhaseKind::kBackward, 1, 0);  // no forward: forgotten
  recorder_.enter_phase(trace::PhaseKind::kForward, 2, 0);   // span 3
  recorder_.enter_unplanned();
  recorder_.leave_unplanned();  // span 5 resumes it
  tell({"mask.0"}, {4});
  const trace::Trace t = recorder_.finish();
  EXPECT_NO_THROW(t.check());
  EXPECT_EQ(t.extent_names, (Names{"ids.0", "mask.0"}));
  ASSERT_EQ(t.extents.size(), 3u);
  EXPECT_EQ(t.extents[0].phase, 0);
  EXPECT_EQ(t.extents[0].values, (Values{1, kNone}));
  EXPECT_EQ(t.extents[1].phase, 1);
  EXPECT_EQ(t.extents[1].values, (Values{2, 7}));
  EXPECT_EQ(t.extents[2].phase, 5);
  EXPECT_EQ(t.extents[2].values, (Values{kNone, 4}));
}

TEST_F(RecorderTest, KeepsABoundedNumberOfExtents) {
  recorder_.start();
  for (int i = 0; i < 100; ++i) {
    const std::vector<std::string> names = {"x." + std::to_string(i)};
    recorder_.set_extents(names, std::vector<std::int64_t>{i});
    recorder_.enter_phase(trace::PhaseKind::kForward, i, 0);
  }
  const trace::Trace t = recorder_.finish();
  EXPECT_NO_THROW(t.check());
  EXPECT_EQ(t.extent_names.size(), runtime::Recorder::kMaxExtents);
  EXPECT_EQ(t.extents.size(), 100u);
}

TEST_F(RecorderTest, IgnoresFreesOfUnknownBlocks) {
  allocate(1, 100);
  recorder_.start();
  free(1);
  free(9);
  const trace::Trace t = recorder_.finish();
  EXPECT_TRUE(t.requests.empty());
  EXPECT_EQ(t.end, 0);
}

TEST_F(RecorderTest, CountsOccurrencesAndIterations) {
  recorder_.start();
  for (int i = 0; i < 2; ++i) {
    recorder_.enter_phase(trace::PhaseKind::kOther, kNone, 0);
    allocate(i, 1);
    recorder_.enter_phase(trace::PhaseKind::kForward, 0, 0);
    recorder_.enter_phase(trace::PhaseKind::kOther, kNone, 0);
    recorder_.end_iteration();
  }
  const trace::Trace t = recorder_.finish();
  EXPECT_NO_THROW(t.check());
  ASSERT_EQ(t.phases.size(), 6u);
  EXPECT_EQ(t.phases[2].key.occurrence, 1);
  EXPECT_EQ(t.phases[3].key.occurrence, 0);
  EXPECT_EQ(t.phases[3].iteration, 1);
  EXPECT_EQ(t.iterations, (std::vector<Tick>{0, 1, 2}));
}

// A loop that says where an iteration ends, but not before its first one is over.
TEST_F(RecorderTest, AGuessedEndBelongsToTheFirstIteration) {
  recorder_.start();
  const auto part = [this](int i, std::int32_t microbatch) {
    recorder_.enter_phase(trace::PhaseKind::kOther, kNone, 0);
    recorder_.enter_phase(trace::PhaseKind::kForward, microbatch, 0);
    allocate(i, 1);
    recorder_.enter_unplanned();
    recorder_.leave_unplanned();
    free(i);
    recorder_.enter_phase(trace::PhaseKind::kOther, kNone, 0);
  };
  part(1, 0);
  recorder_.end_iteration();
  part(2, 0);
  part(3, 1);
  recorder_.end_iteration();
  part(4, 0);
  part(5, 1);
  recorder_.join_iterations();
  recorder_.end_iteration();
  EXPECT_EQ(recorder_.iterations(), 1);
  part(6, 0);
  recorder_.end_iteration();
  const trace::Trace t = recorder_.finish();
  EXPECT_NO_THROW(t.check());
  EXPECT_EQ(t.iterations, (std::vector<Tick>{0, 10, 12}));
  std::string story;
  for (const trace::PhaseSpan& span : t.phases) {
    if (span.key.kind == trace::PhaseKind::kForward) {
      story += "f" + std::to_string(span.key.microbatch);
    } else {
      story += span.key.kind == trace::PhaseKind::kOther ? "o" : "u";
    }
    story += "." + std::to_string(span.key.occurrence) + (span.iteration > 0 ? "' " : " ");
  }
  EXPECT_EQ(story,
            "o.0 f0.0 u.0 f0.0 o.1 "
            "o.1 f1.0 u.0 f1.0 o.2 o.3 f2.0 u.0 f2.0 o.4 "
            "o.4 f3.0 u.0 f3.0 o.5 o.6 f4.0 u.0 f4.0 o.7 "
            "o.0' f0.0' u.0' f0.0' o.1' ");
}

TEST_F(RecorderTest, AnInterruptedPhaseResumes) {
  recorder_.start();
  recorder_.enter_phase(trace::PhaseKind::kForward, 3, 0);
  recorder_.enter_unplanned();
  allocate(1, 1);
  recorder_.leave_unplanned();
  allocate(2, 1);
  recorder_.leave_unplanned();  // one too many does no harm
  const trace::Trace t = recorder_.finish();
  EXPECT_EQ(t[t.requests[0].phase_begin].key.kind, trace::PhaseKind::kUnplanned);
  EXPECT_EQ(t[t.requests[1].phase_begin].key, t.phases[0].key);
}

TEST_F(RecorderTest, BackwardRequestsBelongToTheModuleOfTheirNode) {
  recorder_.start();
  const LayerIndex block = recorder_.define_layer("block", false);
  const LayerIndex mlp = recorder_.define_layer("block.mlp", true);
  recorder_.enter_phase(trace::PhaseKind::kForward, 0, 0);
  recorder_.enter_layer(block, false);
  recorder_.enter_layer(mlp, false);
  allocate(1, 1);
  recorder_.leave_layer();
  recorder_.tag_sequence(mlp, 12, 15);
  allocate(2, 1);
  recorder_.leave_layer();
  recorder_.tag_sequence(block, 10, 20);
  recorder_.enter_phase(trace::PhaseKind::kBackward, 0, 0);
  allocate(3, 1, 13);
  allocate(4, 1, 15);
  allocate(5, 1, 25);
  allocate(6, 1, 3);
  free(1, 12);
  const trace::Trace t = recorder_.finish();
  EXPECT_EQ(t.requests[0].layer_begin, mlp);
  EXPECT_TRUE(t.requests[0].dynamic);
  EXPECT_EQ(t.requests[0].layer_end, mlp);
  EXPECT_EQ(t.requests[1].layer_begin, block);
  EXPECT_FALSE(t.requests[1].dynamic);
  EXPECT_EQ(t.requests[2].layer_begin, mlp);
  EXPECT_EQ(t.requests[3].layer_begin, block);
  EXPECT_EQ(t.requests[4].layer_begin, kNone);
  EXPECT_EQ(t.requests[5].layer_begin, kNone);
  ASSERT_EQ(t.layer_spans.size(), 2u);
  EXPECT_EQ(t.layer_spans[1].end, 1);
  EXPECT_EQ(t.layer_spans[0].end, 2);
}

TEST_F(RecorderTest, NodesAreToldApartByTheThreadThatMadeThem) {
  recorder_.start();
  const LayerIndex here = recorder_.define_layer("here", false);
  const LayerIndex there = recorder_.define_layer("there", false);
  recorder_.enter_phase(trace::PhaseKind::kForward, 0, 0);
  recorder_.tag_sequence(here, runtime::node_of_thread(1, 10), runtime::node_of_thread(1, 20));
  recorder_.tag_sequence(there, runtime::node_of_thread(2, 5), runtime::node_of_thread(2, 15));
  allocate(1, 1, runtime::node_of_thread(1, 12));
  allocate(2, 1, runtime::node_of_thread(2, 12));
  allocate(3, 1, runtime::node_of_thread(3, 12));
  EXPECT_LT(recorder_.memory_bytes(), std::size_t{10000});
  const trace::Trace t = recorder_.finish();
  EXPECT_EQ(t.requests[0].layer_begin, here);
  EXPECT_EQ(t.requests[1].layer_begin, there);
  EXPECT_EQ(t.requests[2].layer_begin, kNone);
}

TEST_F(RecorderTest, OtherThreadsAreToldApart) {
  recorder_.start();
  allocate(1, 1);
  std::thread([this] { allocate(2, 1); }).join();
  std::thread([this] { recorder_.on_allocate(block(3), 1, 0, /*for_training=*/true, {}); }).join();
  const trace::Trace t = recorder_.finish();
  EXPECT_EQ(t.requests[0].thread, 0);
  EXPECT_NE(t.requests[1].thread, 0);
  EXPECT_EQ(t.requests[2].thread, 0);
}

TEST_F(RecorderTest, LayersAreOfTheThreadThatEntersThem) {
  recorder_.start();
  const LayerIndex outer = recorder_.define_layer("outer", true);
  const LayerIndex inner = recorder_.define_layer("inner", false);
  recorder_.enter_phase(trace::PhaseKind::kForward, 0, 0);
  recorder_.enter_layer(inner, false);
  recorder_.leave_layer();
  recorder_.tag_sequence(inner, 10, 20);
  recorder_.enter_layer(outer, false);
  // An accelerator's backward pass, called from inside the outer module.
  std::thread([&] {
    const auto backward = [&](int i, runtime::NodeSequence node) {
      recorder_.on_allocate(block(i), 1, 0, /*for_training=*/true, node);
    };
    backward(1, 12);
    backward(2, 30);
    recorder_.leave_layer();  // it has entered none
    recorder_.enter_layer(inner, true);
    backward(3, 30);
    recorder_.leave_layer();
    backward(4, 30);
    recorder_.enter_layer(inner, true);
  }).join();
  allocate(5, 1);
  recorder_.leave_layer();
  allocate(6, 1);
  const trace::Trace t = recorder_.finish();
  EXPECT_NO_THROW(t.check());
  std::vector<LayerIndex> layers;
  for (const trace::Request& r : t.requests) layers.push_back(r.layer_begin);
  EXPECT_EQ(layers, (std::vector<LayerIndex>{inner, kNone, inner, kNone, outer, kNone}));
  std::vector<Tick> ends;
  for (const trace::LayerSpan& span : t.layer_spans) ends.push_back(span.end);
  EXPECT_EQ(ends, (std::vector<Tick>{0, 5, 3, 6})) << "the last was never left";
}

TEST_F(RecorderTest, LayersThatHooksGoOnToReportAreKept) {
  const LayerIndex expert = recorder_.define_layer("expert", true);
  recorder_.start(runtime::Recorder::Layers::kKept);
  const LayerIndex late = recorder_.define_layer("late", false);
  for (const LayerIndex layer : {expert, late}) {
    recorder_.enter_layer(layer, false);
    allocate(layer == expert ? 1 : 2, 100);
    recorder_.leave_layer();
  }
  const trace::Trace t = recorder_.finish();
  EXPECT_NO_THROW(t.check());
  EXPECT_EQ(t.layers, (std::vector<std::string>{"expert", "late"}));
  EXPECT_EQ(t.requests.at(0).layer_begin, expert);
  EXPECT_TRUE(t.requests.at(0).dynamic);
  EXPECT_EQ(t.requests.at(1).layer_begin, late);
}

TEST_F(RecorderTest, ARecordingForgetsTheLayersOfTheOneBefore) {
  EXPECT_NE(recorder_.define_layer("early", false), recorder_.define_layer("early too", false));
  recorder_.start();
  EXPECT_EQ(recorder_.define_layer("layer", false), 0);
  EXPECT_EQ(recorder_.finish().layers, std::vector<std::string>{"layer"});
  recorder_.define_layer("late", false);
  recorder_.start();
  EXPECT_TRUE(recorder_.finish().layers.empty());
}

TEST_F(RecorderTest, RequestsBetweenIterationsHaveASpanFromTheEndOn) {
  recorder_.start();
  recorder_.enter_phase(trace::PhaseKind::kForward, 0, 0);
  allocate(1, 100);
  recorder_.end_iteration();
  free(1);
  recorder_.end_iteration();
  allocate(2, 100);
  recorder_.enter_phase(trace::PhaseKind::kForward, 0, 0);
  const trace::Trace t = recorder_.finish();
  EXPECT_NO_THROW(t.check());
  for (std::size_t i = 1; i < t.phases.size(); ++i) {
    EXPECT_EQ(t.phases[i].begin, t.phases[i - 1].end);
  }
}

TEST_F(RecorderTest, AnAbandonedTraceStaysUntouched) {
  recorder_.start();
  allocate(1, 100);
  const std::size_t held = recorder_.memory_bytes();
  recorder_.abandon();
  EXPECT_FALSE(recorder_.active());
  EXPECT_EQ(recorder_.memory_bytes(), held);
  free(1);
  allocate(2, 100);
  EXPECT_EQ(recorder_.memory_bytes(), held);
  EXPECT_TRUE(recorder_.finish().requests.empty());
  recorder_.start();
  free(1);
  EXPECT_EQ(recorder_.finish().end, 0);
}

TEST_F(RecorderTest, TakesAtMostAHundredBytesARequest) {
  recorder_.start();
  recorder_.enter_phase(trace::PhaseKind::kForward, 0, 0);
  constexpr int kRequests = 200000;
  for (int i = 0; i < kRequests; ++i) {
    allocate(i, 1);
    if (i >= 5000) free(i - 5000);
  }
  EXPECT_LE(recorder_.memory_bytes(), std::size_t{100} * kRequests);
  EXPECT_EQ(recorder_.requests(), std::size_t{kRequests});
}

TEST_F(RecorderTest, ThreadsRecordWithoutLoss) {
  recorder_.start();
  constexpr int kEach = 5000;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([this, t] {
      for (int i = 0; i < kEach; ++i) {
        allocate(t * kEach + i + 1, i + 1);
        if (i % 2 == 0) free(t * kEach + i + 1);
      }
    });
  }
  for (std::thread& t : threads) t.join();
  const trace::Trace t = recorder_.finish();
  EXPECT_NO_THROW(t.check());
  EXPECT_EQ(t.requests.size(), std::size_t{4 * kEach});
  EXPECT_EQ(t.end, 4 * kEach * 3 / 2);
}

}  // namespace
}  // namespace stalloc
