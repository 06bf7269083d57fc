// Aligns two sequences of requests: finds each element's counterpart in the other sequence.
//
// Two iterations mostly make the same requests in the same order. Elsewhere a few requests are
// missing, extra or of another size. The counterparts are the longest common subsequence, found by
// Myers' O(ND) algorithm ("An O(ND) difference algorithm and its variations", 1986). If more than
// kMaxEdits edits lie together, the search keeps the furthest-reaching path and starts afresh from
// its end. The result is then still a common subsequence, but perhaps not the longest. So a second
// alignment runs from the ends, without elements that only one sequence has: hundreds of weights
// before the first iteration's requests no longer exhaust the edits. The one with more pairs
// counts. The cost stays O(N * kMaxEdits + N log N), with O(kMaxEdits^2) memory, however different
// the two sequences are.
#pragma once

#include <span>
#include <vector>

#include "base/types.h"
#include "profile/size_law.h"

namespace stalloc::profile {

// Two requests are alike if their tokens are equal.
struct Token {
  Bytes size = 0;
  StreamId stream = 0;
  LawIndex law = kNone;  // of a size that varies

  bool operator==(const Token&) const = default;
};

// For each element of `a` the index of its counterpart in `b`, or kNone. Counterparts are equal and
// in ascending order.
std::vector<std::int32_t> align_sequences(std::span<const Token> a, std::span<const Token> b);

}  // namespace stalloc::profile
