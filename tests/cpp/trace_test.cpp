// The traces that Trace::check() refuses, and the positions in its messages.
#include "trace/trace.h"

#include <gtest/gtest.h>

#include <functional>

#include "base/error.h"
#include "complaint.h"
#include "trace_builder.h"

namespace stalloc {
namespace {

using ::testing::IsSubstring;
using testing::TraceBuilder;

trace::Trace sound_trace() {
  TraceBuilder builder;
  builder.phase(trace::PhaseKind::kForward, 0);
  const auto a = builder.alloc(100);
  const auto b = builder.alloc(200, 1);
  builder.phase(trace::PhaseKind::kBackward, 0);
  builder.free(b);
  builder.step();
  builder.free(a);
  builder.alloc(300);
  trace::Trace trace = builder.finish();
  trace.layers = {"mlp", "attention"};
  trace.layer_spans = {{0, 0, 0, 1, false}, {1, 1, 1, 2, true}};
  return trace;
}

std::string complaint(const std::function<void(trace::Trace&)>& damage) {
  trace::Trace trace = sound_trace();
  damage(trace);
  return testing::complaint_of(trace);
}

TEST(TraceCheck, AcceptsASoundTrace) { EXPECT_NO_THROW(sound_trace().check()); }

TEST(TraceCheck, AcceptsAnEmptyTrace) { EXPECT_NO_THROW(trace::Trace{}.check()); }

TEST(TraceCheck, NamesTheRequestWithABadSize) {
  EXPECT_PRED_FORMAT2(IsSubstring, "requests, row 1: a size of 0 bytes is not positive",
                      complaint([](trace::Trace& t) { t.requests[1].size = 0; }));
  EXPECT_PRED_FORMAT2(IsSubstring, "row 2",
                      complaint([](trace::Trace& t) { t.requests[2].size = -5; }));
}

TEST(TraceCheck, RefusesSizesThatNoDeviceHas) {
  EXPECT_EQ(complaint([](trace::Trace& t) { t.requests[1].size = trace::kLargestRequest; }),
            "no complaint");
  EXPECT_PRED_FORMAT2(
      IsSubstring, "row 1: a request of 281474976710657 bytes is larger than any device's",
      complaint([](trace::Trace& t) { t.requests[1].size = trace::kLargestRequest + 1; }));
}

TEST(TraceCheck, RefusesSizesWhoseSumOverflows) {
  TraceBuilder builder;
  builder.phase(trace::PhaseKind::kForward, 0);
  constexpr int kMost = 1 << 15;
  for (int i = 0; i < kMost - 1; ++i) builder.alloc(trace::kLargestRequest);
  EXPECT_NO_THROW(builder.finish().check());
  builder.alloc(trace::kLargestRequest);
  try {
    builder.finish().check();
    FAIL() << "no complaint";
  } catch (const TraceError& error) {
    EXPECT_PRED_FORMAT2(IsSubstring, "row 32767: the sum of the sizes", error.what());
  }
}

TEST(TraceCheck, RefusesReversedUnorderedAndOverlongLifetimes) {
  EXPECT_PRED_FORMAT2(
      IsSubstring, "row 1: the lifetime from 1 to 1 is reversed",
      complaint([](trace::Trace& t) { t.requests[1].upper = t.requests[1].lower; }));
  EXPECT_PRED_FORMAT2(IsSubstring, "row 0",
                      complaint([](trace::Trace& t) { t.requests[0].lower = -1; }));
  EXPECT_PRED_FORMAT2(IsSubstring, "row 1: tick 0 is not after the previous request's, 0",
                      complaint([](trace::Trace& t) { t.requests[1].lower = 0; }));
  EXPECT_PRED_FORMAT2(IsSubstring, "row 0: lives past the trace's end",
                      complaint([](trace::Trace& t) { t.requests[0].upper = t.end; }));
  EXPECT_PRED_FORMAT2(IsSubstring, "end: tick -1", complaint([](trace::Trace& t) { t.end = -1; }));
}

TEST(TraceCheck, RefusesIndicesThatPointNowhere) {
  EXPECT_PRED_FORMAT2(IsSubstring, "row 0: phase_begin is 3, but there are 3 phases",
                      complaint([](trace::Trace& t) { t.requests[0].phase_begin = 3; }));
  EXPECT_PRED_FORMAT2(IsSubstring, "row 0",
                      complaint([](trace::Trace& t) { t.requests[0].phase_begin = kNone; }));
  EXPECT_PRED_FORMAT2(IsSubstring, "row 1",
                      complaint([](trace::Trace& t) { t.requests[1].phase_end = kNone; }));
  EXPECT_PRED_FORMAT2(IsSubstring, "row 2: never freed, but has a phase_end",
                      complaint([](trace::Trace& t) { t.requests[2].phase_end = 0; }));
  EXPECT_PRED_FORMAT2(IsSubstring, "row 1: layer_begin is 2, but there are 2 layers",
                      complaint([](trace::Trace& t) { t.requests[1].layer_begin = 2; }));
  EXPECT_PRED_FORMAT2(IsSubstring, "layer_end",
                      complaint([](trace::Trace& t) { t.requests[1].layer_end = -2; }));
  EXPECT_PRED_FORMAT2(IsSubstring, "layer_spans, row 1: layer is 2",
                      complaint([](trace::Trace& t) { t.layer_spans[1].layer = 2; }));
  EXPECT_PRED_FORMAT2(IsSubstring, "layer_spans, row 1: phase is -1",
                      complaint([](trace::Trace& t) { t.layer_spans[1].phase = -1; }));
  EXPECT_PRED_FORMAT2(IsSubstring, "row 1: a negative stream or thread",
                      complaint([](trace::Trace& t) { t.requests[1].stream = -1; }));
}

TEST(TraceCheck, RefusesSpansOutOfOrder) {
  EXPECT_PRED_FORMAT2(IsSubstring, "phases, row 1: begins at 3, but the previous span ends at 2",
                      complaint([](trace::Trace& t) { t.phases[1].begin += 1; }));
  EXPECT_PRED_FORMAT2(IsSubstring, "phases, row 0",
                      complaint([](trace::Trace& t) { t.phases[0].end = -1; }));
  EXPECT_PRED_FORMAT2(IsSubstring, "phases, row 0",
                      complaint([](trace::Trace& t) { t.phases[0].key.occurrence = -1; }));
  EXPECT_PRED_FORMAT2(
      IsSubstring, "layer_spans, row 1: begins before the previous one",
      complaint([](trace::Trace& t) { t.layer_spans[0].begin = t.layer_spans[0].end = 2; }));
  EXPECT_PRED_FORMAT2(IsSubstring, "layer_spans, row 1",
                      complaint([](trace::Trace& t) { t.layer_spans[1].end = 0; }));
}

TEST(TraceCheck, RefusesIterationsThatDescendOrLieOutside) {
  EXPECT_PRED_FORMAT2(IsSubstring, "iterations, row 1: tick 0 comes before",
                      complaint([](trace::Trace& t) { t.iterations = {3, 0}; }));
  EXPECT_PRED_FORMAT2(IsSubstring, "iterations, row 1",
                      complaint([](trace::Trace& t) { t.iterations[1] = t.end + 1; }));
}

TEST(PhaseKinds, HaveNamesThatReadBack) {
  for (const trace::PhaseKind kind :
       {trace::PhaseKind::kOther, trace::PhaseKind::kForward, trace::PhaseKind::kBackward,
        trace::PhaseKind::kOptimizer, trace::PhaseKind::kUnplanned}) {
    EXPECT_EQ(trace::phase_kind_from_string(to_string(kind)), kind);
  }
  EXPECT_THROW(trace::phase_kind_from_string("sideways"), TraceError);
}

}  // namespace
}  // namespace stalloc
