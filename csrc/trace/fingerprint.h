// Names a trace by its content: two traces share a fingerprint if they record the same run.
//
// FNV-1a with 128 bits over the columns of the requests, phases and iterations, each number as
// eight little-endian bytes; documented in docs/formats.md so that other tools can compute it.
// Names of layers and the free text in `info` do not count, because they do not change a plan. A
// fingerprint does not resist forgery.
#pragma once

#include <string>

#include "trace/trace.h"

namespace stalloc::trace {

// 32 hexadecimal digits. O(n).
std::string fingerprint(const Trace& trace);

}  // namespace stalloc::trace
