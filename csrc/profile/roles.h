// Learns the roles of a site's dynamic requests: how long each request lives, and by which context
// the runtime recognizes the role before it serves the request.
//
// In backward, an expert's weight gradients live until the optimizer has run. They come between
// temporaries that live for a moment. A region shared by both would have to hold all of them for as
// long as the gradients live. So each kind has its own region: its role. The briefest temporaries
// (a copy that is freed when the next tensor is made) have a role too. Otherwise they would lie
// between the others and leave holes that fit the next request or not, depending on the token
// counts. The runtime can see only the size of a request and of the requests just before it:
//
//   sizes      20480  262144  512  20480  5120  262144  2048  262144   of one expert
//              5632   262144  512  5632   1408  262144  2048  262144   of another
//   seen as      *    262144  512   1/1    1/4  262144  2048  262144   `*`: varies
//   lives       soon  long    long soon   soon  long    long  soon
//
// A size that varies with an expert's tokens is replaced by its ratio to the last size that varied.
// This is a ratio of widths, the same for every token count. If there is no such ratio, the ratio
// to the site's first varying size is tried: a layer allocates buffers for all its tokens before
// and after its experts.
//
// Like a branch predictor, the profile learns a role for each context of three sizes. If the newest
// one or two sizes determine the role, the others are ignored. A size recurs if it comes in every
// iteration after the same size. So an activation that happens to be as large as a gradient is not
// mistaken for one if varying sizes come before it. A ratio recurs if every iteration has it.
//
// Requests that are kept (a mask for each sequence length, a memory that grows) have a role of
// their own and no region: it would occupy the pool for the rest of the run. A kept request may be
// too rare to determine its context's role, for example if it is made once in a run. Then its size
// alone marks it.
#pragma once

#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "profile/iteration_profile.h"

namespace stalloc::profile {

// The lifetime of a request; higher is longer. The unit is the caller's, above a moment.
using Longevity = std::int64_t;
inline constexpr Longevity kBrief = 0;      // a moment with hardly another request
inline constexpr Longevity kMomentary = 1;  // a moment: until the site ends, or hardly longer
inline constexpr Longevity kUnknownLongevity = -1;
// A period or more: it is still live when its site comes again. No plan has a region for it.
inline constexpr Longevity kKept = std::numeric_limits<Longevity>::max();

struct RoleSample {
  Bytes size = 0;
  Longevity longevity = kUnknownLongevity;
};

struct Roles {
  // The role of each request, by visit. Roles are numbered from 0, the longest. If there are large
  // and small requests, the small ones share the number after the large ones' roles, with the
  // longest of their lives. The last role is that of kept requests.
  std::vector<std::vector<std::int32_t>> of;
  // By role; kUnknownLongevity if nothing is known. Each is at most three quarters of the one
  // before: about equal longevities are one role.
  std::vector<Longevity> longevity;
  // By role, ascending. Empty if there is only one role.
  std::vector<std::vector<DynamicContext>> contexts;
};

// `visits` has the requests of one site, by iteration, in order. A context's requests get the role
// of the longest-lived of them. Exceptions do not count: longer lives that are fewer than one in
// five. Exceptions count if every iteration has some: each would then cause a conflict in every
// iteration. `sizes_grow`: a request that is small here may be large in another batch. O(n log n)
// for n requests.
Roles tell_roles(const std::vector<std::vector<RoleSample>>& visits, bool sizes_grow = false);

// The ratio `factor` / `divisor`, in lowest terms, of a size to another one that varies: the last
// such size, or the first of the site.
struct Ratio {
  static constexpr Bytes kTermEnd = Bytes{1} << 20;  // terms are in [1, kTermEnd)

  Bytes factor = 1;
  Bytes divisor = 1;
  bool to_last = true;

  // The ratio as a size in a context. Codes are below all constants of DynamicContext; ratios to
  // the last size come first.
  Bytes code() const;
  static bool is_code(Bytes size);
  static Ratio from_code(Bytes code);
};

// True if the size alone can mark a request as kept. This is so if the context does not contain the
// size itself, or if the request is small and small requests have a role of their own.
inline bool size_alone_tells(Bytes size, const DynamicContext& seen, bool small_apart) {
  return seen.size != size || (small_apart && size < kSmallRequest);
}

// The sizes and ratios that recur at a site.
struct Recurring {
  // A size, and the one before it, kVaries for any that does not recur. Ascending.
  std::vector<std::pair<Bytes, Bytes>> sizes;
  std::vector<Ratio> ratios;  // by code, ascending
  // The tokens that may precede a varying size. Ascending.
  std::vector<Bytes> varies_after;
};

// Adds the sizes and ratios that the context says recur, in any order.
void add_recurring(Recurring& recurring, const DynamicContext& context);
// Call it after the last add_recurring().
void sort_recurring(Recurring& recurring);

// Follows the requests of a site and tells the context of each.
class ContextTracker {
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
