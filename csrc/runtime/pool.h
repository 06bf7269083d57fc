// A piece of device memory that a plan lays out.
#pragma once

#include <cstddef>
#include <optional>

#include "base/types.h"
#include "plan/plan.h"
#include "runtime/static_pool.h"
#include "runtime/stream_order.h"

namespace stalloc::runtime {

struct Pool {
  Pool(const plan::Plan& plan, std::byte* memory) : base(memory), space(plan) {}

  bool contains(const void* p) const { return base && p >= base && p < base + space.size(); }
  Offset offset_of(const void* p) const { return static_cast<const std::byte*>(p) - base; }

  // Describes a block to the order of streams.
  StreamOrder::Block ordered(Offset offset, StaticPool::Block block) const {
    return {{offset, offset + space.round_up(block.size)}, block.stream, block.decision};
  }

  // Lets the stream of the new block at `offset` use the block from now on. False when the stream
  // could not be made to wait for earlier users; then the block is released again.
  bool hand_over(Offset offset, bool capturing) {
    if (!order) return true;
    const StaticPool::Block block = space.at(offset);
    if (order->take(ordered(offset, block), capturing)) return true;
    space.release(offset);
    return false;
  }

  // Ends the block at `p`; of size kNotLive when none begins there.
  StaticPool::Block release(const void* p, bool capturing) {
    const Offset offset = offset_of(p);
    const StaticPool::Block block = space.release(offset);
    if (order && block.size != StaticPool::kNotLive) {
      order->release(ordered(offset, block), capturing);
    }
    return block;
  }

  std::byte* base;  // null where there is no memory
  StaticPool space;
  std::optional<StreamOrder> order;  // where the plan's streams share addresses
};

}  // namespace stalloc::runtime
