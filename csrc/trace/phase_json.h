// The columns that tell a phase, alike in traces and plans.
#pragma once

#include "base/error.h"
#include "base/json_reader.h"
#include "base/json_writer.h"
#include "trace/trace.h"

namespace stalloc::trace {

// `Row` has a PhaseKey `key`, a `begin` and an `end`.
template <typename Row>
std::vector<JsonReader::Column<Row>> phase_columns(JsonReader& in) {
  using Value = JsonReader::Value;
  return {
      {"kind",
       [&in](Row& r, Value v) {
         const std::string name = in.text(v);
         try {
           r.key.kind = phase_kind_from_string(name);
         } catch (const TraceError& error) {
           in.fail(error.what());
         }
       }},
      {"microbatch", [&in](Row& r, Value v) { r.key.microbatch = in.integer<std::int32_t>(v); }},
      {"chunk", [&in](Row& r, Value v) { r.key.chunk = in.integer<std::int32_t>(v); }},
      {"occurrence", [&in](Row& r, Value v) { r.key.occurrence = in.integer<std::int32_t>(v); }},
      {"begin", [&in](Row& r, Value v) { r.begin = in.integer<Tick>(v); }},
      {"end", [&in](Row& r, Value v) { r.end = in.integer<Tick>(v); }},
  };
}

template <typename Row>
void write_phase_columns(JsonWriter& out, const std::vector<Row>& rows) {
  out.column("kind", rows, [&](const Row& r) { out.value(to_string(r.key.kind)); });
  out.column("microbatch", rows, [&](const Row& r) { out.value(r.key.microbatch); });
  out.column("chunk", rows, [&](const Row& r) { out.value(r.key.chunk); });
  out.column("occurrence", rows, [&](const Row& r) { out.value(r.key.occurrence); });
  out.column("begin", rows, [&](const Row& r) { out.value(r.begin); });
  out.column("end", rows, [&](const Row& r) { out.value(r.end); });
}

}  // namespace stalloc::trace
