// Finds where a rectangle still fits. Every greedy planner is built on it.
//
// It is a segment tree over moments. Each node holds two sets of merged address intervals: those
// taken at all of the node's moments (`cover`), and those taken at any of them (`touch`).
//
//   root          [0 .............. 8)          A rectangle over the moments [2, 7) is entered as
//             [0 .. 4)       [4 ... 8)          cover of the nodes [2,4) [4,6) [6,7), and as touch
//          [0,2) [2,4)    [4,6)  [6,8)          of these and all their ancestors.
//
// O(log T) nodes make up a span. The addresses taken somewhere in the span are the union of `touch`
// of these nodes and `cover` of their ancestors. This needs no interference graph and allows any
// order of placement. Neighbouring intervals merge, so sets stay short as long as the layout has
// few holes. A search walks all sets at once and leaps to the end of each interval in the way.
//
// Not thread-safe: each running planner has a placement of its own.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "solve/core/interval_set.h"
#include "solve/core/timeline.h"

namespace stalloc::solve {

class Placement {
 public:
  explicit Placement(Moment moments);

  // The lowest offset, not below `from`, at which `size` > 0 bytes are free throughout `span`.
  Offset first_fit(const Span& span, Bytes size, Offset from = 0) const;

  // The same, throughout all `spans`.
  Offset first_fit(std::span<const Span> spans, Bytes size) const;

  // The offset of the smallest hole below `top` that holds `size` > 0 bytes throughout `span`, the
  // lowest of several. If there is none, the same as first_fit().
  Offset best_fit(const Span& span, Bytes size, Offset top) const;

  // Where to look: a span of one of several placements of the same moments.
  struct Search {
    const Placement* placement = nullptr;
    Span span;
  };

  // The same two, at addresses that are free in all `searches`, of which there is one at least.
  static Offset first_fit(std::span<const Search> searches, Bytes size);
  static Offset best_fit(std::span<const Search> searches, Bytes size, Offset top);

  // Marks [offset, offset + size) as taken throughout `span`, even if it was taken before.
  void place(const Span& span, Offset offset, Bytes size);

 private:
  struct Node {
    IntervalSet cover;
    IntervalSet touch;
  };

  // A walk along one set: the rest of it.
  struct Cursor {
    const Interval* next;
    const Interval* end;
  };

  // Adds to `cursors` the sets that are in the way during `span`.
  void collect(const Span& span, std::vector<Cursor>& cursors) const;
  void collect(std::size_t node, Moment node_begin, Moment node_end, Moment begin, Moment end,
               std::vector<Cursor>& cursors) const;
  void place(std::size_t node, Moment node_begin, Moment node_end, Moment begin, Moment end,
             const Interval& interval);

  static std::vector<Cursor>& collect(std::span<const Search> searches);
  static Offset lowest(std::vector<Cursor>& cursors, Bytes size, Offset from);
  static Offset smallest(std::vector<Cursor>& cursors, Bytes size, Offset top);

  Moment moments_;
  IntervalArena arena_;
  // In depth-first order: the left child follows its parent, the right one follows all of the left
  // child's 2 * moments - 1 nodes.
  std::vector<Node> nodes_;
  mutable std::vector<Cursor> cursors_;  // kept to save its allocation
};

}  // namespace stalloc::solve
