// Which elements of one sequence of requests are those of another.
//
// Two iterations mostly ask for the same sizes in the same order; where they don't, a few requests
// are missing, extra or of another size. That is the longest common subsequence, found here by
// Myers' O(ND) algorithm ("An O(ND) difference algorithm and its variations", 1986). Where more
// than kMaxEdits edits lie together, the furthest-reaching path so far is kept and the search
// starts afresh from its end: still a common subsequence, perhaps not the longest, and the cost
// stays O(N * kMaxEdits) with O(kMaxEdits^2) memory however different the two are.
#pragma once

#include <span>
#include <vector>

#include "base/types.h"
#include "profile/size_law.h"

namespace stalloc::profile {

// What makes two requests alike.
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
