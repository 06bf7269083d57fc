// Which of the dynamic requests of one place live how long, and by what they can be told when they
// are asked for.
//
// In backward an expert's weight gradients, which live until the optimizer has run, come between
// temporaries that live for a moment. Room that is shared by both is held for as long as the
// longest and has to be as large as all of them, so each kind gets its own: its role. Of those that
// live for a moment, the briefest (a copy that is gone when the next tensor is made) have a role,
// too: they would lie between the others, and leave holes that fit or do not fit the next one as
// the token counts have it. What there is to go by is the size, and those of the requests just
// before:
//
//   sizes      20480  262144  512  20480  5120  262144  2048  262144   of one expert
//              5632   262144  512  5632   1408  262144  2048  262144   of another
//   seen as      *    262144  512   1/1    1/4  262144  2048  262144   `*`: varies
//   lives       soon  long    long soon   soon  long    long  soon
//
// A size that varies with an expert's tokens is told by its ratio to the last one that did, since
// that is one of widths: what an expert makes comes in the same ratios however many tokens it gets.
// What is no such multiple may be one of the first size at the place that varies: buffers for all
// of a layer's tokens are asked for before its experts and after them.
//
// As a branch predictor does, one learns for each context of three sizes what came of it; where the
// last one or two say the same, the rest is ignored. A size recurs if it comes in every iteration
// after the same one: as many tokens as make an activation as large as a gradient are not taken for
// one, where sizes that vary have come before. A ratio recurs if every iteration has it.
//
// What is kept for good (a mask for each length that has come, a memory that grows) has a role of
// its own, and no room: it would be in the way of the plan for the rest of the run. Where it is too
// rare to make its context's role, as what is made once and never again, its size tells.
#pragma once

#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "profile/iteration_profile.h"

namespace stalloc::profile {

// How long a request lives; higher is longer. The unit is the caller's, above a moment.
using Longevity = std::int64_t;
inline constexpr Longevity kBrief = 0;      // a moment in which next to nothing else is asked for
inline constexpr Longevity kMomentary = 1;  // a moment: not past its place, or hardly
inline constexpr Longevity kUnknownLongevity = -1;
// A turn or more: it is still there when its place comes again. No plan has room for it.
inline constexpr Longevity kKept = std::numeric_limits<Longevity>::max();

struct RoleSample {
  Bytes size = 0;
  Longevity longevity = kUnknownLongevity;
};

struct Roles {
  // By visit and request; roles are numbered from 0, the longest. Small requests have the next,
  // where there are others: it lives as long as any of them. What is kept has the last.
  std::vector<std::vector<std::int32_t>> of;
  // By role, each at most three quarters of the one before: what lives about as long is one.
  // kUnknownLongevity when nothing is known.
  std::vector<Longevity> longevity;
  // By role: ascending. Empty when there is but one.
  std::vector<std::vector<DynamicContext>> contexts;
};

// `visits`: what was asked for at one place, by iteration, in order. A context's requests get the
// role of the longest-lived of them, those apart that are fewer than one in five; unless every
// iteration has such exceptions and they live no longer than `phase`, since they then cost a
// conflict each time, and little room. O(n log n) for n requests.
Roles tell_roles(const std::vector<std::vector<RoleSample>>& visits,
                 Longevity phase = kUnknownLongevity);

// A size that is `factor` / `divisor` times another that varies: the last, or the first at its
// place. In lowest terms.
struct Ratio {
  static constexpr Bytes kTermEnd = Bytes{1} << 20;  // terms are in [1, kTermEnd)

  Bytes factor = 1;
  Bytes divisor = 1;
  bool to_last = true;

  // As a size in a context: below all that DynamicContext names, those to the last one first.
  Bytes code() const;
  static bool is_code(Bytes size);
  static Ratio from_code(Bytes code);
};

// Whether a size that the role of what is kept names alone tells it: where the size is not seen as
// itself, or is small and small requests are apart.
inline bool size_alone_tells(Bytes size, const DynamicContext& seen, bool small_apart) {
  return seen.size != size || (small_apart && size < kSmallRequest);
}

// What recurs at a place.
struct Recurring {
  // A size, and the one before it, kVaries for any that does not recur. Ascending.
  std::vector<std::pair<Bytes, Bytes>> sizes;
  std::vector<Ratio> ratios;  // by code, ascending
  // What is seen of a size that one which varies comes after. Ascending.
  std::vector<Bytes> varies_after;
};

// Adds what the context says to recur, in any order.
void add_recurring(Recurring& recurring, const DynamicContext& context);
// Sorts, once all has been added.
void sort_recurring(Recurring& recurring);

// What is seen of requests as they come.
class ContextWindow {
 public:
  // The context of the next request, of that size.
  DynamicContext next(const Recurring& recurring, Bytes size);
  void restart() { *this = {}; }

 private:
  Bytes before_ = DynamicContext::kStart;
  Bytes earlier_ = DynamicContext::kStart;
  Bytes first_varying_ = 0;
  Bytes last_varying_ = 0;
};

// The context with only its newest `depth` (1 to 3) sizes.
DynamicContext shortened(DynamicContext context, int depth);

}  // namespace stalloc::profile
