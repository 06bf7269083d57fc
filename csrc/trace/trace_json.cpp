#include "trace/trace_json.h"

#include "base/error.h"
#include "base/json_reader.h"
#include "base/json_writer.h"
#include "base/table_json.h"
#include "trace/trace_columns.h"

namespace stalloc::trace {
namespace {

using Value = JsonReader::Value;

constexpr std::string_view kFormat = "stalloc-trace";
constexpr std::int64_t kVersion = 1;

void raise(const std::string& message) { throw TraceError(message); }

}  // namespace

std::string to_json(const Trace& trace) {
  JsonWriter out;
  out.begin_object();
  out.entry("format", kFormat);
  out.entry("version", kVersion);
  out.entry("info", trace.info);
  out.entry("end", trace.end);
  out.column("iterations", trace.iterations, [&](Tick tick) { out.value(tick); });
  out.column("layers", trace.layers, [&](const std::string& name) { out.value(name); });
  write_table(out, "phases", trace.phases, kPhaseSpanColumns);
  write_table(out, "layer_spans", trace.layer_spans, kLayerSpanColumns);
  write_table(out, "requests", trace.requests, kRequestColumns);
  out.end_object();
  return out.finish();
}

Trace trace_from_json(std::string_view text, std::string_view source) {
  Trace trace;
  JsonReader in(text, source, raise);
  const auto table = [&]<typename Row>(std::vector<Row>& rows, const auto& columns) {
    return [&](Value v) { rows = read_table<Row>(in, v, columns); };
  };
  in.document(
      kFormat, kVersion,
      {
          {"info", [&](Value v) { trace.info = in.texts(v); }},
          {"end", [&](Value v) { trace.end = in.integer<Tick>(v); }},
          {"iterations",
           [&](Value v) {
             in.array(v, [&](Value e) { trace.iterations.push_back(in.integer<Tick>(e)); });
           }},
          {"layers",
           [&](Value v) { in.array(v, [&](Value e) { trace.layers.push_back(in.text(e)); }); }},
          {"phases", table(trace.phases, kPhaseSpanColumns)},
          {"layer_spans", table(trace.layer_spans, kLayerSpanColumns)},
          {"requests", table(trace.requests, kRequestColumns)},
      });
  try {
    trace.check();
  } catch (const TraceError& error) {
    throw TraceError(std::string(source) + ": " + error.what());
  }
  return trace;
}

}  // namespace stalloc::trace
