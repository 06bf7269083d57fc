// Which of the dynamic requests of one place live how long, and by what they can be told when they
// are asked for.
//
// In backward an expert's weight gradients, which live until the optimizer has run, come between
// temporaries that live for a moment. Room that is shared by both is held for as long as the
// longest and has to be as large as all of them, so each kind gets its own: its role. What there is
// to go by is the size, and those of the requests just before:
//
//   sizes      20480  262144  512  20480  5120  262144  2048  262144   of one expert
//              5632   262144  512  5632   1408  262144  2048  262144   of another
//   seen as      *    262144  512    *     *    262144  2048  262144   `*`: varies
//   lives       soon  long    long soon   soon  long    long  soon
//
// As a branch predictor does, one learns for each context of three sizes what came of it; where the
// last one or two say the same, the rest is ignored. A size recurs if it comes in every iteration
// after the same one: as many tokens as make an activation as large as a gradient are not taken for
// one.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "trace/lifetimes.h"

namespace stalloc {

// How long a request lives; higher is longer. Which numbers, only the caller knows.
using Longevity = std::int64_t;
inline constexpr Longevity kUnknownLongevity = -1;

struct RoleSample {
  Bytes size = 0;
  Longevity longevity = kUnknownLongevity;
};

struct Roles {
  // By visit and request; roles are numbered from 0, the longest. Small requests have the last one,
  // where there are others: it lives as long as any of them.
  std::vector<std::vector<std::int32_t>> of;
  std::vector<Longevity> longevity;  // by role; kUnknownLongevity when nothing is known
  // By role: ascending. Empty when there is but one.
  std::vector<std::vector<DynamicContext>> contexts;
};

// `visits`: what was asked for at one place, by iteration, in order. A context's requests get the
// role of the longest-lived of them, those apart that are fewer than one in five.
// O(n log n) for n requests.
Roles tell_roles(const std::vector<std::vector<RoleSample>>& visits);

// A size that recurs, and what is seen of the one before it.
using RecurringPair = std::pair<Bytes, Bytes>;

// What is seen of requests as they come.
class ContextWindow {
 public:
  // The context of the next request, of that size. `recurring` is ascending.
  DynamicContext next(const std::vector<RecurringPair>& recurring, Bytes size);
  void restart() { before_ = earlier_ = DynamicContext::kStart; }

 private:
  Bytes before_ = DynamicContext::kStart;
  Bytes earlier_ = DynamicContext::kStart;
};

// The context with only its newest `depth` (1 to 3) sizes.
DynamicContext shortened(DynamicContext context, int depth);

}  // namespace stalloc
