#include "history.h"

namespace standin {

void History::cut(Address at) {
  auto it = last_.upper_bound(at);
  if (it == last_.begin()) return;
  --it;
  if (it->first == at || it->second.end <= at) return;
  Last upper = it->second;
  it->second.end = at;
  last_.emplace(at, std::move(upper));
}

std::optional<Use> History::add(const Use& use, const Point& p, const Clock& past) {
  std::optional<Use> hazard;
  cut(use.begin);
  cut(use.end);
  Address covered = use.begin;
  for (auto it = last_.lower_bound(use.begin); it != last_.end() && it->first < use.end; ++it) {
    if (covered < it->first) last_.emplace(covered, Last{it->first, use.owner, {p}});
    covered = it->second.end;
    Last& last = it->second;
    if (last.owner != use.owner) {
      for (const Point& earlier : last.points) {
        if (!past.after(earlier)) hazard = Use{it->first, last.end, last.owner};
      }
      last.owner = use.owner;
      last.points.clear();
    }
    std::erase_if(last.points, [&](const Point& q) { return q.stream == p.stream; });
    last.points.push_back(p);
  }
  if (covered < use.end) last_.emplace(covered, Last{use.end, use.owner, {p}});
  return hazard;
}

std::optional<Use> History::unordered(Address begin, Address end, const Clock& past) const {
  auto it = last_.upper_bound(begin);
  if (it != last_.begin() && std::prev(it)->second.end > begin) --it;
  for (; it != last_.end() && it->first < end; ++it) {
    for (const Point& p : it->second.points) {
      if (!past.after(p)) return Use{it->first, it->second.end, it->second.owner};
    }
  }
  return std::nullopt;
}

void History::forget(Address begin, Address end) {
  cut(begin);
  cut(end);
  last_.erase(last_.lower_bound(begin), last_.lower_bound(end));
}

}  // namespace standin
