// Places buffers one after another, each where it fits at that moment.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <vector>

#include "solve/core/order.h"
#include "solve/core/planner.h"
#include "solve/core/timeline.h"

namespace stalloc::solve {

enum class Fit : std::uint8_t {
  kFirst,  // the lowest hole that is large enough
  kBest,   // the smallest such hole
};

// Places fixed buffers first, then the rest in the order given. If the budget expires, the
// remaining buffers are stacked on top. Holds are kept, except between fixed buffers. Buffers
// without size or lifetime get offset 0 unless they are fixed. With a `limit`, which may fall
// meanwhile, returns nothing once the layout is as high as the limit.
std::optional<Layout> place_in_order(const Problem& problem, const Timeline& timeline,
                                     const std::vector<BufferIndex>& order, Fit fit,
                                     const Budget& budget,
                                     const std::atomic<Bytes>* limit = nullptr);

}  // namespace stalloc::solve
