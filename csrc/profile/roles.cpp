#include "profile/roles.h"

#include <algorithm>
#include <functional>
#include <iterator>
#include <limits>
#include <map>
#include <numeric>
#include <ranges>
#include <set>

namespace stalloc::profile {
namespace {

constexpr int kDepth = 3;

constexpr int kTermBits = 20;
static_assert(Ratio::kTermEnd == Bytes{1} << kTermBits);

// The most ratios of a site; the most frequent ones are kept. Each is tried for each request.
constexpr std::size_t kMaxRatios = 16;

// A request may be so many times larger than it was seen, where sizes grow with the batch.
constexpr Bytes kGrowth = 64;

// One in so many of a context's requests may live longer than its role.
constexpr std::int64_t kExceptions = 5;

using RecurringPair = std::pair<Bytes, Bytes>;

// The token of a size in a pair of sizes, where ratios count as sizes that vary.
Bytes without_ratio(Bytes size) {
  return Ratio::is_code(size) || size == DynamicContext::kUnsure ? DynamicContext::kVaries : size;
}

// True if the size recurs after any other.
bool recurs(const Recurring& recurring, Bytes size) {
  const auto it = std::ranges::lower_bound(recurring.sizes, size, {}, &RecurringPair::first);
  return it != recurring.sizes.end() && it->first == size;
}

bool is_multiple(const Ratio& ratio, Bytes size, Bytes of) {
  Bytes a = 0;
  Bytes b = 0;
  return !__builtin_mul_overflow(size, ratio.divisor, &a) &&
         !__builtin_mul_overflow(of, ratio.factor, &b) && a == b;
}

// The recurring pairs that every visit with requests has.
std::vector<RecurringPair> common_pairs(const std::vector<std::vector<RoleSample>>& visits,
                                        const Recurring& recurring) {
  std::vector<RecurringPair> common;
  bool first = true;
  for (const auto& visit : visits) {
    if (visit.empty()) continue;
    std::set<RecurringPair> pairs;
    ContextTracker tracker;
    for (const RoleSample& s : visit) {
      const DynamicContext context = tracker.next(recurring, s.size);
      if (context.size > 0) pairs.insert({context.size, context.before});
    }
    std::vector<RecurringPair> both;
    if (first) {
      both.assign(pairs.begin(), pairs.end());
    } else {
      std::ranges::set_intersection(common, pairs, std::back_inserter(both));
    }
    common = std::move(both);
    first = false;
  }
  return common;
}

// Finds the greatest set of pairs that recur. It begins with all sizes that come in every visit,
// after any other size, and drops pairs that some visit lacks until none is left to drop.
Recurring recurring_sizes(const std::vector<std::vector<RoleSample>>& visits) {
  std::map<Bytes, std::int64_t> seen_in;
  std::int64_t count = 0;
  for (const auto& visit : visits) {
    count += !visit.empty();
    std::set<Bytes> sizes;
    for (const RoleSample& s : visit) sizes.insert(s.size);
    for (const Bytes size : sizes) ++seen_in[size];
  }
  if (count < 2) return {};
  const auto token = [&](Bytes size) {
    return seen_in[size] == count ? size : DynamicContext::kVaries;
  };
  std::set<RecurringPair> all;
  for (const auto& visit : visits) {
    Bytes before = DynamicContext::kStart;
    for (const RoleSample& s : visit) {
      const Bytes t = token(s.size);
      if (t > 0) all.insert({t, before});
      before = t;
    }
  }
  Recurring recurring{.sizes = {all.begin(), all.end()}, .ratios = {}, .varies_after = {}};
  for (;;) {
    std::vector<RecurringPair> left = common_pairs(visits, recurring);
    if (left == recurring.sizes) return recurring;
    recurring.sizes = std::move(left);
  }
}

// The ratios that every visit with requests has; `sizes` says which sizes recur.
std::vector<Ratio> recurring_ratios(const std::vector<std::vector<RoleSample>>& visits,
                                    const Recurring& sizes) {
  std::map<Bytes, std::pair<std::int32_t, std::int64_t>> seen;  // in visits, in all
  std::int32_t count = 0;
  for (const auto& visit : visits) {
    count += !visit.empty();
    ContextTracker tracker;
    Bytes first = 0;
    Bytes last = 0;
    std::map<Bytes, std::int64_t> here;
    for (const RoleSample& s : visit) {
      if (tracker.next(sizes, s.size).size > 0) continue;
      for (const bool to_last : {true, false}) {
        const Bytes of = to_last ? last : first;
        const Bytes divisor = std::gcd(s.size, of);
        if (of == 0 || std::max(s.size, of) / divisor >= Ratio::kTermEnd) continue;
        ++here[Ratio{s.size / divisor, of / divisor, to_last}.code()];
      }
      last = s.size;
      if (first == 0) first = last;
    }
    for (const auto& [code, times] : here) {
      auto& [visited, in_all] = seen[code];
      ++visited;
      in_all += times;
    }
  }
  std::vector<std::pair<std::int64_t, Bytes>> common;  // the most frequent first
  for (const auto& [code, of] : seen) {
    if (count >= 2 && of.first == count) common.emplace_back(-of.second, code);
  }
  std::ranges::sort(common);
  if (common.size() > kMaxRatios) common.resize(kMaxRatios);
  std::vector<Ratio> ratios;
  for (const auto& [times, code] : common) ratios.push_back(Ratio::from_code(code));
  return ratios;
}

// The longevities of one context's requests.
struct Histogram {
  std::map<Longevity, std::int64_t> times;
  std::map<std::size_t, Longevity> longest;  // by visit, of requests that are not kept

  void add(std::size_t visit, Longevity longevity) {
    if (longevity == kUnknownLongevity) return;
    ++times[longevity];
    Longevity& most = longest[visit];
    if (longevity != kKept) most = std::max(most, longevity);
  }
};

Longevity verdict(const Histogram& histogram) {
  // A longevity that every visit reaches is no exception.
  Longevity always = kUnknownLongevity;
  for (const auto& [visit, most] : histogram.longest) {
    always = always == kUnknownLongevity ? most : std::min(always, most);
  }
  std::int64_t count = 0;
  for (const auto& [longevity, times] : histogram.times) count += times;
  std::int64_t longer = 0;
  for (const auto& [longevity, times] : histogram.times | std::views::reverse) {
    longer += times;
    if (kExceptions * longer >= count) return std::max(longevity, always);
  }
  return kUnknownLongevity;
}

// Collects the tokens that may precede a varying size. Each addition can turn further sizes into
// varying ones, so this repeats until nothing is added.
void add_varies_after(const std::vector<std::vector<RoleSample>>& visits, Recurring& recurring) {
  std::set<Bytes> before;
  do {
    recurring.varies_after.assign(before.begin(), before.end());
    for (const auto& visit : visits) {
      ContextTracker tracker;
      for (const RoleSample& s : visit) {
        const DynamicContext context = tracker.next(recurring, s.size);
        if (context.size == DynamicContext::kVaries) before.insert(context.before);
      }
    }
  } while (before.size() > recurring.varies_after.size());
}

}  // namespace

Bytes Ratio::code() const {
  return -(((to_last ? Bytes{1} : Bytes{0}) << (2 * kTermBits)) + (factor << kTermBits) + divisor);
}

bool Ratio::is_code(Bytes size) {
  if (size > -kTermEnd || size <= -(Bytes{1} << (2 * kTermBits + 1))) return false;
  const Ratio ratio = from_code(size);
  return ratio.factor > 0 && ratio.divisor > 0;
}

Ratio Ratio::from_code(Bytes code) {
  const Bytes bits = -code;
  return {(bits >> kTermBits) % kTermEnd, bits % kTermEnd, bits >> (2 * kTermBits) != 0};
}

void add_recurring(Recurring& recurring, const DynamicContext& context) {
  if (Ratio::is_code(context.size)) {
    recurring.ratios.push_back(Ratio::from_code(context.size));
  } else if (context.before != DynamicContext::kIgnored) {
    if (context.size > 0) {
      recurring.sizes.emplace_back(context.size, without_ratio(context.before));
    } else if (context.size == DynamicContext::kVaries) {
      recurring.varies_after.push_back(context.before);
    }
  }
}

void sort_recurring(Recurring& recurring) {
  std::ranges::sort(recurring.sizes);
  std::ranges::sort(recurring.ratios, {}, &Ratio::code);
  const auto repeated = std::ranges::unique(recurring.ratios, {}, &Ratio::code);
  recurring.ratios.erase(repeated.begin(), repeated.end());
  std::ranges::sort(recurring.varies_after);
}

DynamicContext ContextTracker::next(const Recurring& recurring, Bytes size) {
  DynamicContext context{DynamicContext::kVaries, before_, earlier_};
  if (std::ranges::binary_search(recurring.sizes, RecurringPair{size, without_ratio(before_)})) {
    context.size = size;
  } else {
    for (const Ratio& ratio : recurring.ratios) {
      const Bytes of = ratio.to_last ? last_varying_ : first_varying_;
      if (of == 0 || !is_multiple(ratio, size, of)) continue;
      context.size = ratio.code();
      break;
    }
    const bool unsure = context.size == DynamicContext::kVaries && recurs(recurring, size) &&
                        !std::ranges::binary_search(recurring.varies_after, before_);
    if (unsure) {
      context.size = DynamicContext::kUnsure;
    } else {
      last_varying_ = size;
      if (first_varying_ == 0) first_varying_ = size;
    }
  }
  earlier_ = before_;
  before_ = context.size;
  return context;
}

DynamicContext shortened(DynamicContext context, int depth) {
  if (depth < 3) context.earlier = DynamicContext::kIgnored;
  if (depth < 2) context.before = DynamicContext::kIgnored;
  return context;
}

namespace {

using Histograms = std::map<DynamicContext, Histogram>;

int depth_of(const DynamicContext& context) {
  if (context.before == DynamicContext::kIgnored) return 1;
  return context.earlier == DynamicContext::kIgnored ? 2 : kDepth;
}

// True if add_recurring() needs the context, even if it determines no role.
bool says_what_recurs(const DynamicContext& context) {
  const int depth = depth_of(context);
  return (depth == 1 && Ratio::is_code(context.size)) ||
         (depth == 2 && context.size >= DynamicContext::kVaries);
}

bool is_small(const RoleSample& s) { return s.size < kSmallRequest; }

// The longevity of all small requests together: the longest that is not kept.
Longevity longest_of(const Histograms& histograms) {
  std::set<Longevity> verdicts;
  for (const auto& [context, histogram] : histograms) {
    if (depth_of(context) == kDepth) verdicts.insert(verdict(histogram));
  }
  verdicts.insert(kUnknownLongevity);
  if (verdicts.size() > 2) verdicts.erase(kKept);
  return *verdicts.rbegin();
}

// The roles of requests that are not small.
class LargeRoles {
 public:
  LargeRoles(const Histograms& histograms, bool small_apart) : histograms_(histograms) {
    std::set<Longevity> kinds;
    for (const auto& [context, histogram] : histograms_) {
      if (depth_of(context) == kDepth) kinds.insert(verdict(histogram));
    }
    kinds.erase(kUnknownLongevity);
    kinds.erase(kKept);
    for (const Longevity longevity : kinds | std::views::reverse) {
      if (longest_first_.empty() || 4 * longevity <= 3 * longest_first_.back()) {
        longest_first_.push_back(longevity);
      }
    }
    if (longest_first_.empty()) longest_first_.push_back(kUnknownLongevity);
    std::set<Role> roles;
    for (const auto& [context, histogram] : histograms_) {
      if (depth_of(context) == kDepth) roles.insert(role(context));
    }
    any_kept_ = roles.erase(kKeptRole) > 0;
    roles_.assign(roles.begin(), roles.end());
    if (roles_.empty()) roles_.push_back({0, false});
    kept_ = static_cast<std::int32_t>(roles_.size()) + (small_apart ? 1 : 0);
  }

  // The role of kept requests, which comes after all others; true if any context has it.
  std::int32_t kept() const { return kept_; }
  bool any_kept() const { return any_kept_; }

  std::vector<Longevity> longevity() const {
    std::vector<Longevity> result;
    for (const auto& [kind, recurs] : roles_) result.push_back(longest_first_[kind]);
    return result;
  }

  // An unknown role counts as the first, which lives longest.
  std::int32_t of(const DynamicContext& context) const {
    const Role known = role(context);
    if (known == kKeptRole) return kept_;
    const auto it = std::ranges::find(roles_, known);
    return it == roles_.end() ? 0 : static_cast<std::int32_t>(it - roles_.begin());
  }

  // Adds the contexts that determine the roles, and those that say what recurs. Leaves out a
  // context that determines no more than a shorter one.
  void tell(const Recurring& recurring, std::vector<std::vector<DynamicContext>>& contexts) const {
    const DynamicContext varies{.size = DynamicContext::kVaries};
    const std::int32_t like = histograms_.contains(varies) ? of(varies) : 0;
    for (const Bytes before : recurring.varies_after) {
      const DynamicContext after{.size = DynamicContext::kVaries, .before = before};
      if (!histograms_.contains(after)) contexts[like].push_back(after);
    }
    for (const auto& [context, histogram] : histograms_) {
      const int depth = depth_of(context);
      const std::int32_t role = of(context);
      const std::int32_t known = depth == 1 ? 0 : of(shortened(context, depth - 1));
      if (role != known || says_what_recurs(context)) contexts[role].push_back(context);
    }
    for (auto& told : contexts) std::ranges::sort(told);
  }

 private:
  using Role = std::pair<std::size_t, bool>;  // index into longest_first_; true if its sizes recur
  static constexpr Role kKeptRole{std::numeric_limits<std::size_t>::max(), false};

  // The shortest role that is at least as long.
  Role role(const DynamicContext& context) const {
    const Longevity longevity = verdict(histograms_.at(context));
    if (longevity == kUnknownLongevity) return {0, false};
    if (longevity == kKept) return kKeptRole;
    const auto shorter = std::ranges::upper_bound(longest_first_, longevity, std::greater{});
    const auto kind = std::max<std::ptrdiff_t>(shorter - longest_first_.begin(), 1) - 1;
    const auto index = static_cast<std::size_t>(kind);
    return {index, longest_first_[index] > kMomentary && context.size > 0};
  }

  const Histograms& histograms_;
  std::vector<Longevity> longest_first_;
  std::vector<Role> roles_;
  std::int32_t kept_ = 0;
  bool any_kept_ = false;
};

// The sizes of which at least one in kExceptions was kept although its context does not say so.
std::vector<DynamicContext> kept_sizes(const std::vector<std::vector<RoleSample>>& visits,
                                       const std::vector<std::vector<DynamicContext>>& seen,
                                       const LargeRoles& roles, bool small_apart) {
  std::map<Bytes, std::pair<std::int64_t, std::int64_t>> times;  // kept, in all
  for (std::size_t v = 0; v < visits.size(); ++v) {
    for (std::size_t i = 0; i < visits[v].size(); ++i) {
      const RoleSample& s = visits[v][i];
      if (s.longevity == kUnknownLongevity || !size_alone_tells(s.size, seen[v][i], small_apart)) {
        continue;
      }
      const bool told = !(small_apart && is_small(s)) && roles.of(seen[v][i]) == roles.kept();
      auto& [kept, all] = times[s.size];
      ++all;
      kept += s.longevity == kKept && !told;
    }
  }
  std::vector<DynamicContext> sizes;
  for (const auto& [size, of] : times) {
    if (of.first > 0 && kExceptions * of.first >= of.second) sizes.push_back({.size = size});
  }
  return sizes;
}

// Adds the contexts of small requests.
void tell_small(const Histograms& small, std::vector<DynamicContext>& contexts) {
  contexts.push_back({.size = DynamicContext::kSmall});
  for (const auto& [context, histogram] : small) {
    if (says_what_recurs(context)) contexts.push_back(context);
  }
  std::ranges::sort(contexts);
}

}  // namespace

Roles tell_roles(const std::vector<std::vector<RoleSample>>& visits, bool sizes_grow) {
  Recurring recurring = recurring_sizes(visits);
  recurring.ratios = recurring_ratios(visits, recurring);
  sort_recurring(recurring);
  add_varies_after(visits, recurring);
  std::vector<std::vector<DynamicContext>> seen(visits.size());
  Histograms large;
  Histograms small;
  for (std::size_t v = 0; v < visits.size(); ++v) {
    ContextTracker tracker;
    for (const RoleSample& s : visits[v]) {
      const DynamicContext context = seen[v].emplace_back(tracker.next(recurring, s.size));
      for (int depth = 1; depth <= kDepth; ++depth) {
        const DynamicContext known = shortened(context, depth);
        if (is_small(s)) small[known].add(v, s.longevity);
        const bool may_be_large = sizes_grow && kGrowth * s.size >= kSmallRequest;
        if (!is_small(s) || may_be_large) large[known].add(v, s.longevity);
      }
    }
  }
  if (large.empty()) std::swap(large, small);  // then size tells nothing

  const bool apart = !small.empty();
  const LargeRoles roles_of_large(large, apart);
  Roles roles;
  roles.longevity = roles_of_large.longevity();
  const auto small_role = static_cast<std::int32_t>(roles.longevity.size());
  if (apart) roles.longevity.push_back(longest_of(small));
  const auto kept_role = static_cast<std::size_t>(roles_of_large.kept());
  const auto kept = kept_sizes(visits, seen, roles_of_large, apart);
  if (roles_of_large.any_kept() || !kept.empty()) roles.longevity.push_back(kKept);

  roles.contexts.resize(roles.longevity.size());
  if (roles.contexts.size() > 1) {
    roles_of_large.tell(recurring, roles.contexts);
    if (apart) tell_small(small, roles.contexts[static_cast<std::size_t>(small_role)]);
  }
  std::set<Bytes> sizes;  // each alone marks a request as kept
  if (kept_role < roles.contexts.size()) {
    auto& contexts = roles.contexts[kept_role];
    contexts.insert(contexts.end(), kept.begin(), kept.end());
    std::ranges::sort(contexts);
    const auto repeated = std::ranges::unique(contexts);
    contexts.erase(repeated.begin(), repeated.end());
    for (const DynamicContext& c : contexts) {
      if (depth_of(c) == 1 && c.size > 0) sizes.insert(c.size);
    }
  }
  for (std::size_t v = 0; v < visits.size(); ++v) {
    auto& of = roles.of.emplace_back();
    for (std::size_t i = 0; i < visits[v].size(); ++i) {
      const RoleSample& s = visits[v][i];
      if (size_alone_tells(s.size, seen[v][i], apart) && sizes.contains(s.size)) {
        of.push_back(roles_of_large.kept());
      } else {
        of.push_back(apart && is_small(s) ? small_role : roles_of_large.of(seen[v][i]));
      }
    }
  }
  return roles;
}

}  // namespace stalloc::profile
