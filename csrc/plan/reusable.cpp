// A sweep over time with a tree over addresses. For each address the tree knows the end of the last
// occupation that has begun. The layout is valid, so that is the latest end. An address is idle
// through [lower, upper) exactly if no occupation that begins before `upper` ends after `lower`.
// The tree's nodes hold the least and the largest end. So the cost of an idle range does not depend
// on the number of buffers' edges within it.
//
// Time is unrolled. A window ends within the second period, so each buffer is swept over three
// times: in the period before the one where the window begins, in that one and in the next.
#include "plan/reusable.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <set>

#include "base/align.h"
#include "base/range_set.h"

namespace stalloc::plan {
namespace {

class LastEnds {
 public:
  // `edges`: ascending addresses, at least two.
  explicit LastEnds(std::vector<Offset> edges)
      : edges_(std::move(edges)), nodes_(4 * (edges_.size() - 1)) {}

  void occupy(Offset begin, Offset end, Tick until) {
    assign(kRoot, 0, edges_.size() - 1, begin, end, until);
  }

  // The addresses that no occupation so far keeps after `tick`.
  std::vector<AddressRange> idle_after(Tick tick) {
    std::vector<AddressRange> ranges;
    collect(kRoot, 0, edges_.size() - 1, tick, ranges);
    return ranges;
  }

 private:
  static constexpr std::size_t kRoot = 1;
  static constexpr Tick kNeverBefore = std::numeric_limits<Tick>::min();

  struct Node {
    Tick least = kNeverBefore;
    Tick largest = kNeverBefore;
    bool uniform() const { return least == largest; }
  };

  // Updates the children of a uniform node, which may be out of date.
  void push_down(std::size_t node) {
    if (nodes_[node].uniform()) nodes_[2 * node] = nodes_[2 * node + 1] = nodes_[node];
  }

  // The node stands for [edges_[first], edges_[last]).
  void assign(std::size_t node, std::size_t first, std::size_t last, Offset begin, Offset end,
              Tick until) {
    if (end <= edges_[first] || edges_[last] <= begin) return;
    if (begin <= edges_[first] && edges_[last] <= end) {
      nodes_[node] = {until, until};
      return;
    }
    push_down(node);
    const std::size_t middle = std::midpoint(first, last);
    assign(2 * node, first, middle, begin, end, until);
    assign(2 * node + 1, middle, last, begin, end, until);
    nodes_[node] = {std::min(nodes_[2 * node].least, nodes_[2 * node + 1].least),
                    std::max(nodes_[2 * node].largest, nodes_[2 * node + 1].largest)};
  }

  void collect(std::size_t node, std::size_t first, std::size_t last, Tick tick,
               std::vector<AddressRange>& ranges) {
    if (nodes_[node].least > tick) return;
    if (nodes_[node].largest <= tick) {
      if (!ranges.empty() && ranges.back().end == edges_[first]) {
        ranges.back().end = edges_[last];
      } else {
        ranges.push_back({edges_[first], edges_[last]});
      }
      return;
    }
    const std::size_t middle = std::midpoint(first, last);
    collect(2 * node, first, middle, tick, ranges);
    collect(2 * node + 1, middle, last, tick, ranges);
  }

  std::vector<Offset> edges_;
  std::vector<Node> nodes_;
};

struct Occupation {
  Offset begin = 0;
  Offset end = 0;
  Tick lower = 0;
  Tick upper = 0;
  StreamId stream = 0;
};

std::vector<Occupation> occupations(const solve::Problem& problem, const solve::Layout& layout) {
  std::vector<Occupation> result;
  for (std::size_t i = 0; i < problem.buffers.size(); ++i) {
    const solve::Buffer& b = problem.buffers[i];
    if (b.size == 0 || b.upper <= b.lower) continue;
    const Offset begin = layout.offsets[i];
    result.push_back(
        {begin, begin + align_up(b.size, problem.alignment), b.lower, b.upper, b.stream});
  }
  std::ranges::sort(result, {}, &Occupation::lower);
  return result;
}

}  // namespace

std::vector<std::vector<AddressRange>> reusable_space(const solve::Problem& problem,
                                                      const solve::Layout& layout,
                                                      std::span<const Window> windows) {
  std::vector<std::vector<AddressRange>> result(windows.size());
  if (layout.height == 0) return result;
  const std::vector<Occupation> all = occupations(problem, layout);
  std::vector<Offset> edges = {0, layout.height};
  for (const Occupation& o : all) edges.insert(edges.end(), {o.begin, o.end});
  std::ranges::sort(edges);
  edges.erase(std::unique(edges.begin(), edges.end()), edges.end());

  std::vector<std::size_t> order(windows.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::sort(order, {}, [&](std::size_t w) { return windows[w].upper; });
  std::set<StreamId> streams;
  for (const Window& w : windows) streams.insert(w.stream);
  for (const StreamId stream : streams) {
    LastEnds last_ends(edges);
    RangeSet exclusive;  // addresses that no other stream ever has
    exclusive.insert({0, layout.height});
    for (const Occupation& o : all) {
      if (o.stream == stream) continue;
      last_ends.occupy(o.begin, o.end, kNever);
      exclusive.remove({o.begin, o.end});
    }
    std::vector<Occupation> own;
    for (const Occupation& o : all) {
      if (o.stream != stream) continue;
      exclusive.intersect({o.begin, o.end}, [&](Range r) {
        own.push_back({r.begin, r.end, o.lower, o.upper, stream});
      });
    }
    std::size_t next = 0;  // buffer of the unrolled periods
    const std::size_t periods = problem.period > 0 ? 3 : 1;
    for (const std::size_t w : order) {
      if (windows[w].stream != stream) continue;
      for (; next < periods * own.size(); ++next) {
        const Occupation& o = own[next % own.size()];
        const Tick shift =
            periods == 1 ? 0 : (static_cast<Tick>(next / own.size()) - 1) * problem.period;
        if (o.lower + shift >= windows[w].upper) break;
        last_ends.occupy(o.begin, o.end, o.upper + shift);
      }
      result[w] = last_ends.idle_after(windows[w].lower);
    }
  }
  return result;
}

}  // namespace stalloc::plan
