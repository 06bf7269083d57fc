#include "trace/trace_json.h"

#include "base/error.h"
#include "base/json_reader.h"
#include "base/json_writer.h"
#include "trace/phase_json.h"

namespace stalloc::trace {
namespace {

using Value = JsonReader::Value;

constexpr std::string_view kFormat = "stalloc-trace";
constexpr std::int64_t kVersion = 1;

void raise(const std::string& message) { throw TraceError(message); }

std::vector<JsonReader::Column<Request>> request_columns(JsonReader& in) {
  const auto number = [&in](auto Request::* member) {
    return [&in, member](Request& r, Value v) {
      r.*member = in.integer<std::remove_reference_t<decltype(r.*member)>>(v);
    };
  };
  return {
      {"size", number(&Request::size)},
      {"lower", number(&Request::lower)},
      {"upper",
       [&in](Request& r, Value v) { r.upper = in.is_null(v) ? kNever : in.integer<Tick>(v); }},
      {"phase_begin", number(&Request::phase_begin)},
      {"phase_end", number(&Request::phase_end)},
      {"layer_begin", number(&Request::layer_begin)},
      {"layer_end", number(&Request::layer_end)},
      {"stream", number(&Request::stream)},
      {"thread", number(&Request::thread)},
      {"dynamic", [&in](Request& r, Value v) { r.dynamic = in.boolean(v); }},
  };
}

std::vector<JsonReader::Column<PhaseSpan>> phase_span_columns(JsonReader& in) {
  auto columns = phase_columns<PhaseSpan>(in);
  columns.push_back(
      {"iteration", [&in](PhaseSpan& s, Value v) { s.iteration = in.integer<std::int32_t>(v); }});
  return columns;
}

std::vector<JsonReader::Column<LayerSpan>> layer_span_columns(JsonReader& in) {
  return {
      {"layer", [&in](LayerSpan& s, Value v) { s.layer = in.integer<LayerIndex>(v); }},
      {"phase", [&in](LayerSpan& s, Value v) { s.phase = in.integer<PhaseIndex>(v); }},
      {"begin", [&in](LayerSpan& s, Value v) { s.begin = in.integer<Tick>(v); }},
      {"end", [&in](LayerSpan& s, Value v) { s.end = in.integer<Tick>(v); }},
      {"recompute", [&in](LayerSpan& s, Value v) { s.recompute = in.boolean(v); }},
  };
}

void write_requests(JsonWriter& out, const std::vector<Request>& rows) {
  const auto numbers = [&](std::string_view name, auto Request::* member) {
    out.column(name, rows, [&](const Request& r) { out.value(r.*member); });
  };
  numbers("size", &Request::size);
  numbers("lower", &Request::lower);
  out.column("upper", rows, [&](const Request& r) {
    if (r.upper == kNever) {
      out.null();
    } else {
      out.value(r.upper);
    }
  });
  numbers("phase_begin", &Request::phase_begin);
  numbers("phase_end", &Request::phase_end);
  numbers("layer_begin", &Request::layer_begin);
  numbers("layer_end", &Request::layer_end);
  numbers("stream", &Request::stream);
  numbers("thread", &Request::thread);
  numbers("dynamic", &Request::dynamic);
}

void write_layer_spans(JsonWriter& out, const std::vector<LayerSpan>& rows) {
  const auto values = [&](std::string_view name, auto LayerSpan::* member) {
    out.column(name, rows, [&](const LayerSpan& s) { out.value(s.*member); });
  };
  values("layer", &LayerSpan::layer);
  values("phase", &LayerSpan::phase);
  values("begin", &LayerSpan::begin);
  values("end", &LayerSpan::end);
  values("recompute", &LayerSpan::recompute);
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
  out.key("phases");
  out.begin_object();
  write_phase_columns(out, trace.phases);
  out.column("iteration", trace.phases, [&](const PhaseSpan& s) { out.value(s.iteration); });
  out.end_object();
  out.key("layer_spans");
  out.begin_object();
  write_layer_spans(out, trace.layer_spans);
  out.end_object();
  out.key("requests");
  out.begin_object();
  write_requests(out, trace.requests);
  out.end_object();
  out.end_object();
  return out.finish();
}

Trace trace_from_json(std::string_view text, std::string_view source) {
  Trace trace;
  JsonReader in(text, source, raise);
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
          {"phases",
           [&](Value v) { trace.phases = in.table<PhaseSpan>(v, phase_span_columns(in)); }},
          {"layer_spans",
           [&](Value v) { trace.layer_spans = in.table<LayerSpan>(v, layer_span_columns(in)); }},
          {"requests",
           [&](Value v) { trace.requests = in.table<Request>(v, request_columns(in)); }},
      });
  try {
    trace.check();
  } catch (const TraceError& error) {
    throw TraceError(std::string(source) + ": " + error.what());
  }
  return trace;
}

}  // namespace stalloc::trace
