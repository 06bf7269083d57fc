#include "solve/pipeline/walk.h"

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "base/align.h"
#include "base/range_set.h"
#include "solve/core/order.h"
#include "solve/core/placement.h"
#include "solve/greedy/repair.h"
#include "solve/pipeline/borders.h"
#include "solve/pipeline/fill_ranges.h"
#include "solve/pipeline/peaks.h"

namespace stalloc::solve {
namespace {

constexpr int kRepairs = 4;  // rounds, for the buffers outside chunks

// The buffers that are saved between two peaks and freed between two others.
struct Chunk {
  int begin = -1;  // the peak after which it is saved; -1: before the first
  int end = -1;    // the peak that frees it
  std::vector<BufferIndex> buffers = {};
  Bytes bytes = 0;
  int slot = kNone;
};

// The addresses of a peak.
struct Way {
  Range hole = {};
  Range freed = {};  // next to the hole
  Range given = {};  // given to the peak's slot: the hole so far
  Range taken = {};  // taken from the slot for the next hole; none at the last peak
};

class Walk {
 public:
  Walk(const Problem& problem, const Timeline& timeline)
      : problem_(problem), timeline_(timeline), offsets_(problem.buffers.size(), kUnplaced) {}

  // Returns false if there is no walk, or if it fails.
  bool find() {
    const std::vector<Bytes> load = timeline_.load(problem_);
    if (load.empty()) return false;
    height_ = *std::ranges::max_element(load);
    small_ = height_ / kSmallPart;
    Peaks found = find_peaks(problem_, timeline_, load);
    peaks_ = std::move(found.peaks);
    cell_ = found.freed;
    hole_ = found.besides;
    if (peaks_.empty() || std::ssize(peaks_) >= height_ / cell_) return false;
    find_chunks();
    return assign_slots();
  }

  // Each of these two comes after find() and returns false if the cells do not suffice.
  bool go_straight() {
    ways_.clear();
    std::vector<std::vector<Range>> slots(rest_sizes_.size());
    for (std::size_t t = 0; t < peaks_.size(); ++t) {
      const Offset begin = static_cast<Offset>(t) * cell_;
      const Range cell{begin + hole_, begin + hole_ + cell_};
      ways_.push_back({.hole = {begin, begin + hole_},
                       .freed = cell,
                       .given = {begin, begin + cell_},
                       .taken = cell});
      slots[slot_of_peak_[t]].push_back(cell);
    }
    std::vector<Bytes> rest = rest_sizes_;
    for (const int slot : slot_of_peak_) rest[slot] -= cell_;
    return place(std::move(slots), rest, ways_.back().freed.end);
  }

  bool go_back_and_forth() {
    if (hole_ != cell_) return false;
    const Crossings crossings = find_crossings(slot_of_peak_);
    std::vector<Bytes> rest = rest_sizes_;
    for (const int slot : crossings.owners) {
      if (slot >= 0 && (rest[slot] -= cell_) < 0) return false;
    }
    std::vector<std::vector<Range>> slots(rest_sizes_.size());
    std::vector<Range> cells;
    Offset top = 0;
    auto other = crossings.rests.begin();
    for (int k = 0; k <= std::ssize(crossings.owners); ++k) {
      for (; other != crossings.rests.end() && other->cell == k; ++other) {
        if (rest[other->slot] > height_ - top) return false;
        slots[other->slot].push_back({top, top + rest[other->slot]});
        top += std::exchange(rest[other->slot], 0);
      }
      if (k == std::ssize(crossings.owners)) break;
      if (cell_ > height_ - top) return false;
      cells.push_back({top, top + cell_});
      top += cell_;
      if (crossings.owners[k] >= 0) slots[crossings.owners[k]].push_back(cells.back());
    }
    ways_.clear();
    for (const Crossings::Step& step : crossings.steps) {
      if (!ways_.empty()) ways_.back().taken = cells[step.hole];
      ways_.push_back({cells[step.hole], cells[step.freed], cells[step.hole], {}});
    }
    return !ways_.empty() && place(std::move(slots), rest, top);
  }

  const std::vector<Offset>& offsets() const { return offsets_; }

 private:
  Bytes size(BufferIndex i) const { return align_up(problem_.buffers[i].size, problem_.alignment); }
  const Span& span(BufferIndex i) const { return timeline_.span(i); }

  bool is_large(BufferIndex i) const {
    return size(i) > 0 && size(i) >= small_ && !span(i).empty() && span(i).wrap == 0;
  }

  // Returns false if another buffer lies there already, or if the buffer lies elsewhere.
  bool put(BufferIndex i, Offset offset) {
    if (offsets_[i] != kUnplaced) return false;
    if (placement_->first_fit(span(i), size(i), offset) != offset) return false;
    offsets_[i] = offset;
    placement_->place(span(i), offset, size(i));
    return true;
  }

  // The last peak that has begun by then; -1 before the first.
  int peak_at(Moment moment) const {
    const auto next = std::ranges::upper_bound(peaks_, moment, {},
                                               [&](const Peak& t) { return span(t.freed[0]).end; });
    return static_cast<int>(next - peaks_.begin()) - 1;
  }

  void find_chunks() {
    std::map<std::pair<int, int>, Chunk> chunks;
    for (BufferIndex i = 0; i < std::ssize(problem_.buffers); ++i) {
      if (!is_large(i)) continue;
      const int begin = peak_at(span(i).begin);
      const int end = peak_at(span(i).end);
      if (end < 0) continue;
      const bool is_temporary =
          end - begin < 2 && (begin >= 0 || span(i).begin > span(peaks_[end].freed[0]).begin);
      if (is_temporary) continue;
      Chunk& chunk = chunks[{begin, end}];
      chunk.begin = begin;
      chunk.end = end;
      chunk.buffers.push_back(i);
      chunk.bytes += size(i);
    }
    // Each peak frees one chunk. After the last peak, all may be freed.
    Bytes most = 0;
    std::vector<char> is_freed_first(problem_.buffers.size(), false);
    for (const Peak& peak : peaks_) {
      for (const BufferIndex i : peak.freed) is_freed_first[i] = true;
    }
    const auto has_peak = [&](const Chunk& chunk) {
      return std::ranges::any_of(chunk.buffers, [&](auto i) { return is_freed_first[i] != 0; });
    };
    for (const auto& [key, chunk] : chunks) {
      if (has_peak(chunk)) most = std::max(most, chunk.bytes);
    }
    for (auto& [key, chunk] : chunks) {
      const bool is_after = chunk.end + 1 == std::ssize(peaks_) && chunk.bytes > most / 2;
      if (has_peak(chunk) || is_after) chunks_.push_back(std::move(chunk));
    }
  }

  // Each chunk gets the slot of the chunk that the peak before it has freed.
  bool assign_slots() {
    std::vector<int> slot_of(peaks_.size(), kNone);
    for (Chunk& chunk : chunks_) {
      chunk.slot = chunk.begin < 0 ? kNone : slot_of[chunk.begin];
      if (chunk.slot == kNone) {
        chunk.slot = static_cast<int>(rest_sizes_.size());
        rest_sizes_.push_back(0);
      }
      rest_sizes_[chunk.slot] = std::max(rest_sizes_[chunk.slot], chunk.bytes);
      for (const BufferIndex i : chunk.buffers) {
        if (peaks_[chunk.end].freed[0] == i) slot_of[chunk.end] = chunk.slot;
      }
    }
    slot_of_peak_ = std::move(slot_of);
    return std::ranges::find(slot_of_peak_, kNone) == slot_of_peak_.end();
  }

  // Puts the walk at the bottom, and the slots' own ranges above it.
  bool place(std::vector<std::vector<Range>> slots, const std::vector<Bytes>& rest, Offset top) {
    for (std::size_t s = 0; s < slots.size(); ++s) {
      if (rest[s] < 0 || rest[s] > height_ - top) return false;
      slots[s].push_back({top, top + rest[s]});
      top += rest[s];
    }
    slots_ = std::move(slots);
    std::ranges::fill(offsets_, kUnplaced);
    placement_.emplace(timeline_.moments());
    if (!place_peaks()) return false;
    std::size_t peak = 0;
    for (const Chunk& chunk : chunks_) {
      for (; static_cast<int>(peak) <= chunk.begin; ++peak) exchange(peak);
      if (!fill(chunk)) return false;
    }
    return true;
  }

  bool place_peaks() {
    for (std::size_t t = 0; t < peaks_.size(); ++t) {
      Offset offset = ways_[t].freed.begin;
      for (const BufferIndex i : peaks_[t].freed) {
        if (!put(i, std::exchange(offset, offset + size(i)))) return false;
      }
      if (!put(peaks_[t].needed, std::min(ways_[t].hole.begin, ways_[t].freed.begin))) return false;
    }
    return true;
  }

  void exchange(std::size_t t) {
    std::vector<Range>& slot = slots_[slot_of_peak_[t]];
    std::erase(slot, ways_[t].taken);
    slot.push_back(ways_[t].given);
  }

  bool fill(const Chunk& chunk) {
    std::vector<Range> free = slots_[chunk.slot];
    std::vector<BufferIndex> buffers;
    std::vector<Bytes> sizes;
    for (const BufferIndex i : chunk.buffers) {
      if (offsets_[i] != kUnplaced) continue;
      buffers.push_back(i);
      sizes.push_back(size(i));
    }
    const bool has_peak = buffers.size() < chunk.buffers.size();
    if (has_peak && std::erase(free, ways_[chunk.end].freed) == 0) return false;
    RangeSet merged;
    for (const Range& r : free) {
      if (r.size() > 0) merged.insert_merged(r);
    }
    const auto offsets = fill_ranges(sizes, merged.ranges());
    if (!offsets) return false;
    // This fails if a buffer of the chunk before it is freed later than the rest.
    for (std::size_t k = 0; k < buffers.size(); ++k) put(buffers[k], (*offsets)[k]);
    return true;
  }

  const Problem& problem_;
  const Timeline& timeline_;
  std::vector<Offset> offsets_;
  std::optional<Placement> placement_;
  Bytes height_ = 0;
  Bytes small_ = 0;
  Bytes cell_ = 0;  // bytes that each peak frees first
  Bytes hole_ = 0;  // bytes that it needs beyond these
  std::vector<Peak> peaks_;
  std::vector<Chunk> chunks_;      // by begin, then by end
  std::vector<Bytes> rest_sizes_;  // of each slot
  std::vector<int> slot_of_peak_;  // by peak: the slot of the chunk that it frees
  std::vector<Way> ways_;          // by peak
  std::vector<std::vector<Range>> slots_;
};

}  // namespace

std::optional<Layout> plan_walk(const Problem& problem, const Timeline& timeline,
                                const Budget& budget, const std::atomic<Bytes>* limit) {
  const auto is_fixed = [](const Buffer& b) { return b.fixed != kUnplaced; };
  if (std::ranges::any_of(problem.buffers, is_fixed)) return std::nullopt;
  Walk walk(problem, timeline);
  if (!walk.find() || !(walk.go_straight() || walk.go_back_and_forth())) return std::nullopt;
  Problem rest = problem;
  for (std::size_t i = 0; i < rest.buffers.size(); ++i) rest.buffers[i].fixed = walk.offsets()[i];
  std::optional<Layout> best;
  for (const Order order : {Order::kPeakRankSize, Order::kLargePeakRankEnd}) {
    Layout layout =
        repaired(rest, timeline, ordered(problem, timeline, order), Fit::kFirst, kRepairs, budget);
    if (!best || layout.height < best->height) best = std::move(layout);
    if (best->height <= budget.target) break;
  }
  if (limit && best->height >= limit->load(std::memory_order_relaxed)) return std::nullopt;
  return best;
}

Layout WalkPlanner::plan(const Problem& problem, const Budget& budget) const {
  const Timeline timeline(problem);
  if (std::optional<Layout> layout = plan_walk(problem, timeline, budget)) return *layout;
  return repaired(problem, timeline, ordered(problem, timeline, Order::kPeakRankSize), Fit::kFirst,
                  0, budget);
}

}  // namespace stalloc::solve
