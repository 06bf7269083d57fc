#include "trace/trace.h"

#include <array>

#include "base/error.h"

namespace stalloc::trace {
namespace {

constexpr std::array<std::string_view, 5> kPhaseKinds = {"other", "forward", "backward",
                                                         "optimizer", "unplanned"};

// Every message begins with "requests, row 17: ...", as the JSON reader's do.
[[noreturn]] void reject(std::string_view table, std::size_t row, const std::string& what) {
  throw TraceError(std::string(table) + ", row " + std::to_string(row) + ": " + what);
}

template <typename Row>
std::string not_in_table(std::string_view column, Index<Row> index, std::string_view table,
                         std::size_t size) {
  return std::string(column) + " is " + to_string(index) + ", but there are " +
         std::to_string(size) + " " + std::string(table);
}

void check_iterations(const Trace& trace) {
  const auto& ticks = trace.iterations;
  for (std::size_t i = 0; i < ticks.size(); ++i) {
    if (ticks[i] < 0 || ticks[i] > trace.end) {
      reject("iterations", i,
             "tick " + std::to_string(ticks[i]) + " lies outside the trace, which has " +
                 std::to_string(trace.end) + " ticks");
    }
    if (i > 0 && ticks[i] < ticks[i - 1]) {
      reject("iterations", i,
             "tick " + std::to_string(ticks[i]) + " comes before the previous boundary, " +
                 std::to_string(ticks[i - 1]));
    }
  }
}

void check_phases(const Trace& trace) {
  for (std::size_t i = 0; i < trace.phases.size(); ++i) {
    const PhaseSpan& span = trace.phases[i];
    if (span.begin < 0 || span.end < span.begin) {
      reject("phases", i,
             "the span from " + std::to_string(span.begin) + " to " + std::to_string(span.end) +
                 " is reversed or begins before the trace");
    }
    if (i > 0 && span.begin != trace.phases[i - 1].end) {
      reject("phases", i,
             "begins at " + std::to_string(span.begin) + ", but the previous span ends at " +
                 std::to_string(trace.phases[i - 1].end));
    }
    if (span.key.microbatch < kNone || span.key.chunk < 0 || span.key.occurrence < 0 ||
        span.iteration < kNone) {
      reject("phases", i, "a negative microbatch, chunk, occurrence or iteration");
    }
  }
}

void check_extents(const Trace& trace) {
  for (std::size_t i = 0; i < trace.extents.size(); ++i) {
    const MicrobatchExtents& row = trace.extents[i];
    if (!row.phase.points_into(trace.phases)) {
      reject("extents", i, not_in_table("phase", row.phase, "phases", trace.phases.size()));
    }
    if (i > 0 && row.phase <= trace.extents[i - 1].phase) {
      reject("extents", i, "the phase is not after the previous row's");
    }
    if (row.values.size() != trace.extent_names.size()) {
      reject("extents", i,
             std::to_string(row.values.size()) + " values, but there are " +
                 std::to_string(trace.extent_names.size()) + " extent_names");
    }
    for (const std::int64_t value : row.values) {
      if (value < kNone) reject("extents", i, "an extent of " + std::to_string(value));
    }
  }
}

void check_orders(const Trace& trace) {
  for (std::size_t i = 0; i < trace.orders.size(); ++i) {
    const Order& o = trace.orders[i];
    if (o.stream < 0 || o.after < 0) reject("orders", i, "a negative stream");
    if (o.upto < 0 || o.tick < 0 || o.upto > trace.end || o.tick > trace.end) {
      reject("orders", i,
             "reaches from tick " + std::to_string(o.tick) + " to " + std::to_string(o.upto) +
                 ", outside the trace");
    }
    if (i > 0 && o.tick < trace.orders[i - 1].tick) {
      reject("orders", i, "tick " + std::to_string(o.tick) + " is before the previous row's");
    }
  }
}

void check_layer_spans(const Trace& trace) {
  for (std::size_t i = 0; i < trace.layer_spans.size(); ++i) {
    const LayerSpan& span = trace.layer_spans[i];
    if (span.begin < 0 || span.end < span.begin) {
      reject("layer_spans", i,
             "the span from " + std::to_string(span.begin) + " to " + std::to_string(span.end) +
                 " is reversed or begins before the trace");
    }
    if (i > 0 && span.begin < trace.layer_spans[i - 1].begin) {
      reject("layer_spans", i, "begins before the previous one: they go in order of `begin`");
    }
    if (!span.layer.points_into(trace.layers)) {
      reject("layer_spans", i, not_in_table("layer", span.layer, "layers", trace.layers.size()));
    }
    if (!span.phase.points_into(trace.phases)) {
      reject("layer_spans", i, not_in_table("phase", span.phase, "phases", trace.phases.size()));
    }
  }
}

void check_places(const Trace& trace, const Request& r, std::size_t row) {
  const auto phases = trace.phases.size();
  const auto layers = trace.layers.size();
  if (!r.phase_begin.points_into(trace.phases)) {
    reject("requests", row, not_in_table("phase_begin", r.phase_begin, "phases", phases));
  }
  const bool never_freed = r.upper == kNever;
  if (never_freed ? r.phase_end != kNone : !r.phase_end.points_into(trace.phases)) {
    reject("requests", row,
           never_freed ? "never freed, but has a phase_end"
                       : not_in_table("phase_end", r.phase_end, "phases", phases));
  }
  if (r.layer_begin != kNone && !r.layer_begin.points_into(trace.layers)) {
    reject("requests", row, not_in_table("layer_begin", r.layer_begin, "layers", layers));
  }
  if (r.layer_end != kNone && !r.layer_end.points_into(trace.layers)) {
    reject("requests", row, not_in_table("layer_end", r.layer_end, "layers", layers));
  }
}

void check_requests(const Trace& trace) {
  Bytes total = 0;
  for (std::size_t i = 0; i < trace.requests.size(); ++i) {
    const Request& r = trace.requests[i];
    if (r.size <= 0) {
      reject("requests", i, "a size of " + std::to_string(r.size) + " bytes is not positive");
    }
    if (r.size > kLargestRequest) {
      reject("requests", i,
             "a request of " + std::to_string(r.size) +
                 " bytes is larger than any device's address space");
    }
    if (__builtin_add_overflow(total, r.size, &total)) {
      reject("requests", i, "the sum of the sizes up to here does not fit in 63 bits");
    }
    if (r.lower < 0 || r.upper <= r.lower) {
      reject("requests", i,
             "the lifetime from " + std::to_string(r.lower) + " to " + std::to_string(r.upper) +
                 " is reversed or begins before the trace");
    }
    if (i > 0 && r.lower <= trace.requests[i - 1].lower) {
      reject("requests", i,
             "tick " + std::to_string(r.lower) + " is not after the previous request's, " +
                 std::to_string(trace.requests[i - 1].lower));
    }
    if (r.lower >= trace.end || (r.upper != kNever && r.upper >= trace.end)) {
      reject("requests", i,
             "lives past the trace's end, tick " + std::to_string(trace.end) +
                 " (a request that was never freed has no upper)");
    }
    if (r.stream < 0 || r.thread < 0) reject("requests", i, "a negative stream or thread");
    check_places(trace, r, i);
  }
}

}  // namespace

std::string_view to_string(PhaseKind kind) {
  return kPhaseKinds.at(static_cast<std::size_t>(kind));
}

PhaseKind phase_kind_from_string(std::string_view name) {
  std::string known;
  for (std::size_t i = 0; i < kPhaseKinds.size(); ++i) {
    if (kPhaseKinds[i] == name) return static_cast<PhaseKind>(i);
    known += (i > 0 ? ", " : "") + std::string(kPhaseKinds[i]);
  }
  throw TraceError("no phase is called '" + std::string(name) + "'; there are " + known);
}

void Trace::check() const {
  if (end < 0) throw TraceError("end: tick " + std::to_string(end) + " is negative");
  check_iterations(*this);
  check_phases(*this);
  check_layer_spans(*this);
  check_extents(*this);
  check_orders(*this);
  check_requests(*this);
}

}  // namespace stalloc::trace
