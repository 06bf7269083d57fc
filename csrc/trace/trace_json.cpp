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

// A table whose cells in one column are arrays, which columns.h does not declare.
std::vector<MicrobatchExtents> read_extents(JsonReader& in, Value value) {
  return in.table<MicrobatchExtents>(
      value, {{"phase", [&in](MicrobatchExtents& e, Value v) { read_cell(in, v, e.phase); }},
              {"values", [&in](MicrobatchExtents& e, Value v) {
                 in.array(v,
                          [&](Value cell) { e.values.push_back(in.integer<std::int64_t>(cell)); });
               }}});
}

void write_extents(JsonWriter& out, const Trace& trace) {
  out.column("extent_names", trace.extent_names, [&](const auto& name) { out.value(name); });
  out.key("extents");
  out.begin_object();
  out.column("phase", trace.extents, [&](const auto& row) { write_cell(out, row.phase); });
  out.column("values", trace.extents, [&](const auto& row) {
    out.array(row.values, [&](std::int64_t value) { out.value(value); });
  });
  out.end_object();
}

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
  if (!trace.extents.empty()) write_extents(out, trace);
  if (!trace.orders.empty()) write_table(out, "orders", trace.orders, kOrderColumns);
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
          {"extent_names",
           [&](Value v) {
             in.array(v, [&](Value e) { trace.extent_names.push_back(in.text(e)); });
           },
           true},
          {"extents", [&](Value v) { trace.extents = read_extents(in, v); }, true},
          {"orders", table(trace.orders, kOrderColumns), /*optional=*/true},
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
