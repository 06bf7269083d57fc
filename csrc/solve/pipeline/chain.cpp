#include "solve/pipeline/chain.h"

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <tuple>
#include <utility>
#include <vector>

#include "base/align.h"
#include "solve/core/order.h"
#include "solve/greedy/greedy.h"

namespace stalloc::solve {
namespace {

constexpr Moment kNever = std::numeric_limits<Moment>::max();

// Buffers that live at the same tight moments.
struct Twins {
  int step = 0;  // the first tight moment they live at
  Moment born = 0;
  Moment dies = 0;
  std::vector<BufferIndex> members = {};  // largest first
};

// Twins that lie at adjacent addresses.
struct Block {
  Offset begin = 0;
  Offset end = 0;
  Moment born = 0;
  Moment dies = 0;
};

struct Hole {
  Offset begin = 0;
  Offset end = 0;
  Moment below = kNever;  // when the neighbour below dies; never, at the bottom
  Moment above = kNever;
};

struct Candidate {
  Offset offset = kUnplaced;
  std::size_t hole = 0;
};

// Lower is better; earlier members weigh more.
using Score = std::tuple<Bytes, Bytes, Offset>;

class Chain {
 public:
  Chain(const Problem& problem, const Timeline& timeline)
      : problem_(problem), offsets_(problem.buffers.size(), kUnplaced) {
    const std::vector<Bytes> load = timeline.load(problem);
    if (load.empty()) return;
    height_ = *std::max_element(load.begin(), load.end());
    std::vector<int> before(load.size() + 1, 0);  // how many tight moments there are
    for (std::size_t m = 0; m < load.size(); ++m) before[m + 1] = before[m] + (load[m] == height_);
    Problem tight{.period = problem.period, .alignment = problem.alignment};
    std::vector<BufferIndex> original;
    std::vector<int> step;
    for (std::size_t i = 0; i < problem.buffers.size(); ++i) {
      const Span& span = timeline.span(i);
      if (problem.buffers[i].size == 0 || before[span.end] == before[span.begin]) continue;
      tight.buffers.push_back(problem.buffers[i]);
      original.push_back(static_cast<BufferIndex>(i));
      step.push_back(before[span.begin]);
    }
    const Timeline moments(tight);
    last_moment_ = moments.moments();
    group(moments, original, step);
  }

  // Returns false if a buffer of a tight moment found no place.
  bool run() {
    for (std::size_t begin = 0; begin < twins_.size();) {
      std::size_t end = begin;
      Moment earliest = kNever;
      for (; end < twins_.size() && twins_[end].step == twins_[begin].step; ++end) {
        earliest = std::min(earliest, twins_[end].born);
      }
      std::erase_if(blocks_, [&](const Block& b) { return b.dies <= earliest; });
      if (begin == 0) {
        stack(end);
      } else {
        for (std::size_t k = begin; k < end; ++k) {
          const bool is_last = k + 1 == end;
          if (!place(twins_[k], is_last ? twins_[k].born : twins_[k + 1].born, is_last)) {
            return false;
          }
        }
      }
      begin = end;
    }
    return true;
  }

  const std::vector<Offset>& offsets() const { return offsets_; }

 private:
  Bytes size(BufferIndex i) const { return align_up(problem_.buffers[i].size, problem_.alignment); }

  // Groups buffers into twins, in the order of placement. Buffers that live throughout lie at the
  // bottom.
  void group(const Timeline& moments, const std::vector<BufferIndex>& original,
             const std::vector<int>& step) {
    std::vector<std::size_t> order;
    for (std::size_t k = 0; k < original.size(); ++k) {
      const Span& span = moments.span(k);
      if (span.begin == 0 && span.end == last_moment_) {
        offsets_[original[k]] = bottom_;
        bottom_ += size(original[k]);
      } else {
        order.push_back(k);
      }
    }
    const auto key = [&](std::size_t k) {
      const Span& span = moments.span(k);
      return std::tuple{step[k], -span.begin, span.end, -size(original[k]), k};
    };
    std::ranges::sort(order, {}, key);
    for (const std::size_t k : order) {
      const Span& span = moments.span(k);
      if (twins_.empty() || twins_.back().step != step[k] || twins_.back().born != span.begin ||
          twins_.back().dies != span.end) {
        twins_.push_back({.step = step[k], .born = span.begin, .dies = span.end});
      }
      twins_.back().members.push_back(original[k]);
    }
  }

  // Packs the first tight moment: those that die first, in two halves, around all others.
  void stack(std::size_t end) {
    Bytes half = 0;
    for (const BufferIndex i : twins_[0].members) half += size(i);
    half /= 2;
    Offset low = bottom_;
    Offset high = height_;
    for (const BufferIndex i : twins_[0].members) {
      if (half > 0) {
        put(i, low, twins_[0]);
        low += size(i);
        half -= size(i);
      } else {
        high -= size(i);
        put(i, high, twins_[0]);
      }
    }
    for (std::size_t k = 1; k < end; ++k) {
      for (const BufferIndex i : twins_[k].members) {
        put(i, low, twins_[k]);
        low += size(i);
      }
    }
  }

  bool place(const Twins& twins, Moment next_born, bool is_last) {
    std::vector<Hole> holes = holes_through(twins.born, twins.dies);
    const std::vector<Block> late = freed_between(next_born, twins.born);
    const bool is_brief = first_born_after(twins.step) >= twins.dies;
    for (const BufferIndex i : twins.members) {
      const Candidate best = best_candidate(holes, late, size(i), twins.dies, is_brief, is_last);
      if (best.offset == kUnplaced) return false;
      put(i, best.offset, twins);
      const Hole hole = holes[best.hole];
      const Offset top = best.offset + size(i);
      auto at = holes.erase(holes.begin() + static_cast<std::ptrdiff_t>(best.hole));
      if (top < hole.end) at = holes.insert(at, {top, hole.end, twins.dies, hole.above});
      if (best.offset > hole.begin) {
        holes.insert(at, {hole.begin, best.offset, hole.below, twins.dies});
      }
    }
    return true;
  }

  Candidate best_candidate(const std::vector<Hole>& holes, const std::vector<Block>& late,
                           Bytes size, Moment dies, bool is_brief, bool is_last) const {
    Candidate best;
    Score lowest;
    for (std::size_t h = 0; h < holes.size(); ++h) {
      const Hole& hole = holes[h];
      if (hole.end - hole.begin < size) continue;
      const auto consider = [&](Offset offset, Moment neighbour) {
        if (offset < hole.begin || offset + size > hole.end) return;
        Bytes covered = 0;
        for (const Block& b : late) {
          covered += std::max<Bytes>(0, std::min(b.end, offset + size) - std::max(b.begin, offset));
        }
        const Bytes apart = neighbour == kNever ? kNever : std::abs(neighbour - dies);
        const Score score = is_last    ? Score{-covered, hole.end - hole.begin, apart}
                            : is_brief ? Score{-covered, offset, 0}
                                       : Score{-covered, apart, offset};
        if (best.offset != kUnplaced && score >= lowest) return;
        best = {offset, h};
        lowest = score;
      };
      consider(hole.begin, hole.below);
      consider(hole.end - size, hole.above);
      for (const Block& b : late) {
        consider(b.begin, kNever);
        consider(b.end - size, kNever);
      }
    }
    return best;
  }

  std::vector<Hole> holes_through(Moment born, Moment dies) const {
    std::vector<Hole> holes;
    Offset reached = bottom_;
    Moment below = kNever;
    for (const Block& b : blocks_) {
      if (b.dies <= born || b.born >= dies) continue;
      if (b.begin > reached) holes.push_back({reached, b.begin, below, b.dies});
      if (b.end < reached) continue;
      reached = b.end;
      below = b.dies;
    }
    if (reached < height_) holes.push_back({reached, height_, below, kNever});
    return holes;
  }

  // Merges holes that only buffers born at `born` can use, and not those that are placed after
  // them.
  std::vector<Block> freed_between(Moment next_born, Moment born) const {
    std::vector<Block> freed;
    for (const Block& b : blocks_) {
      if (b.dies > born || b.dies <= next_born) continue;
      if (!freed.empty() && freed.back().end == b.begin) {
        freed.back().end = b.end;
      } else {
        freed.push_back(b);
      }
    }
    return freed;
  }

  // The moment at which the next step's first buffer is born.
  Moment first_born_after(int step) const {
    const auto next = std::ranges::upper_bound(twins_, step, {}, &Twins::step);
    if (next == twins_.end()) return kNever;
    Moment earliest = kNever;
    for (auto it = next; it != twins_.end() && it->step == next->step; ++it) {
      earliest = std::min(earliest, it->born);
    }
    return earliest;
  }

  void put(BufferIndex i, Offset offset, const Twins& twins) {
    offsets_[i] = offset;
    const Block block{offset, offset + size(i), twins.born, twins.dies};
    const auto same = [&](const Block& b) { return b.born == block.born && b.dies == block.dies; };
    auto above = std::ranges::lower_bound(blocks_, offset, {}, &Block::begin);
    if (above != blocks_.begin()) {
      const auto below = std::prev(above);
      if (below->end == block.begin && same(*below)) {
        below->end = block.end;
        if (above != blocks_.end() && above->begin == below->end && same(*above)) {
          below->end = above->end;
          blocks_.erase(above);
        }
        return;
      }
    }
    if (above != blocks_.end() && above->begin == block.end && same(*above)) {
      above->begin = block.begin;
    } else {
      blocks_.insert(above, block);
    }
  }

  const Problem& problem_;
  std::vector<Offset> offsets_;
  std::vector<Twins> twins_;
  std::vector<Block> blocks_;  // those that may still be in the way, by offset
  Bytes height_ = 0;
  Offset bottom_ = 0;  // the top of the buffers that live throughout
  Moment last_moment_ = 0;
};

bool suits(const Problem& problem, const Timeline& timeline) {
  for (std::size_t i = 0; i < problem.buffers.size(); ++i) {
    if (problem.buffers[i].fixed != kUnplaced || timeline.span(i).wrap > 0) return false;
  }
  return true;
}

}  // namespace

std::optional<Layout> plan_chain(const Problem& problem, const Timeline& timeline,
                                 const Budget& budget, const std::atomic<Bytes>* limit) {
  if (!suits(problem, timeline)) return std::nullopt;
  Chain chain(problem, timeline);
  if (!chain.run()) return std::nullopt;
  Problem rest = problem;
  for (std::size_t i = 0; i < rest.buffers.size(); ++i) rest.buffers[i].fixed = chain.offsets()[i];
  return place_in_order(rest, timeline, ordered(problem, timeline, Order::kPeakRankStart),
                        Fit::kFirst, budget, limit);
}

Layout ChainPlanner::plan(const Problem& problem, const Budget& budget) const {
  const Timeline timeline(problem);
  if (std::optional<Layout> layout = plan_chain(problem, timeline, budget)) return *layout;
  return *place_in_order(problem, timeline, ordered(problem, timeline, Order::kPeakRankStart),
                         Fit::kFirst, budget);
}

}  // namespace stalloc::solve
