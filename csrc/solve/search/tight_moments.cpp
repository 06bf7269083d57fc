#include "solve/search/tight_moments.h"

#include <algorithm>
#include <random>
#include <utility>

#include "base/align.h"
#include "solve/core/bound.h"
#include "solve/core/order.h"
#include "solve/core/placement.h"
#include "solve/core/range_minimum.h"
#include "solve/greedy/place_in_order.h"

namespace stalloc::solve {
namespace {

constexpr std::size_t kFailures = 20;    // end a round that cannot be the best
constexpr std::size_t kPollEvery = 256;  // buffers between two looks at the clock
constexpr Moment kLongPart = 200;        // a buffer is long from this part of the time on
constexpr std::int64_t kRoundPart = 8;  // sorting costs as much as placing this part of the buffers
constexpr std::int64_t kMostRounds = 50;  // of placing all buffers; few searches gain later
constexpr std::int64_t kIdleRounds = 8;   // of these without a gain end a search that lags behind
constexpr std::int64_t kPlacementsAlone = 1'200'000;

class TightMoments {
 public:
  TightMoments(const Problem& problem, const Timeline& timeline, const TightStart& start,
               Bytes incumbent, const Budget& budget)
      : problem_(problem),
        timeline_(timeline),
        start_(start),
        incumbent_(incumbent),
        budget_(budget),
        load_(timeline.load(problem)),
        buffer_slack_(problem.buffers.size()),
        failures_(problem.buffers.size(), 0) {
    for (const Bytes load : load_) highest_ = std::max(highest_, load);
    begin();
  }

  void run(std::int64_t placements) {
    const std::int64_t bookkeeping = std::ssize(order_) / kRoundPart;
    placements = std::min(placements, kMostRounds * std::ssize(order_));
    std::int64_t idle = 0;  // placements since the last gain
    for (;;) {
      const Bytes before = best_.height;
      if (!place_all()) return;  // out of time
      const std::int64_t cost = placed_ + bookkeeping + 1;
      placements -= cost;
      budget_.spend(cost);
      if ((has_best() && best_.height <= budget_.target) || failed_.empty()) return;
      if (placements <= 0 || budget_.expired()) return;
      idle = best_.height == before ? idle + cost : 0;
      const bool leads = has_best() && best_.height < incumbent_;
      if (!leads && idle > kIdleRounds * std::ssize(order_)) return;
      tighten();
    }
  }

  Layout& best() { return best_; }

 private:
  const Span& span(BufferIndex i) const { return timeline_.span(i); }
  Bytes size(BufferIndex i) const { return align_up(problem_.buffers[i].size, problem_.alignment); }

  bool is_placed_by_order(BufferIndex i) const {
    return problem_.buffers[i].fixed == kUnplaced && size(i) > 0 && !span(i).empty();
  }

  bool is_long(BufferIndex i) const {
    return span(i).end - span(i).begin + span(i).wrap >= timeline_.moments() / kLongPart;
  }

  void begin() {
    slack_.resize(load_.size());
    const auto peak = static_cast<Moment>(std::ranges::max_element(load_) - load_.begin());
    const Moment all = timeline_.moments();
    for (Moment m = 0; m < all; ++m) {
      Moment distance = m > peak ? m - peak : peak - m;
      if (problem_.period > 0) distance = std::min(distance, all - distance);
      slack_[m] = start_.by == TightStart::By::kLoad
                      ? 1 - static_cast<double>(load_[m]) / static_cast<double>(highest_)
                      : static_cast<double>(distance) / all;
    }
    for (BufferIndex i = 0; i < std::ssize(problem_.buffers); ++i) {
      if (is_placed_by_order(i)) order_.push_back(i);
    }
    const RangeMinimum<double> least(slack_);
    for (const BufferIndex i : order_) buffer_slack_[i] = least(span(i));
    std::ranges::sort(order_, [&](BufferIndex a, BufferIndex b) { return comes_before(a, b); });
  }

  template <typename Visit>
  static void for_each_moment(const Span& span, Visit visit) {
    for (Moment m = span.begin; m < span.end; ++m) visit(m);
    for (Moment m = 0; m < span.wrap; ++m) visit(m);
  }

  // Among equals, the buffer that is freed last comes first: the layout grows away from the
  // tightest moments.
  bool comes_before(BufferIndex a, BufferIndex b) const {
    if (start_.is_long_first && is_long(a) != is_long(b)) return is_long(a);
    if (buffer_slack_[a] != buffer_slack_[b]) return buffer_slack_[a] < buffer_slack_[b];
    if (failures_[a] != failures_[b]) return failures_[a] > failures_[b];
    const Tick end_a = problem_.buffers[a].upper;
    const Tick end_b = problem_.buffers[b].upper;
    return end_a != end_b ? end_a > end_b : a < b;
  }

  // Returns false if the time is over before all buffers are placed.
  bool place_all() {
    Placement placement(timeline_.moments());
    Layout layout;
    layout.offsets.assign(problem_.buffers.size(), 0);
    const auto put = [&](BufferIndex i, Offset offset) {
      layout.offsets[i] = offset;
      layout.height = std::max(layout.height, offset + size(i));
      if (size(i) > 0 && !span(i).empty()) placement.place(span(i), offset, size(i));
    };
    for (BufferIndex i = 0; i < std::ssize(problem_.buffers); ++i) {
      const Offset fixed = problem_.buffers[i].fixed;
      if (fixed != kUnplaced) put(i, fixed);
      layout.height = std::max(layout.height, size(i));
    }
    failed_.clear();
    placed_ = 0;
    for (const BufferIndex i : order_) {
      if (placed_ % kPollEvery == 0 && budget_.is_late()) return false;
      put(i, placement.first_fit(span(i), size(i)));
      ++placed_;
      if (layout.offsets[i] + size(i) > budget_.target) failed_.push_back(i);
      if (failed_.size() >= kFailures && layout.height >= height_to_beat()) return true;
    }
    if (!has_best() || layout.height < best_.height) best_ = std::move(layout);
    return true;
  }

  bool has_best() const { return !best_.offsets.empty(); }
  Bytes height_to_beat() const {
    return has_best() ? std::min(best_.height, incumbent_) : incumbent_;
  }

  void tighten() {
    std::vector<Moment> tightened;
    for (const BufferIndex i : failed_) tightened.push_back(busiest(span(i)));
    std::ranges::sort(tightened);
    tightened.erase(std::ranges::unique(tightened).begin(), tightened.end());
    for (const Moment m : tightened) slack_[m] -= start_.step * (0.5 + random_share());
    std::vector<char> moves(problem_.buffers.size(), false);
    if (start_.is_failed_first) {
      for (const BufferIndex i : failed_) {
        ++failures_[i];
        moves[i] = true;
      }
    }
    for (const BufferIndex i : order_) {
      double least = buffer_slack_[i];
      const auto visit = [&](Moment begin, Moment end) {
        for (auto m = std::ranges::lower_bound(tightened, begin); m != tightened.end() && *m < end;
             ++m) {
          least = std::min(least, slack_[*m]);
        }
      };
      visit(span(i).begin, span(i).end);
      visit(0, span(i).wrap);
      if (least < buffer_slack_[i]) moves[i] = true;
      buffer_slack_[i] = least;
    }
    const auto before = [&](BufferIndex a, BufferIndex b) { return comes_before(a, b); };
    const auto moved =
        std::ranges::stable_partition(order_, [&](BufferIndex i) { return moves[i] == 0; });
    std::ranges::sort(moved, before);
    std::ranges::inplace_merge(order_, moved.begin(), before);
  }

  Moment busiest(const Span& span) const {
    Moment best = span.begin;
    for_each_moment(span, [&](Moment m) {
      if (load_[m] > load_[best]) best = m;
    });
    return best;
  }

  double random_share() { return static_cast<double>(random_() >> 11) * 0x1p-53; }  // below 1

  const Problem& problem_;
  const Timeline& timeline_;
  const TightStart start_;
  const Bytes incumbent_;
  const Budget& budget_;
  std::vector<Bytes> load_;  // by moment
  Bytes highest_ = 0;
  std::vector<double> slack_;         // by moment
  std::vector<double> buffer_slack_;  // the least in the buffer's lifetime
  std::vector<int> failures_;         // of each buffer, if they count
  std::vector<BufferIndex> order_;
  std::vector<BufferIndex> failed_;  // in the last round
  std::int64_t placed_ = 0;          // in the last round
  Layout best_;
  std::mt19937_64 random_{1};
};

}  // namespace

const std::vector<TightStart>& tight_starts() {
  using enum TightStart::By;
  static const std::vector<TightStart> all = {
      {"tight-long-first", kDistance, 0.005, true, true},
      {"tight-distance", kDistance, 0.05, false, false},
      {"tight-load", kLoad, 0.02, false, false},
  };
  return all;
}

std::optional<Layout> plan_tight_moments(const Problem& problem, const Timeline& timeline,
                                         const TightStart& start, Bytes incumbent,
                                         std::int64_t placements, const Budget& budget,
                                         const std::atomic<Bytes>* limit) {
  if (timeline.moments() == 0) return std::nullopt;
  Budget aimed = budget;
  aimed.target = std::max(budget.target, load_bound(problem));
  TightMoments search(problem, timeline, start, incumbent, aimed);
  search.run(placements);
  Layout& best = search.best();
  if (best.offsets.empty()) return std::nullopt;
  if (limit && best.height >= limit->load(std::memory_order_relaxed)) return std::nullopt;
  return std::move(best);
}

Layout TightMomentsPlanner::plan(const Problem& problem, const Budget& budget) const {
  const Timeline timeline(problem);
  Layout best = *place_in_order(problem, timeline, ordered(problem, timeline, Order::kPeakRankSize),
                                Fit::kFirst, budget);
  const Bytes target = std::max(budget.target, load_bound(problem));
  for (const TightStart& start : tight_starts()) {
    if (best.height <= target || budget.expired()) break;
    std::optional<Layout> layout =
        plan_tight_moments(problem, timeline, start, best.height, kPlacementsAlone, budget);
    if (layout && layout->height < best.height) best = std::move(*layout);
  }
  return best;
}

}  // namespace stalloc::solve
