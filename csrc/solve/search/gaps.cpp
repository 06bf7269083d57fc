#include "solve/search/gaps.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <span>
#include <utility>

#include "base/align.h"
#include "solve/core/active_parts.h"
#include "solve/core/bound.h"
#include "solve/core/order.h"
#include "solve/core/placement.h"
#include "solve/core/timeline.h"

namespace stalloc::solve {
namespace {

constexpr int kRepairs = 12;
constexpr std::size_t kSearchable = 24;         // buffers
constexpr std::int64_t kSearchNodes = 500'000;  // a tenth of a second or two

class Gapped {
 public:
  Gapped(const Problem& problem, const Budget& budget)
      : problem_(problem),
        budget_(budget),
        parts_(active_parts(problem)),
        timeline_(parts_.problem),
        best_{{}, load_bound(problem)} {}

  Minimum run(const std::vector<Offset>& warm) {
    if (!warm.empty()) {
      std::vector<BufferIndex> order(problem_.buffers.size());
      std::iota(order.begin(), order.end(), 0);
      std::ranges::stable_sort(order, {}, [&](BufferIndex i) {
        return warm[i] < 0 ? std::numeric_limits<Offset>::max() : warm[i];
      });
      improve(std::move(order));
    }
    for (const Order order :
         {Order::kPeakRankEnd, Order::kPeakRankSize, Order::kPeakRankStart, Order::kCentreOutEnd,
          Order::kSize, Order::kArea, Order::kLifetime, Order::kStart}) {
      if (is_done()) return std::move(best_);
      improve(buffers_of(ordered(parts_.problem, timeline_, order)));
    }
    if (!is_done()) search();
    return std::move(best_);
  }

 private:
  Bytes size(BufferIndex i) const { return align_up(problem_.buffers[i].size, problem_.alignment); }

  bool is_active(BufferIndex i) const {
    return size(i) > 0 && std::ranges::any_of(spans(i), [](const Span& s) { return !s.empty(); });
  }

  std::span<const Span> spans(BufferIndex i) const {
    return {timeline_.spans().data() + parts_.first[i], parts_.first[i + 1] - parts_.first[i]};
  }

  bool has_best() const { return best_.layout.offsets.size() == problem_.buffers.size(); }

  bool is_done() const {
    if (!has_best()) return false;
    return best_.layout.height <= std::max(best_.bound, budget_.target) || budget_.expired();
  }

  // Gives each buffer the offset of its first part.
  std::vector<BufferIndex> buffers_of(const std::vector<BufferIndex>& parts) const {
    std::vector<char> seen(problem_.buffers.size(), false);
    std::vector<BufferIndex> order;
    for (const BufferIndex part : parts) {
      if (!std::exchange(seen[parts_.owner[part]], true)) order.push_back(parts_.owner[part]);
    }
    return order;
  }

  // Places in this order, and again with the buffers that were too high at the front.
  void improve(std::vector<BufferIndex> order) {
    for (int round = 0; round <= kRepairs; ++round) {
      const Layout layout = place(order);
      if (!has_best() || layout.height < best_.layout.height) best_.layout = layout;
      if (is_done()) return;
      std::ranges::stable_partition(
          order, [&](BufferIndex i) { return layout.offsets[i] + size(i) > best_.bound; });
    }
  }

  Layout place(const std::vector<BufferIndex>& order) const {
    constexpr std::size_t kPollEvery = 256;  // buffers between two looks at the clock
    Placement placement(timeline_.moments());
    Layout layout;
    layout.offsets.assign(problem_.buffers.size(), 0);
    const auto put = [&](BufferIndex i, Offset offset) {
      layout.offsets[i] = offset;
      layout.height = std::max(layout.height, offset + size(i));
      if (size(i) == 0) return;
      for (const Span& span : spans(i)) {
        if (!span.empty()) placement.place(span, offset, size(i));
      }
    };
    for (std::size_t i = 0; i < problem_.buffers.size(); ++i) {
      const auto index = static_cast<BufferIndex>(i);
      const Offset fixed = problem_.buffers[i].fixed;
      if (fixed != kUnplaced) {
        put(index, fixed);
      } else {
        layout.height = std::max(layout.height, size(index));
      }
    }
    budget_.spend(std::ssize(order));
    bool expired = false;
    for (std::size_t k = 0; k < order.size(); ++k) {
      const BufferIndex i = order[k];
      if (problem_.buffers[i].fixed != kUnplaced || !is_active(i)) continue;
      // The first layout ignores the deadline: the remaining buffers would be stacked up.
      if (k % kPollEvery == 0 && !expired) {
        expired = has_best() ? budget_.is_late() : budget_.cancelled();
      }
      put(i, expired ? layout.height : placement.first_fit(spans(i), size(i)));
    }
    return layout;
  }

  // Tries all layouts in which every free buffer lies on the ground or on another one, in the order
  // of their offsets. One of them is optimal.
  void search() {
    for (std::size_t i = 0; i < problem_.buffers.size(); ++i) {
      if (is_active(static_cast<BufferIndex>(i))) active_.push_back(static_cast<BufferIndex>(i));
    }
    if (active_.size() > kSearchable) return;
    top_.assign(problem_.buffers.size(), kUnplaced);
    neighbours_.resize(problem_.buffers.size());
    for (const BufferIndex i : active_) {
      std::ranges::copy_if(active_, std::back_inserter(neighbours_[i]),
                           [&](BufferIndex j) { return i != j && meet(i, j); });
    }
    Bytes alone = 0;
    for (std::size_t i = 0; i < problem_.buffers.size(); ++i) {
      const Offset fixed = std::max<Offset>(problem_.buffers[i].fixed, 0);
      alone = std::max(alone, fixed + size(static_cast<BufferIndex>(i)));
    }
    descend(active_.size(), 0, alone);
    if (nodes_ < kSearchNodes) best_.bound = std::max(best_.bound, best_.layout.height);
  }

  void descend(std::size_t left, Offset last, Bytes height) {
    if (height >= best_.layout.height || nodes_ >= kSearchNodes) return;
    constexpr std::int64_t kPollEvery = 4096;
    if (++nodes_ % kPollEvery == 0) {
      budget_.spend(kPollEvery);
      if (budget_.expired()) nodes_ = kSearchNodes;
    }
    if (left == 0) {
      best_.layout.height = height;
      for (const BufferIndex i : active_) best_.layout.offsets[i] = top_[i] - size(i);
      return;
    }
    std::vector<std::pair<Offset, BufferIndex>> next;
    for (const BufferIndex i : active_) {
      if (top_[i] != kUnplaced) continue;
      Offset offset = 0;
      for (const BufferIndex j : neighbours_[i]) offset = std::max(offset, top_[j]);
      const Offset fixed = problem_.buffers[i].fixed;
      if (fixed != kUnplaced && offset > fixed) return;  // a placed buffer is in the way
      if (fixed != kUnplaced) offset = fixed;
      if (offset + size(i) >= best_.layout.height && fixed == kUnplaced)
        return;  // the height only rises
      if (offset >= last) next.emplace_back(offset, i);
    }
    std::ranges::sort(next);
    for (const auto& [offset, i] : next) {
      top_[i] = offset + size(i);
      descend(left - 1, offset, std::max(height, top_[i]));
      top_[i] = kUnplaced;
    }
  }

  bool meet(BufferIndex i, BufferIndex j) const {
    const auto overlap = [](Moment a, Moment b, Moment c, Moment d) { return a < d && c < b; };
    for (const Span& a : spans(i)) {
      for (const Span& b : spans(j)) {
        if (a.empty() || b.empty()) continue;
        if (overlap(a.begin, a.end, b.begin, b.end) || overlap(0, a.wrap, b.begin, b.end) ||
            overlap(a.begin, a.end, 0, b.wrap) || (a.wrap > 0 && b.wrap > 0)) {
          return true;
        }
      }
    }
    return false;
  }

  const Problem& problem_;
  const Budget& budget_;
  ActiveParts parts_;
  Timeline timeline_;
  Minimum best_;
  std::vector<BufferIndex> active_;
  std::vector<std::vector<BufferIndex>> neighbours_;
  std::vector<Offset> top_;
  std::int64_t nodes_ = 0;
};

}  // namespace

Minimum plan_gaps(const Problem& problem, const std::vector<Offset>& warm, const Budget& budget) {
  return Gapped(problem, budget).run(warm);
}

}  // namespace stalloc::solve
