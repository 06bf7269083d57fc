// The coarse problem of the multilevel search: blocks, rectangles and the units they form
// (multilevel.h has a picture).
//
// Long, large buffers become blocks, some of them merged. Births and deaths of blocks cut time into
// pieces. One rectangle a piece stands for all other buffers, as high as their largest load there.
// The load bound is that of the whole problem. Blocks of one size that are born one after another
// and freed in reverse form a unit, as the checkpoints of a microbatch do. Each rectangle is a unit
// of its own.
//
// Cost: sorting the buffers, and the moments that blocks live through.
#pragma once

#include <span>
#include <vector>

#include "base/align.h"
#include "solve/core/order.h"
#include "solve/core/problem.h"
#include "solve/core/timeline.h"

namespace stalloc::solve {

using Piece = Moment;  // index of a stretch of moments in which the same blocks live

// A rectangle of the coarse problem.
struct Block {
  Span span;  // of moments while blocks are made, of pieces afterwards
  Bytes size = 0;
  Offset fixed = kUnplaced;
  std::vector<BufferIndex> buffers;  // from the bottom up; empty for the rectangle of a piece

  bool is_movable() const { return fixed == kUnplaced && span.wrap == 0; }
  bool is_rectangle() const { return buffers.empty(); }
};

struct Unit {
  std::vector<std::size_t> blocks;  // indices, in the order of placement
  Bytes load = 0;                   // the largest under which one of them lives
  Piece first = 0;                  // the first piece in which one of them lives
  Piece end = 0;                    // one past the last of these; above pieces() if it wraps round
  bool is_rectangle = false;
};

class CoarseProblem {
 public:
  // `target` is not below the load bound. `problem` and `timeline` outlive the object.
  CoarseProblem(const Problem& problem, const Timeline& timeline, Bytes target);

  const std::vector<Block>& blocks() const { return blocks_; }
  const std::vector<Unit>& units() const { return units_; }
  Piece pieces() const { return static_cast<Piece>(piece_load_.size()); }

  // The whole problem with the buffers of all blocks fixed where `offsets` puts the blocks.
  Problem with_blocks_at(std::span<const Offset> offsets) const;

 private:
  Bytes size(BufferIndex i) const { return align_up(problem_.buffers[i].size, problem_.alignment); }
  Moment lifetime(BufferIndex i) const;

  // Fixed buffers, and large ones down to the point where lifetimes fall by the largest factor. In
  // order of birth.
  std::vector<BufferIndex> long_buffers() const;
  // Buffers that are born and freed at about the same time become one block, as long as the load
  // stays below the target.
  void merge(const std::vector<BufferIndex>& buffers);
  // `later` is not born before `block`.
  bool try_merge(Block& block, const Block& later);
  bool has_room(const Span& span, Bytes size) const;
  void add_load(const Span& span, Bytes size);
  // Cuts time where blocks are born and freed. Adds the rectangle of each piece.
  void cut_time();
  // A block joins the unit of the last block of its size if it is freed before that one.
  void bundle();
  static bool is_nested(const Block& inner, const Block& outer);
  Bytes largest_load(const Span& span) const;

  const Problem& problem_;
  const Timeline& timeline_;
  const Bytes target_;
  std::vector<Bytes> load_;        // at each moment; merged blocks raise it
  std::vector<Bytes> piece_load_;  // the largest in each piece
  std::vector<Block> blocks_;      // in order of birth, the rectangles of the pieces last
  std::vector<Unit> units_;
};

}  // namespace stalloc::solve
