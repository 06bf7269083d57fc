// Checks that a pickle is plain data. A pickle is a program for a small machine; this reads it
// without running it.
#pragma once

#include <string_view>

namespace stalloc {

// Throws TraceError, naming `source` and the byte, unless the pickle is made of dictionaries,
// lists, tuples, strings, bytes, numbers, booleans and None alone, is complete, claims no more
// memory than its own length can account for, and has no tuple that is dangerous as a key.
// Cost: O(length).
void check_plain_pickle(std::string_view content, std::string_view source);

}  // namespace stalloc
