// Traces as JSON, by column: docs/formats.md describes the format, docs/schema/trace.schema.json
// states it. 300,000 requests take some 13 MB and are read in well under half a second.
#pragma once

#include <string>
#include <string_view>

#include "trace/trace.h"

namespace stalloc::trace {

std::string to_json(const Trace& trace);

// Returns a trace that has passed check(). Messages call the text `source`: a file's name. Throws
// TraceError, naming the key and row, for a text that to_json() cannot have written.
Trace trace_from_json(std::string_view text, std::string_view source);

}  // namespace stalloc::trace
