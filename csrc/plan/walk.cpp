#include "plan/walk.h"

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "base/align.h"
#include "plan/order.h"
#include "plan/placement.h"
#include "plan/repair.h"
#include "plan/turns.h"

namespace stalloc {
namespace {

constexpr int kRepairs = 4;  // of what is in no chunk

// What is saved between two turns and freed between two others.
struct Chunk {
  int begin = -1;  // the turn after which it is saved; -1: before the first
  int end = -1;    // the turn that frees it
  std::vector<BufferIndex> buffers = {};
  Bytes bytes = 0;
  int slot = kNone;
};

struct Range {
  Offset begin = 0;
  Offset end = 0;

  Bytes size() const { return end - begin; }
  bool operator==(const Range&) const = default;
};

class Walk {
 public:
  Walk(const Problem& problem, const Timeline& timeline)
      : problem_(problem), timeline_(timeline), offsets_(problem.buffers.size(), kUnplaced) {}

  // False where there is no walk, or it does not work out.
  bool run() {
    const std::vector<Bytes> load = timeline_.load(problem_);
    if (load.empty()) return false;
    height_ = *std::ranges::max_element(load);
    small_ = height_ / kSmallPart;
    Turns found = find_turns(problem_, timeline_, load);
    turns_ = std::move(found.turns);
    cell_ = found.freed;
    hole_ = found.besides;
    if (turns_.empty() || std::ssize(turns_) >= height_ / cell_) return false;
    find_chunks();
    if (!assign_slots() || !lay_out_slots()) return false;
    placement_.emplace(timeline_.moments());
    if (!place_turns()) return false;
    std::size_t turn = 0;
    for (const Chunk& chunk : chunks_) {
      for (; static_cast<int>(turn) <= chunk.begin; ++turn) exchange(turn);
      if (!fill(chunk)) return false;
    }
    return true;
  }

  const std::vector<Offset>& offsets() const { return offsets_; }

 private:
  Bytes size(BufferIndex i) const { return align_up(problem_.buffers[i].size, problem_.alignment); }
  const Span& span(BufferIndex i) const { return timeline_.span(i); }

  bool is_large(BufferIndex i) const {
    return size(i) > 0 && size(i) >= small_ && !span(i).empty() && span(i).wrap == 0;
  }

  // False where something else lies there already, or the buffer elsewhere.
  bool put(BufferIndex i, Offset offset) {
    if (offsets_[i] != kUnplaced) return false;
    if (placement_->first_fit(span(i), size(i), offset) != offset) return false;
    offsets_[i] = offset;
    placement_->place(span(i), offset, size(i));
    return true;
  }

  // The cell that turn t frees lies above its hole, and is the one that the next hole is part of.
  Range cell(std::size_t t) const {
    const Offset begin = static_cast<Offset>(t) * cell_ + hole_;
    return {begin, begin + cell_};
  }
  Range hole(std::size_t t) const {
    const Offset begin = static_cast<Offset>(t) * cell_;
    return {begin, begin + hole_};
  }
  // What the slot of turn t has in place of its cell, from then on.
  Range given(std::size_t t) const {
    const Offset begin = static_cast<Offset>(t) * cell_;
    return {begin, begin + cell_};
  }

  // The last turn that has begun by then; -1 before the first.
  int turn_at(Moment moment) const {
    const auto next = std::ranges::upper_bound(turns_, moment, {},
                                               [&](const Turn& t) { return span(t.freed[0]).end; });
    return static_cast<int>(next - turns_.begin()) - 1;
  }

  void find_chunks() {
    std::map<std::pair<int, int>, Chunk> chunks;
    for (BufferIndex i = 0; i < std::ssize(problem_.buffers); ++i) {
      if (!is_large(i)) continue;
      const int begin = turn_at(span(i).begin);
      const int end = turn_at(span(i).end);
      if (end < 0) continue;
      const bool is_temporary =
          end - begin < 2 && (begin >= 0 || span(i).begin > span(turns_[end].freed[0]).begin);
      if (is_temporary) continue;
      Chunk& chunk = chunks[{begin, end}];
      chunk.begin = begin;
      chunk.end = end;
      chunk.buffers.push_back(i);
      chunk.bytes += size(i);
    }
    // Each turn frees one; after the last one, they may all go.
    Bytes most = 0;
    std::vector<char> is_freed_first(problem_.buffers.size(), false);
    for (const Turn& turn : turns_) {
      for (const BufferIndex i : turn.freed) is_freed_first[i] = true;
    }
    const auto has_turn = [&](const Chunk& chunk) {
      return std::ranges::any_of(chunk.buffers, [&](auto i) { return is_freed_first[i] != 0; });
    };
    for (const auto& [key, chunk] : chunks) {
      if (has_turn(chunk)) most = std::max(most, chunk.bytes);
    }
    for (auto& [key, chunk] : chunks) {
      const bool is_after = chunk.end + 1 == std::ssize(turns_) && chunk.bytes > most / 2;
      if (has_turn(chunk) || is_after) chunks_.push_back(std::move(chunk));
    }
  }

  // Each chunk goes where the one was that the turn before it has freed.
  bool assign_slots() {
    std::vector<int> slot_of(turns_.size(), kNone);
    for (Chunk& chunk : chunks_) {
      chunk.slot = chunk.begin < 0 ? kNone : slot_of[chunk.begin];
      if (chunk.slot == kNone) {
        chunk.slot = static_cast<int>(room_.size());
        room_.push_back(0);
      }
      room_[chunk.slot] = std::max(room_[chunk.slot], chunk.bytes);
      for (const BufferIndex i : chunk.buffers) {
        if (turns_[chunk.end].freed[0] == i) slot_of[chunk.end] = chunk.slot;
      }
    }
    slot_of_turn_ = std::move(slot_of);
    return std::ranges::find(slot_of_turn_, kNone) == slot_of_turn_.end();
  }

  // The walk at the bottom, and the slots' own regions above it.
  bool lay_out_slots() {
    slots_.resize(room_.size());
    for (std::size_t t = 0; t < turns_.size(); ++t) {
      slots_[slot_of_turn_[t]].push_back(cell(t));
      room_[slot_of_turn_[t]] -= cell_;
    }
    Offset top = cell(turns_.size() - 1).end;
    for (std::size_t s = 0; s < slots_.size(); ++s) {
      if (room_[s] < 0 || room_[s] > height_ - top) return false;
      slots_[s].push_back({top, top + room_[s]});
      top += room_[s];
    }
    return true;
  }

  bool place_turns() {
    for (std::size_t t = 0; t < turns_.size(); ++t) {
      Offset offset = cell(t).begin;
      for (const BufferIndex i : turns_[t].freed) {
        if (!put(i, std::exchange(offset, offset + size(i)))) return false;
      }
      if (!put(turns_[t].needed, hole(t).begin)) return false;
    }
    return true;
  }

  void exchange(std::size_t t) {
    std::vector<Range>& slot = slots_[slot_of_turn_[t]];
    std::ranges::replace(slot, cell(t), given(t));
  }

  // Largest first, each in the smallest range of its slot that still holds it.
  bool fill(const Chunk& chunk) {
    std::vector<Range> free = slots_[chunk.slot];
    std::vector<BufferIndex> buffers;
    for (const BufferIndex i : chunk.buffers) {
      if (offsets_[i] == kUnplaced) buffers.push_back(i);
    }
    const bool has_turn = buffers.size() < chunk.buffers.size();
    if (has_turn && std::erase(free, cell(static_cast<std::size_t>(chunk.end))) == 0) return false;
    std::ranges::stable_sort(buffers, std::greater{}, [&](BufferIndex i) { return size(i); });
    for (const BufferIndex i : buffers) {
      Range* best = nullptr;
      for (Range& range : free) {
        if (range.size() >= size(i) && (!best || range.size() < best->size())) best = &range;
      }
      if (!best) return false;
      const Offset offset = std::exchange(best->begin, best->begin + size(i));
      put(i, offset);  // unless something of the chunk before it goes later than the rest
    }
    return true;
  }

  const Problem& problem_;
  const Timeline& timeline_;
  std::vector<Offset> offsets_;
  std::optional<Placement> placement_;
  Bytes height_ = 0;
  Bytes small_ = 0;
  Bytes cell_ = 0;  // what each turn frees first
  Bytes hole_ = 0;  // what it needs besides
  std::vector<Turn> turns_;
  std::vector<Chunk> chunks_;      // by begin, then by end
  std::vector<Bytes> room_;        // of each slot
  std::vector<int> slot_of_turn_;  // where the chunk lies that it frees
  std::vector<std::vector<Range>> slots_;
};

}  // namespace

std::optional<Layout> plan_walk(const Problem& problem, const Timeline& timeline,
                                const Budget& budget, const std::atomic<Bytes>* limit) {
  const auto is_fixed = [](const Buffer& b) { return b.fixed != kUnplaced; };
  if (std::ranges::any_of(problem.buffers, is_fixed)) return std::nullopt;
  Walk walk(problem, timeline);
  if (!walk.run()) return std::nullopt;
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

}  // namespace stalloc
