#include "trace/roles.h"

#include <algorithm>
#include <functional>
#include <iterator>
#include <map>
#include <set>

namespace stalloc {
namespace {

constexpr int kDepth = 3;

// Of a context's requests, one in so many may live longer than its role.
constexpr std::int64_t kExceptions = 5;

// Of the pairs that are taken to recur, those that do so in every visit that has any request.
std::vector<RecurringPair> common_pairs(const std::vector<std::vector<RoleSample>>& visits,
                                        const std::vector<RecurringPair>& recurring) {
  std::vector<RecurringPair> common;
  bool first = true;
  for (const auto& visit : visits) {
    if (visit.empty()) continue;
    std::set<RecurringPair> pairs;
    ContextWindow window;
    for (const RoleSample& s : visit) {
      const DynamicContext context = window.next(recurring, s.size);
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

// Begins with all sizes that come in every visit, after whatever comes before them, and drops what
// does not come in all, until that is all there is.
std::vector<RecurringPair> recurring_pairs(const std::vector<std::vector<RoleSample>>& visits) {
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
  std::vector<RecurringPair> pairs(all.begin(), all.end());
  for (;;) {
    std::vector<RecurringPair> left = common_pairs(visits, pairs);
    if (left == pairs) return pairs;
    pairs = std::move(left);
  }
}

// How often a context came to which longevity.
using Histogram = std::map<Longevity, std::int64_t>;

Longevity verdict(const Histogram& histogram) {
  std::int64_t count = 0;
  for (const auto& [longevity, times] : histogram) count += times;
  for (auto it = histogram.rbegin(); it != histogram.rend(); ++it) {
    if (kExceptions * it->second >= count) return it->first;
  }
  return kUnknownLongevity;
}

}  // namespace

DynamicContext ContextWindow::next(const std::vector<RecurringPair>& recurring, Bytes size) {
  const bool recurs = std::ranges::binary_search(recurring, RecurringPair{size, before_});
  const DynamicContext context{recurs ? size : DynamicContext::kVaries, before_, earlier_};
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

bool is_small(const RoleSample& s) { return s.size < kSmallRequest; }

// The roles of what is not small.
class LargeRoles {
 public:
  explicit LargeRoles(const Histograms& histograms) : histograms_(histograms) {
    std::set<Longevity> kinds;
    for (const auto& [context, histogram] : histograms_) {
      if (depth_of(context) == kDepth) kinds.insert(verdict(histogram));
    }
    kinds.erase(kUnknownLongevity);
    longest_first_.assign(kinds.rbegin(), kinds.rend());
    if (longest_first_.empty()) longest_first_.push_back(kUnknownLongevity);
  }

  const std::vector<Longevity>& longevity() const { return longest_first_; }

  // The shortest that is as long.
  std::int32_t of(const DynamicContext& context) const {
    const Longevity longevity = verdict(histograms_.at(context));
    const auto shorter = std::ranges::lower_bound(longest_first_, longevity, std::greater{});
    if (longevity == kUnknownLongevity || shorter == longest_first_.end()) return 0;
    return static_cast<std::int32_t>(shorter - longest_first_.begin());
  }

  // What tells them: a context that says no more than a shorter one, or than nothing, is left out.
  void tell(std::vector<std::vector<DynamicContext>>& contexts) const {
    for (const auto& [context, histogram] : histograms_) {
      const int depth = depth_of(context);
      const std::int32_t role = of(context);
      const std::int32_t known = depth == 1 ? 0 : of(shortened(context, depth - 1));
      const bool recurs = context.size > 0 && depth == 2;
      if (role != known || recurs) contexts[role].push_back(context);
    }
  }

 private:
  const Histograms& histograms_;
  std::vector<Longevity> longest_first_;
};

}  // namespace

Roles tell_roles(const std::vector<std::vector<RoleSample>>& visits) {
  const std::vector<RecurringPair> recurring = recurring_pairs(visits);
  std::vector<std::vector<DynamicContext>> seen(visits.size());
  Histograms large;
  Histograms small;
  for (std::size_t v = 0; v < visits.size(); ++v) {
    ContextWindow window;
    for (const RoleSample& s : visits[v]) {
      const DynamicContext context = seen[v].emplace_back(window.next(recurring, s.size));
      for (int depth = 1; depth <= kDepth; ++depth) {
        Histogram& histogram = (is_small(s) ? small : large)[shortened(context, depth)];
        if (s.longevity != kUnknownLongevity) ++histogram[s.longevity];
      }
    }
  }
  if (large.empty()) std::swap(large, small);  // then size tells nothing

  const LargeRoles roles_of_large(large);
  Roles roles;
  roles.longevity = roles_of_large.longevity();
  const auto last = static_cast<std::int32_t>(roles.longevity.size());
  if (!small.empty()) {
    Longevity longest = kUnknownLongevity;
    for (const auto& [context, histogram] : small) {
      if (depth_of(context) == kDepth) longest = std::max(longest, verdict(histogram));
    }
    roles.longevity.push_back(longest);
  }
  for (std::size_t v = 0; v < visits.size(); ++v) {
    auto& of = roles.of.emplace_back();
    for (std::size_t i = 0; i < visits[v].size(); ++i) {
      const bool apart = !small.empty() && is_small(visits[v][i]);
      of.push_back(apart ? last : roles_of_large.of(seen[v][i]));
    }
  }
  roles.contexts.resize(roles.longevity.size());
  if (roles.contexts.size() == 1) return roles;
  roles_of_large.tell(roles.contexts);
  if (small.empty()) return roles;
  roles.contexts[last].push_back({.size = DynamicContext::kSmall});
  for (const auto& [context, histogram] : small) {
    if (context.size > 0 && depth_of(context) == 2) roles.contexts[last].push_back(context);
  }
  return roles;
}

}  // namespace stalloc
