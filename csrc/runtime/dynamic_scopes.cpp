#include "runtime/dynamic_scopes.h"

#include <algorithm>
#include <iterator>

namespace stalloc::runtime {

void DynamicScopes::enter() {
  const auto mine = std::ranges::find(depths_, this_thread_ordinal(), &Depth::thread);
  if (mine == depths_.end()) {
    depths_.push_back({this_thread_ordinal(), 1});
  } else {
    ++mine->depth;
  }
}

void DynamicScopes::leave() {
  const auto mine = std::ranges::find(depths_, this_thread_ordinal(), &Depth::thread);
  if (mine != depths_.end() && --mine->depth == 0) depths_.erase(mine);
}

void DynamicScopes::tag_nodes(std::uint64_t first, std::uint64_t last, std::int64_t iteration) {
  if (first >= last) return;
  // The new range takes in every range that it touches.
  auto at = nodes_.upper_bound(first);
  if (at != nodes_.begin() && std::prev(at)->second.last >= first) --at;
  while (at != nodes_.end() && at->first <= last) {
    first = std::min(first, at->first);
    last = std::max(last, at->second.last);
    at = nodes_.erase(at);
  }
  nodes_[first] = {last, iteration};
  follows_nodes_.store(true, std::memory_order_relaxed);
}

void DynamicScopes::forget_nodes_before(std::int64_t iteration) {
  std::erase_if(nodes_, [&](const auto& range) { return range.second.iteration < iteration; });
}

void DynamicScopes::clear() {
  depths_.clear();
  nodes_.clear();
  follows_nodes_.store(false, std::memory_order_relaxed);
}

bool DynamicScopes::is_inside() const {
  return !depths_.empty() &&
         std::ranges::find(depths_, this_thread_ordinal(), &Depth::thread) != depths_.end();
}

bool DynamicScopes::is_tagged(const NodeSequence& node) const {
  if (!node || nodes_.empty()) return false;
  const auto after = nodes_.upper_bound(*node);
  return after != nodes_.begin() && *node < std::prev(after)->second.last;
}

}  // namespace stalloc::runtime
