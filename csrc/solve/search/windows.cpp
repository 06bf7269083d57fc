#include "solve/search/windows.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <random>
#include <utility>
#include <vector>

#include "base/align.h"
#include "base/range.h"
#include "solve/core/order.h"
#include "solve/core/timeline.h"
#include "solve/greedy/greedy.h"

namespace stalloc::solve {
namespace {

constexpr std::size_t kMostInWindow = 24;
constexpr int kTries = 8;             // of filling a window again
constexpr std::int64_t kRound = 400;  // steps, after which the search goes back to the best
constexpr Bytes kFirstAmbition = 16;  // the part of what is above the target that shall go
constexpr Bytes kHighest = std::numeric_limits<Bytes>::max() / 64;  // a window on top of it fits
constexpr std::int64_t kAloneSteps = 20'000;

struct Item {
  Span span;
  Bytes size = 0;
  BufferIndex buffer = kNone;
  bool is_fixed = false;
};

using Window = std::vector<int>;  // indices of items

// Where the members of a window go. Excess adds up to more than Bytes can hold.
struct Filling {
  std::vector<Offset> offsets;
  double excess = std::numeric_limits<double>::max();
};

bool meet(const Span& a, const Span& b) {
  if (a.begin < b.end && b.begin < a.end) return true;
  return a.wrap > b.begin || b.wrap > a.begin || (a.wrap > 0 && b.wrap > 0);
}

class Search {
 public:
  Search(const Problem& problem, const Layout& start, const Budget& budget)
      : problem_(problem), budget_(budget), best_(start) {
    const Timeline timeline(problem);
    for (BufferIndex i = 0; i < std::ssize(problem.buffers); ++i) {
      const Buffer& b = problem.buffers[i];
      const Bytes size = align_up(b.size, problem.alignment);
      if (size == 0 || timeline.span(i).empty()) continue;
      items_.push_back({timeline.span(i), size, i, b.fixed != kUnplaced});
      offsets_.push_back(start.offsets[i]);
    }
    best_offsets_ = offsets_;
  }

  Layout run(std::int64_t steps) {
    if (best_.height > kHighest) return std::move(best_);
    Bytes part = kFirstAmbition;
    while (steps > 0 && best_.height > budget_.target && !budget_.expired()) {
      const Bytes above = best_.height - budget_.target;
      const Bytes ambition = std::max({above / part, problem_.alignment, Bytes{1}});
      ceiling_ = std::max(budget_.target, best_.height - ambition);
      tolerance_ = static_cast<double>(ambition) / 4;
      const std::int64_t round = std::min(steps, kRound);
      steps -= round;
      if (descend(round)) {
        keep();
        part = std::max<Bytes>(part / 2, 1);
      } else {
        offsets_ = best_offsets_;
        part = std::min<Bytes>(part * 2, 1024);
      }
    }
    return std::move(best_);
  }

 private:
  std::int64_t chance(std::int64_t of) {  // below `of`
    return static_cast<std::int64_t>(random_() % static_cast<std::uint64_t>(of));
  }
  double share() { return static_cast<double>(random_() >> 11) * 0x1p-53; }  // below 1

  Offset top(int item) const { return offsets_[item] + items_[item].size; }
  double excess(Offset offset, Bytes size) const {
    return offset + size > ceiling_ ? static_cast<double>(offset + size - ceiling_) : 0.0;
  }

  void keep() {
    best_offsets_ = offsets_;
    best_.height = 0;
    for (std::size_t k = 0; k < items_.size(); ++k) {
      best_.offsets[items_[k].buffer] = offsets_[k];
      best_.height = std::max(best_.height, top(static_cast<int>(k)));
    }
    // What is never live counts for the height, too.
    for (std::size_t i = 0; i < problem_.buffers.size(); ++i) {
      const Bytes size = align_up(problem_.buffers[i].size, problem_.alignment);
      best_.height = std::max(best_.height, best_.offsets[i] + size);
    }
  }

  // Whether nothing is above the ceiling any more.
  bool descend(std::int64_t steps) {
    find_too_high();
    for (; steps > 0 && !too_high_.empty() && !budget_.expired(); --steps) {
      const Window window = pick(too_high_[chance(std::ssize(too_high_))]);
      if (window.size() <= 1) continue;
      double before = 0;
      for (const int k : window) before += excess(offsets_[k], items_[k].size);
      const std::vector<std::vector<Range>> taken = taken_around(window);
      Filling best;
      for (int t = 0; t < kTries && best.excess > 0; ++t) {
        std::optional<Filling> filling = fill(window, taken, best.excess);
        if (filling) best = *std::move(filling);
      }
      if (best.offsets.empty() || best.excess > before + tolerance_ * share()) continue;
      for (std::size_t k = 0; k < window.size(); ++k) offsets_[window[k]] = best.offsets[k];
      find_too_high();
    }
    return too_high_.empty();
  }

  void find_too_high() {
    too_high_.clear();
    for (int k = 0; k < std::ssize(items_); ++k) {
      if (top(k) > ceiling_ && !items_[k].is_fixed) too_high_.push_back(k);
    }
  }

  // The one that is too high, what lies in a band where it might go, and some of what is about
  // one of these. Only itself where that is too much, or cannot be moved.
  Window pick(int high) {
    const Bytes size = items_[high].size;
    Window window{high};
    if (size > ceiling_) return window;
    Window meeting;
    for (int k = 0; k < std::ssize(items_); ++k) {
      if (k != high && meet(items_[k].span, items_[high].span)) meeting.push_back(k);
    }
    const bool is_at_one = !meeting.empty() && chance(2) == 0;
    const Offset begin =
        is_at_one
            ? std::clamp<Offset>(offsets_[meeting[chance(std::ssize(meeting))]], 0, ceiling_ - size)
            : chance(ceiling_ - size + 1);
    const auto height = static_cast<Bytes>(static_cast<double>(size) * (1 + 2 * share()));
    for (const int k : meeting) {
      if (offsets_[k] >= begin + height || top(k) <= begin) continue;
      if (items_[k].is_fixed || window.size() == kMostInWindow) return {high};
      window.push_back(k);
    }
    add_about(window, static_cast<std::size_t>(chance(kMostInWindow - window.size() + 1)));
    return window;
  }

  void add_about(Window& window, std::size_t more) {
    if (more == 0) return;
    const int centre = window[chance(std::ssize(window))];
    const Bytes reach = 3 * items_[centre].size;
    Window about;
    for (int k = 0; k < std::ssize(items_); ++k) {
      const bool is_near = offsets_[k] < top(centre) + reach && top(k) > offsets_[centre] - reach;
      if (is_near && !items_[k].is_fixed && meet(items_[k].span, items_[centre].span) &&
          std::ranges::find(window, k) == window.end()) {
        about.push_back(k);
      }
    }
    for (; more > 0 && !about.empty(); --more) {
      std::swap(about[chance(std::ssize(about))], about.back());
      window.push_back(about.back());
      about.pop_back();
    }
  }

  // For each member what everything else takes through its lifetime: ascending, disjoint.
  std::vector<std::vector<Range>> taken_around(const Window& window) {
    std::vector<std::vector<Range>> taken(window.size());
    is_out_.resize(items_.size(), false);
    for (const int k : window) is_out_[k] = true;
    for (std::size_t k = 0; k < items_.size(); ++k) {
      if (is_out_[k]) continue;
      for (std::size_t w = 0; w < window.size(); ++w) {
        if (!meet(items_[k].span, items_[window[w]].span)) continue;
        taken[w].push_back({offsets_[k], offsets_[k] + items_[k].size});
      }
    }
    for (const int k : window) is_out_[k] = false;
    for (std::vector<Range>& ranges : taken) merge(ranges);
    return taken;
  }

  static void merge(std::vector<Range>& ranges) {
    std::ranges::sort(ranges, {}, &Range::begin);
    std::size_t merged = 0;
    for (const Range& range : ranges) {
      if (merged > 0 && range.begin <= ranges[merged - 1].end) {
        ranges[merged - 1].end = std::max(ranges[merged - 1].end, range.end);
      } else {
        ranges[merged++] = range;
      }
    }
    ranges.resize(merged);
  }

  // In an order by size, lifetime, both or neither, each blurred by chance. Nothing when it is no
  // better than `limit`.
  std::optional<Filling> fill(const Window& window, const std::vector<std::vector<Range>>& taken,
                              double limit) {
    const std::int64_t kind = chance(4);
    std::vector<std::pair<double, std::size_t>> order;
    for (std::size_t w = 0; w < window.size(); ++w) {
      const auto& [span, size, buffer, is_fixed] = items_[window[w]];
      const double blur = 0.5 + share();
      const double by_size = kind == 0 || kind == 2 ? static_cast<double>(size) : 1.0;
      const double by_life = kind == 1 || kind == 2 ? span.end - span.begin + span.wrap : 1.0;
      order.emplace_back(-by_size * by_life * blur, w);
    }
    std::ranges::sort(order);
    const Fit fit = chance(3) == 0 ? Fit::kBest : Fit::kFirst;
    Filling filling{.offsets = std::vector<Offset>(window.size(), kUnplaced), .excess = 0};
    for (const auto& [key, w] : order) {
      const Item& item = items_[window[w]];
      std::vector<Range> ranges = taken[w];
      for (std::size_t v = 0; v < window.size(); ++v) {
        const Offset offset = filling.offsets[v];
        const Item& other = items_[window[v]];
        if (offset == kUnplaced || !meet(item.span, other.span)) continue;
        ranges.push_back({offset, offset + other.size});
      }
      std::ranges::sort(ranges, {}, &Range::begin);
      filling.offsets[w] = place(ranges, item.size, fit);
      filling.excess += excess(filling.offsets[w], item.size);
      if (filling.excess >= limit) return std::nullopt;
    }
    return filling;
  }

  // The lowest hole, or the smallest one below the ceiling if there is any.
  Offset place(const std::vector<Range>& taken, Bytes size, Fit fit) const {
    Offset best = kUnplaced;
    Bytes smallest = std::numeric_limits<Bytes>::max();
    Offset reached = 0;
    for (const Range& range : taken) {
      const Bytes hole = range.begin - reached;
      if (hole >= size && hole < smallest) {
        best = reached;
        smallest = hole;
        if (fit == Fit::kFirst || reached + size > ceiling_) return best;
      }
      reached = std::max(reached, range.end);
    }
    return best == kUnplaced ? reached : best;
  }

  const Problem& problem_;
  const Budget& budget_;
  Layout best_;
  std::vector<Item> items_;  // what has a size and a lifetime
  std::vector<Offset> offsets_;
  std::vector<Offset> best_offsets_;
  std::vector<int> too_high_;
  std::vector<char> is_out_;  // all false but while a window is emptied
  Bytes ceiling_ = 0;
  double tolerance_ = 0;
  std::mt19937_64 random_{1};
};

}  // namespace

Minimum search_windows(const Problem& problem, const Layout& start, std::int64_t steps,
                       const Budget& budget) {
  return {Search(problem, start, budget).run(steps), 0};
}

Layout WindowsPlanner::plan(const Problem& problem, const Budget& budget) const {
  const Timeline timeline(problem);
  const Layout start = *place_in_order(
      problem, timeline, ordered(problem, timeline, Order::kPeakRankSize), Fit::kFirst, budget);
  return search_windows(problem, start, kAloneSteps, budget).layout;
}

}  // namespace stalloc::solve
