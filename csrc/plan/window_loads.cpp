#include "plan/window_loads.h"

#include <algorithm>
#include <utility>

#include "base/align.h"

namespace stalloc::plan {
namespace {

// The bytes live at every tick of a period.
class Load {
 public:
  explicit Load(Tick period) : at_(static_cast<std::size_t>(period) + 1) {}

  void add(Tick lower, Tick upper, Bytes size) {
    const Tick period = static_cast<Tick>(at_.size()) - 1;
    if (upper > period) add(0, upper - period, size);
    at_[static_cast<std::size_t>(lower)] += size;
    at_[static_cast<std::size_t>(std::min(upper, period))] -= size;
  }

  // The highest load in each piece between two of the ascending `edges`.
  std::vector<Bytes> most_between(const std::vector<Tick>& edges) {
    for (std::size_t t = 1; t < at_.size(); ++t) at_[t] += at_[t - 1];
    std::vector<Bytes> result;
    for (std::size_t i = 0; i + 1 < edges.size(); ++i) {
      result.push_back(*std::max_element(at_.begin() + edges[i], at_.begin() + edges[i + 1]));
    }
    return result;
  }

 private:
  std::vector<Bytes> at_;  // differences until they are summed up
};

}  // namespace

WindowLoads::WindowLoads(std::span<const profile::ProfiledGroup> groups,
                         const solve::Problem& problem) {
  const Tick period = problem.period;
  std::vector<Tick> edges = {0, period};
  for (const profile::ProfiledGroup& p : groups) {
    edges.push_back(p.lower);
    edges.push_back(p.upper > period ? p.upper - period : p.upper);
  }
  std::ranges::sort(edges);
  edges.erase(std::unique(edges.begin(), edges.end()), edges.end());
  const auto index_of = [&](Tick tick) {
    return static_cast<std::size_t>(std::ranges::lower_bound(edges, tick) - edges.begin());
  };
  for (const profile::ProfiledGroup& p : groups) {
    const std::size_t begin = index_of(p.lower);
    const bool wraps = p.upper > period;
    const std::size_t pieces = edges.size() - 1;
    windows_.push_back({begin, wraps ? pieces + index_of(p.upper - period) : index_of(p.upper)});
    streams_.push_back(p.stream);
  }
  std::map<StreamId, Load> loads;
  for (std::size_t i = 0; i < problem.buffers.size(); ++i) {
    const solve::Buffer& b = problem.buffers[i];
    const auto load = loads.try_emplace(b.stream, period).first;
    const bool planned = i + groups.size() < problem.buffers.size() && b.upper > b.lower;
    if (planned) load->second.add(b.lower, b.upper, align_up(b.size, problem.alignment));
  }
  for (auto& [stream, load] : loads) live_[stream] = load.most_between(edges);
}

template <typename Visit>
void WindowLoads::for_each(const Stretch& s, Visit visit) const {
  const std::size_t pieces = live_.begin()->second.size();
  for (std::size_t i = s.begin; i < std::min(s.end, pieces); ++i) visit(i);
  for (std::size_t i = pieces; i < s.end; ++i) visit(i - pieces);
}

void WindowLoads::grow(std::size_t group, Bytes by) {
  std::vector<Bytes>& live = live_.at(streams_[group]);
  for_each(windows_[group], [&](std::size_t i) { live[i] += by; });
}

Bytes WindowLoads::most(std::size_t group) const {
  const std::vector<Bytes>& live = live_.at(streams_[group]);
  Bytes result = 0;
  for_each(windows_[group], [&](std::size_t i) { result = std::max(result, live[i]); });
  return result;
}

Bytes WindowLoads::peak(StreamId stream) const {
  return *std::ranges::max_element(live_.at(stream));
}

Bytes WindowLoads::bound() const {
  Bytes sum = 0;
  for (const auto& [stream, live] : live_) sum += peak(stream);
  return sum;
}

}  // namespace stalloc::plan
