// Traces to JSON and back; damaged text is refused with the place of the damage.
#include "trace/trace_json.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "damage.h"
#include "trace/fingerprint.h"
#include "trace_builder.h"

namespace stalloc {
namespace {

using ::testing::IsSubstring;
using testing::replaced;
using testing::TraceBuilder;
using testing::with_column;

trace::Trace small_trace() {
  TraceBuilder t;
  t.phase(trace::PhaseKind::kForward, 0);
  const auto a = t.alloc(100, 0, 0);
  const auto b = t.alloc(200, 3, 1);
  t.phase(trace::PhaseKind::kUnplanned);
  t.free(b);
  t.step();
  t.free(a);
  t.tag_dynamic(t.alloc(300));
  trace::Trace trace = t.finish();
  trace.info = {{"device", "cpu"}, {"odd \"key\"\n", "\x01\\ \xc3\xa9"}};
  trace.layers = {"blocks.0.mlp", "embed"};
  trace.layer_spans = {{1, 0, 0, 1, false}, {0, 1, 1, 2, true}};
  trace.extent_names = {"ids.0", "ids.1"};
  trace.extents = {{0, {4, 512}}, {2, {4, kNone}}};
  trace.requests[0].layer_begin = 1;
  trace.requests[0].layer_end = 0;
  return trace;
}

std::string complaint(std::string_view text) {
  try {
    trace::trace_from_json(text, "run.json");
  } catch (const TraceError& error) {
    return error.what();
  }
  return "no complaint";
}

std::string with_request_column(std::string_view key, std::string_view array) {
  return with_column(to_json(small_trace()), "requests", key, array);
}

TEST(TraceJson, ReadsBackItsOutput) {
  const trace::Trace trace = small_trace();
  const std::string text = to_json(trace);
  const trace::Trace again = trace::trace_from_json(text, "");
  EXPECT_EQ(to_json(again), text);
  EXPECT_EQ(again.info, trace.info);
  EXPECT_EQ(again.layers, trace.layers);
  EXPECT_EQ(again.iterations, trace.iterations);
  EXPECT_EQ(again.end, trace.end);
  ASSERT_EQ(again.requests.size(), 3u);
  EXPECT_EQ(again.requests[0].upper, trace.requests[0].upper);
  EXPECT_EQ(again.requests[0].layer_end, 0);
  EXPECT_EQ(again.requests[1].stream, 3);
  EXPECT_EQ(again.requests[1].thread, 1);
  EXPECT_EQ(again.requests[2].upper, kNever);
  EXPECT_TRUE(again.requests[2].dynamic);
  ASSERT_EQ(again.phases.size(), 3u);
  EXPECT_EQ(again.phases[1].key, trace.phases[1].key);
  EXPECT_EQ(again.phases[2].iteration, 1);
  EXPECT_EQ(again.extent_names, trace.extent_names);
  ASSERT_EQ(again.extents.size(), 2u);
  EXPECT_EQ(again.extents[1].phase, 2);
  EXPECT_EQ(again.extents[1].values, trace.extents[1].values);
  ASSERT_EQ(again.layer_spans.size(), 2u);
  EXPECT_TRUE(again.layer_spans[1].recompute);
}

TEST(TraceJson, AnEmptyTraceReadsBack) {
  const std::string text = to_json(trace::Trace{});
  EXPECT_EQ(to_json(trace::trace_from_json(text, "")), text);
}

TEST(TraceJson, TakesItsKeysInAnyOrder) {
  std::string text = to_json(small_trace());
  text = replaced(text, "\"format\": \"stalloc-trace\",\n  \"version\": 1,\n  ", "");
  const auto end = text.rfind('}');
  text.replace(end, 1, ", \"version\": 1, \"format\": \"stalloc-trace\"}");
  EXPECT_EQ(to_json(trace::trace_from_json(text, "")), to_json(small_trace()));
}

TEST(TraceJson, RefusesEveryTruncation) {
  const std::string text = to_json(small_trace());
  for (std::size_t length = 0; length + 2 < text.size(); ++length) {
    const std::string message = complaint(std::string_view(text).substr(0, length));
    ASSERT_PRED_FORMAT2(IsSubstring, "run.json: ", message) << length;
  }
  EXPECT_PRED_FORMAT2(IsSubstring, "run.json: the file ends too early",
                      complaint(std::string_view(text).substr(0, text.size() / 2)));
}

TEST(TraceJson, RefusesOtherFormatsAndNewerVersions) {
  const std::string text = to_json(small_trace());
  EXPECT_PRED_FORMAT2(IsSubstring, "holds a 'stalloc-plan', where a 'stalloc-trace' is needed",
                      complaint(replaced(text, "stalloc-trace", "stalloc-plan")));
  EXPECT_PRED_FORMAT2(IsSubstring, "is of version 2, and this stalloc reads version 1: upgrade",
                      complaint(replaced(text, "\"version\": 1", "\"version\": 2")));
  EXPECT_PRED_FORMAT2(IsSubstring, "the 'version' is missing or invalid",
                      complaint(replaced(text, "\"version\": 1", "\"version\": \"1\"")));
  EXPECT_PRED_FORMAT2(IsSubstring, "no 'format'", complaint("{}"));
  EXPECT_PRED_FORMAT2(IsSubstring, "not a JSON object", complaint("[1, 2]"));
  EXPECT_PRED_FORMAT2(IsSubstring, "not a JSON object", complaint("id,lower,upper,size\n"));
}

TEST(TraceJson, SaysWhichCellIsOfTheWrongType) {
  EXPECT_PRED_FORMAT2(IsSubstring,
                      "run.json: requests.size, row 1: expected an integer of 64 bits, found \"2\"",
                      complaint(with_request_column("size", "[100,\"2\",300]")));
  for (const char* cell : {"1.5", "true", "null", "[]", "{}", "NaN", "1e3", "-", "01",
                           "99999999999999999999", "9223372036854775808", "x"}) {
    const auto column = "[100," + std::string(cell) + ",300]";
    EXPECT_PRED_FORMAT2(IsSubstring, "run.json: requests.size, row 1: ",
                        complaint(with_request_column("size", column)))
        << cell;
  }
  EXPECT_PRED_FORMAT2(IsSubstring, "requests.stream, row 2: expected an integer of 32 bits",
                      complaint(with_request_column("stream", "[0,0,2147483648]")));
  EXPECT_PRED_FORMAT2(IsSubstring, "requests.upper, row 0: expected an integer",
                      complaint(with_request_column("upper", "[nul,1,2]")));
  EXPECT_PRED_FORMAT2(IsSubstring, "requests.dynamic, row 0: expected true or false, found 0",
                      complaint(with_request_column("dynamic", "[0,false,true]")));
  EXPECT_PRED_FORMAT2(IsSubstring, "requests.size: expected an array, found 7",
                      complaint(with_request_column("size", "7")));
  EXPECT_PRED_FORMAT2(IsSubstring,
                      "phases.kind, row 0: no phase is called 'sideways'; there are other, forward",
                      complaint(replaced(to_json(small_trace()), "\"forward\"", "\"sideways\"")));
  EXPECT_PRED_FORMAT2(IsSubstring, "info.device: expected a string, found 1",
                      complaint(replaced(to_json(small_trace()), "\"cpu\"", "1")));
  EXPECT_PRED_FORMAT2(IsSubstring, "layers, row 1: expected a string",
                      complaint(replaced(to_json(small_trace()), "\"embed\"", "null")));
}

TEST(TraceJson, RefusesColumnsThatAreMissingDoubleForeignOrOfAnotherLength) {
  const std::string text = to_json(small_trace());
  EXPECT_PRED_FORMAT2(IsSubstring, "run.json: requests: unknown key 'sizes'",
                      complaint(replaced(text, "\"size\"", "\"sizes\"")));
  EXPECT_PRED_FORMAT2(IsSubstring, "run.json: requests: the key 'lower' appears twice",
                      complaint(replaced(text, "\"upper\"", "\"lower\"")));
  EXPECT_PRED_FORMAT2(IsSubstring, "run.json: requests: the key 'size' is missing",
                      complaint(replaced(text, "\"size\": [100,200,300],", "")));
  EXPECT_PRED_FORMAT2(IsSubstring, "run.json: the key 'end' is missing",
                      complaint(replaced(text, "\"end\": 5,", "")));
  EXPECT_PRED_FORMAT2(IsSubstring, "run.json: requests.lower: has 2 rows, but 'size' has 3",
                      complaint(with_request_column("lower", "[0,1]")));
  EXPECT_PRED_FORMAT2(IsSubstring, "run.json: requests.lower, row 3: more rows than the 3",
                      complaint(with_request_column("lower", "[0,1,4,5]")));
  EXPECT_PRED_FORMAT2(IsSubstring, "run.json: requests.upper: has 0 rows, but 'size' has 3",
                      complaint(with_request_column("upper", "[]")));
}

TEST(TraceJson, RefusesTextThatIsNoJson) {
  const std::string text = to_json(small_trace());
  EXPECT_NE(complaint(text + "{}"), "no complaint");
  EXPECT_NE(complaint(text + "x"), "no complaint");
  EXPECT_NE(complaint(replaced(text, "[100,", "[100 ")), "no complaint");
  EXPECT_NE(complaint(replaced(text, "\"cpu\"", "\"\xff\"")), "no complaint");
  EXPECT_NE(complaint(replaced(text, "[100,200", std::string(100000, '['))), "no complaint");
  EXPECT_NE(complaint(std::string(100000, '{')), "no complaint");
  EXPECT_NE(complaint(""), "no complaint");
  EXPECT_NE(complaint(std::string_view("\0\0\0", 3)), "no complaint");
}

TEST(TraceJson, ChecksTheTraceAndNamesTheFile) {
  EXPECT_PRED_FORMAT2(IsSubstring, "run.json: requests, row 1: a size of -200 bytes",
                      complaint(with_request_column("size", "[100,-200,300]")));
}

TEST(TraceJson, ReadsTracesWithoutExtents) {
  trace::Trace trace = small_trace();
  trace.extent_names.clear();
  trace.extents.clear();
  const std::string text = to_json(trace);
  EXPECT_EQ(text.find("extent"), std::string::npos);
  EXPECT_TRUE(trace::trace_from_json(text, "").extents.empty());
}

TEST(TraceJson, RefusesExtentsThatDoNotFitTheirTables) {
  const auto complaint_of = [](std::string_view key, std::string_view array) {
    const std::string_view old = key == "phase" ? "[0,2]" : "[[4,512],[4,-1]]";
    return complaint(replaced(to_json(small_trace()), old, array));
  };
  EXPECT_PRED_FORMAT2(IsSubstring, "extents, row 1: phase is 9, but there are 3 phases",
                      complaint_of("phase", "[0,9]"));
  EXPECT_PRED_FORMAT2(IsSubstring, "extents, row 1: the phase is not after the previous row's",
                      complaint_of("phase", "[0,0]"));
  EXPECT_PRED_FORMAT2(IsSubstring, "extents, row 0: 1 values, but there are 2 extent_names",
                      complaint_of("values", "[[4],[4,5]]"));
  EXPECT_PRED_FORMAT2(IsSubstring, "extents, row 1: an extent of -2",
                      complaint_of("values", "[[4,5],[-2,5]]"));
  EXPECT_PRED_FORMAT2(IsSubstring, "extents.values", complaint_of("values", "[[4,5],7]"));
}

TEST(Fingerprint, DiffersIfAPlanCouldDiffer) {
  const trace::Trace trace = small_trace();
  const std::string name = trace::fingerprint(trace);
  EXPECT_EQ(name.size(), 32u);
  EXPECT_EQ(trace::fingerprint(trace::trace_from_json(to_json(trace), "")), name);
  trace::Trace other = trace;
  other.info["device"] = "cuda";
  other.layers[0] = "renamed";
  EXPECT_EQ(trace::fingerprint(other), name);
  other.requests[1].size += 1;
  EXPECT_NE(trace::fingerprint(other), name);
  other = trace;
  other.phases[0].key.microbatch = 1;
  EXPECT_NE(trace::fingerprint(other), name);
  other = trace;
  other.iterations[1] -= 1;
  EXPECT_NE(trace::fingerprint(other), name);
  other = trace;
  other.extents[0].values[1] += 1;
  EXPECT_NE(trace::fingerprint(other), name);
  other = trace;
  other.extent_names[0] = "source.0";
  EXPECT_NE(trace::fingerprint(other), name);
}

TEST(Fingerprint, TheEmptyTraceHasTheDocumentedHash) {
  // FNV-1a with 128 bits of four numbers of eight bytes each, all zero.
  EXPECT_EQ(trace::fingerprint(trace::Trace{}), "28ee198ca550ba36979ea053be3dc70d");
}

}  // namespace
}  // namespace stalloc
