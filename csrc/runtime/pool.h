// Device memory that a plan lays out: one piece, or several with consecutive offsets.
//
//   offsets   0            wall  wall + alignment        size
//             +------------+--+--+-----------------------+
//   memory    | first piece   |  | a piece that was added |
//             +---------------+  +------------------------+
//
// No request gets the addresses of a wall, so no block straddles two pieces (plan::Plan::walls).
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <optional>
#include <vector>

#include "base/types.h"
#include "plan/plan.h"
#include "runtime/static_pool.h"
#include "runtime/stream_order.h"

namespace stalloc::runtime {

struct Pool {
  struct Piece {
    std::byte* memory = nullptr;
    Bytes size = 0;
    Offset begin = 0;  // of its addresses in the pool
  };

  Pool(const plan::Plan& plan, std::byte* memory)
      : base(memory), first_size(plan.pool), space(plan) {}

  std::byte* address(Offset offset) const {
    return offset < first_size || more.empty() ? base + offset : address_in_more(offset);
  }
  bool contains(const void* p) const { return in_first(p) || find(p); }
  Offset offset_of(const void* p) const {
    const Piece* piece = in_first(p) ? nullptr : find(p);
    return piece ? piece->begin + (static_cast<const std::byte*>(p) - piece->memory)
                 : static_cast<const std::byte*>(p) - base;
  }
  // The pieces of memory, without those that are released.
  std::vector<Piece> pieces() const {
    std::vector<Piece> all;
    if (base) all.push_back({base, first_size, 0});
    std::ranges::copy_if(more, std::back_inserter(all), &Piece::memory);
    return all;
  }
  // Gives the piece at `begin` other memory, or none.
  void set_memory(Offset begin, std::byte* memory) {
    if (begin == 0) {
      base = memory;
    } else {
      std::ranges::find(more, begin, &Piece::begin)->memory = memory;
    }
  }

  // The same without addresses that have no memory; see StaticPool, Note [Absent memory].
  std::vector<Piece> mapped() const {
    std::vector<Piece> all;
    for (const Piece& piece : pieces()) {
      visit_outside(space.absent(), {piece.begin, piece.begin + piece.size}, [&](Range r) {
        all.push_back({piece.memory + (r.begin - piece.begin), r.size(), r.begin});
      });
    }
    return all;
  }

  // Describes a block to the order of streams.
  StreamOrder::Block ordered(Offset offset, StaticPool::Block block) const {
    return {{offset, offset + space.round_up(block.size)}, block.stream, block.decision};
  }

  // Lets the stream of the new block at `offset` use the block from now on. Releases the block
  // again and returns false if the stream cannot be made to wait for earlier users.
  bool hand_over(Offset offset, bool capturing) {
    return !order || hand_over_in_order(offset, capturing);
  }

  // Frees the block at `p`. The result has the size kNotLive if none begins there.
  StaticPool::Block release(const void* p, bool capturing) {
    const Offset offset = offset_of(p);
    const StaticPool::Block block = space.release(offset);
    if (order) release_in_order(offset, block, capturing);
    return block;
  }

  // Frees the block at `offset` for another stream, while streams use it: the next stream waits for
  // them. Returns its size; kNotLive, and frees nothing, if that is not known to suffice.
  Bytes release_in_use(Offset offset) {
    const StaticPool::Block block = space.at(offset);
    if (!order || !order->covers_users(ordered(offset, block))) return StaticPool::kNotLive;
    space.release(offset);
    order->release_in_use(ordered(offset, block));
    return block.size;
  }

  // The number of times that a stream was made to wait for another, in all layouts.
  std::int64_t waits() const { return earlier_waits + (order ? order->waits() : 0); }

  std::byte* base;          // the first piece; null while it has no memory
  Bytes first_size;         // of the first piece
  Bytes chunk = 1;          // in which its memory moves
  std::vector<Piece> more;  // ascending by address in the pool
  StaticPool space;
  // Only if the plan's streams share addresses, or if blocks have outlived an earlier layout.
  std::optional<StreamOrder> order;
  std::int64_t earlier_waits = 0;  // in earlier layouts

 private:
  // Apart: in most pools the streams share no addresses.
  [[gnu::noinline]] bool hand_over_in_order(Offset offset, bool capturing) {
    const StaticPool::Block block = space.at(offset);
    if (order->take(ordered(offset, block), capturing)) return true;
    space.release(offset);
    return false;
  }
  [[gnu::noinline]] void release_in_order(Offset offset, StaticPool::Block block, bool capturing) {
    if (block.size != StaticPool::kNotLive) order->release(ordered(offset, block), capturing);
  }
  bool in_first(const void* p) const { return base && p >= base && p < base + first_size; }
  std::byte* address_in_more(Offset offset) const {
    for (const Piece& piece : more) {
      if (offset < piece.begin + piece.size) return piece.memory + (offset - piece.begin);
    }
    return nullptr;
  }
  const Piece* find(const void* p) const {
    for (const Piece& piece : more) {
      if (piece.memory && p >= piece.memory && p < piece.memory + piece.size) return &piece;
    }
    return nullptr;
  }
};

}  // namespace stalloc::runtime
