// Where a rectangle still fits: the engine under every greedy planner.
//
// A segment tree over moments. Each node holds two sets of merged address intervals: what covers
// all of the node's moments (`cover`), and what touches any of them (`touch`).
//
//   root          [0 .............. 8)          A rectangle over the moments [2, 7) is entered as
//             [0 .. 4)       [4 ... 8)          cover of the nodes [2,4) [4,6) [6,7), and as touch
//          [0,2) [2,4)    [4,6)  [6,8)          of these and all their ancestors.
//
// What is taken somewhere in a span is then the union of `touch` of the O(log T) nodes that make it
// up and of `cover` of their ancestors: no interference graph, any order of placement, and, because
// neighbours merge, sets that stay short as long as the layout has few holes. Sets are walked side
// by side, leaping to the end of whatever is in the way.
//
// Not thread-safe: each planner that runs has one of its own.
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

  // The lowest offset, not below `from`, at which `size` > 0 bytes are free all through `span`.
  Offset first_fit(const Span& span, Bytes size, Offset from = 0) const;

  // The same, all through every one of `spans`.
  Offset first_fit(std::span<const Span> spans, Bytes size) const;

  // The offset of the smallest hole below `top` that holds `size` > 0 bytes all through `span`, the
  // lowest of several; where there is none, the same as first_fit().
  Offset best_fit(const Span& span, Bytes size, Offset top) const;

  // Marks [offset, offset + size) as taken all through `span`, whether it was free or not.
  void place(const Span& span, Offset offset, Bytes size);

 private:
  struct Node {
    IntervalSet cover;
    IntervalSet touch;
  };

  // A walk along one set: what of it is still ahead.
  struct Cursor {
    const Interval* next;
    const Interval* end;
  };

  // Adds to `cursors` what is in the way during `span`.
  void collect(const Span& span, std::vector<Cursor>& cursors) const;
  void collect(std::size_t node, Moment node_begin, Moment node_end, Moment begin, Moment end,
               std::vector<Cursor>& cursors) const;
  void place(std::size_t node, Moment node_begin, Moment node_end, Moment begin, Moment end,
             const Interval& interval);

  static Offset lowest(std::vector<Cursor>& cursors, Bytes size, Offset from);

  Moment moments_;
  IntervalArena arena_;
  // In depth-first order: the left child follows its parent, the right one follows all of the left
  // child's 2 * moments - 1 nodes.
  std::vector<Node> nodes_;
  mutable std::vector<Cursor> cursors_;  // kept to save its allocation
};

}  // namespace stalloc::solve
