// Traces as JSON, by column: docs/formats.md describes the format, docs/schema/trace.schema.json
// states it. 300,000 requests take some 13 MB and are read in well under half a second.
#pragma once

#include <string>
#include <string_view>

#include "trace/trace.h"

namespace stalloc::trace {

std::string to_json(const Trace& trace);

// A trace that has passed check(). `source` is what messages call the text: a file's name.
// Throws TraceError that says where (key and row) for anything that to_json() cannot have written.
Trace trace_from_json(std::string_view text, std::string_view source);

}  // namespace stalloc::trace
