// Formats sizes for messages.
#pragma once

#include <string>

#include "base/types.h"

namespace stalloc {

// "3.1 GiB", "512 B": one decimal, the largest unit that leaves at least one whole.
std::string format_bytes(Bytes size);

}  // namespace stalloc
