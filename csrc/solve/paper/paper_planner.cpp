// Memory layers are stacked in the order in which they are made, the largest first. Together they
// are the address space below `height`. `idle` knows their idle intervals: a request is inserted at
// the lowest idle addresses that lie within one layer.

#include "solve/paper/paper_planner.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <tuple>

#include "base/align.h"
#include "base/error.h"
#include "solve/core/origin.h"
#include "solve/core/placement.h"
#include "solve/core/timeline.h"
#include "solve/paper/phase_groups.h"

namespace stalloc::solve {
namespace {

class Layers {
 public:
  Layers(const Timeline& timeline, const Budget& budget)
      : idle_(timeline.moments()), budget_(budget) {}

  Bytes height() const { return height_; }

  // The lowest address at which `size` bytes of one existing layer are idle throughout `span`, or
  // kUnplaced.
  Offset insert(const Span& span, Bytes size) {
    for (Offset from = 0; from < height_;) {
      const Offset offset = idle_.first_fit(span, size, from);
      if (offset >= height_) return kUnplaced;
      const auto above = std::upper_bound(starts_.begin(), starts_.end(), offset);
      const Offset layer_end = above == starts_.end() ? height_ : *above;
      if (size <= layer_end - offset) {
        idle_.place(span, offset, size);
        return offset;
      }
      from = layer_end;
    }
    return kUnplaced;
  }

  Offset add_layer(const Span& span, Bytes size) {
    const Offset offset = height_;
    starts_.push_back(offset);
    height_ += size;
    idle_.place(span, offset, size);
    return offset;
  }

  void append(const Span& span, Offset layer, Bytes size) { idle_.place(span, layer, size); }

  bool expired() {
    if (polls_++ % 256 == 0 && !expired_) expired_ = budget_.expired();
    return expired_;
  }

 private:
  Placement idle_;
  const Budget& budget_;
  std::vector<Offset> starts_;  // of the layers, ascending
  Bytes height_ = 0;
  unsigned polls_ = 0;
  bool expired_ = false;
};

// Constructs the memory layers of one HomoSize group (Algorithm 1), after inserting requests into
// the idle intervals of existing layers. `group` is in order of start.
void plan_size_group(const std::vector<std::size_t>& group, const std::vector<Span>& spans,
                     Bytes size, Layers& layers, std::vector<Offset>& offsets) {
  std::vector<std::size_t> rest;
  for (const std::size_t m : group) {
    offsets[m] = layers.expired() ? kUnplaced : layers.insert(spans[m], size);
    if (offsets[m] == kUnplaced) rest.push_back(m);
  }
  std::multimap<Moment, Offset> ends;  // this group's layers: the last free, the address
  for (const std::size_t m : rest) {
    const Span& span = spans[m];
    // The latest end that is not after the start of m. A request that wraps round gets a new layer.
    auto after = span.wrap > 0 ? ends.begin() : ends.upper_bound(span.begin);
    if (after == ends.begin()) {
      offsets[m] = layers.add_layer(span, size);
    } else {
      const auto layer = std::prev(after);
      offsets[m] = layer->second;
      layers.append(span, layer->second, size);
      ends.erase(layer);
    }
    if (span.wrap == 0) ends.emplace(span.end, offsets[m]);
  }
}

}  // namespace

Layout PaperPlanner::plan(const Problem& problem, const Budget& budget) const {
  for (std::size_t i = 0; i < problem.buffers.size(); ++i) {
    if (problem.buffers[i].fixed != kUnplaced) {
      throw PlanError("the paper's planner cannot keep buffer " + std::to_string(i) +
                      " at a fixed offset; choose another algorithm");
    }
  }
  const Problem linear =
      problem.period > 0 ? with_origin(problem, lightest_tick(problem)) : Problem(problem);
  const std::vector<PhaseGroup> groups = phase_groups(linear, budget);

  // From here on, each group is one request m_g.
  Problem unified;
  unified.period = linear.period;
  unified.alignment = linear.alignment;
  for (const PhaseGroup& g : groups) {
    unified.buffers.push_back({.size = g.size, .lower = g.lower, .upper = g.upper});
  }
  const Timeline timeline(unified);
  const std::vector<Span>& spans = timeline.spans();
  std::vector<std::size_t> order(groups.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return std::tie(groups[b].size, groups[a].lower, a) <
           std::tie(groups[a].size, groups[b].lower, b);
  });

  Layers layers(timeline, budget);
  std::vector<Offset> offsets(groups.size(), kUnplaced);
  std::vector<std::size_t> same_size;
  for (std::size_t k = 0; k < order.size(); ++k) {
    same_size.push_back(order[k]);
    const Bytes size = groups[order[k]].size;
    if (k + 1 < order.size() && groups[order[k + 1]].size == size) continue;
    plan_size_group(same_size, spans, size, layers, offsets);
    same_size.clear();
  }

  Layout layout;
  layout.offsets.assign(problem.buffers.size(), 0);
  for (const Buffer& b : problem.buffers) {
    layout.height = std::max(layout.height, align_up(b.size, problem.alignment));
  }
  layout.height = std::max(layout.height, layers.height());
  for (std::size_t g = 0; g < groups.size(); ++g) {
    for (const GroupMember& member : groups[g].members) {
      layout.offsets[member.buffer] = offsets[g] + member.offset;
    }
  }
  return layout;
}

}  // namespace stalloc::solve
