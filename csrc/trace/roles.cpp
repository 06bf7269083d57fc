#include "trace/roles.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <set>

namespace stalloc {
namespace {

constexpr int kDepth = 3;

// Of a context's requests, one in so many may live longer than its role.
constexpr std::int64_t kExceptions = 5;

// Sizes that come in every visit that has any request.
std::vector<Bytes> recurring_sizes(const std::vector<std::vector<RoleSample>>& visits) {
  std::vector<Bytes> recurring;
  int seen = 0;
  for (const auto& visit : visits) {
    if (visit.empty()) continue;
    std::vector<Bytes> sizes;
    for (const RoleSample& s : visit) sizes.push_back(s.size);
    std::ranges::sort(sizes);
    sizes.erase(std::unique(sizes.begin(), sizes.end()), sizes.end());
    if (seen++ > 0) {
      std::vector<Bytes> common;
      std::ranges::set_intersection(recurring, sizes, std::back_inserter(common));
      sizes = std::move(common);
    }
    recurring = std::move(sizes);
  }
  return seen > 1 ? recurring : std::vector<Bytes>{};
}

// How often a context came to which longevity.
using Histogram = std::map<Longevity, std::int64_t>;

Longevity verdict(const Histogram& histogram) {
  std::int64_t count = 0;
  for (const auto& [longevity, times] : histogram) count += times;
  for (auto it = histogram.rbegin(); it != histogram.rend(); ++it) {
    if (kExceptions * it->second >= count) return it->first;
  }
  return histogram.empty() ? kUnknownLongevity : histogram.rbegin()->first;
}

}  // namespace

DynamicContext ContextWindow::next(const std::vector<Bytes>& recurring, Bytes size) {
  const bool recurs = std::ranges::binary_search(recurring, size);
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

Roles tell_roles(const std::vector<std::vector<RoleSample>>& visits) {
  const std::vector<Bytes> recurring = recurring_sizes(visits);
  std::vector<std::vector<DynamicContext>> seen(visits.size());
  std::map<DynamicContext, Histogram> histograms;
  for (std::size_t v = 0; v < visits.size(); ++v) {
    ContextWindow window;
    for (const RoleSample& s : visits[v]) {
      const DynamicContext context = seen[v].emplace_back(window.next(recurring, s.size));
      for (int depth = 1; depth <= kDepth; ++depth) {
        Histogram& histogram = histograms[shortened(context, depth)];
        if (s.longevity != kUnknownLongevity) ++histogram[s.longevity];
      }
    }
  }

  std::set<Longevity> kinds;
  for (const auto& contexts : seen) {
    for (const DynamicContext& context : contexts) kinds.insert(verdict(histograms.at(context)));
  }
  kinds.erase(kUnknownLongevity);
  const std::vector<Longevity> longest_first(kinds.rbegin(), kinds.rend());
  const auto role_of = [&](const DynamicContext& context) {
    const Longevity longevity = verdict(histograms.at(context));
    std::int32_t role = 0;
    if (longevity == kUnknownLongevity) return role;
    while (role + 1 < static_cast<std::int32_t>(longest_first.size()) &&
           longest_first[role + 1] >= longevity) {
      ++role;
    }
    return role;
  };

  Roles roles;
  roles.longevity = longest_first;
  if (roles.longevity.empty()) roles.longevity.push_back(kUnknownLongevity);
  roles.contexts.resize(roles.longevity.size());
  for (const auto& contexts : seen) {
    auto& of = roles.of.emplace_back();
    for (const DynamicContext& context : contexts) of.push_back(role_of(context));
  }
  if (roles.contexts.size() == 1) return roles;
  for (const auto& [context, histogram] : histograms) {  // ascending
    const int depth = context.before == DynamicContext::kIgnored    ? 1
                      : context.earlier == DynamicContext::kIgnored ? 2
                                                                    : 3;
    const std::int32_t role = role_of(context);
    // What a shorter context says, or nothing at all, need not be said again.
    const std::int32_t known = depth == 1 ? 0 : role_of(shortened(context, depth - 1));
    const bool recurs = context.size > 0 && depth == 1;
    if (role != known || recurs) roles.contexts[role].push_back(context);
  }
  return roles;
}

}  // namespace stalloc
