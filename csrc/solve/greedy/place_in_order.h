// Greedy placement: buffers are placed one after another, each where it fits at that moment.
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

// Places fixed buffers first, then the rest in the order given. When the budget expires, what is
// left is stacked on top. Buffers without size or lifetime lie at 0, where they are not fixed.
// With a `limit`, which may fall while this runs, gives up (and returns nothing) once the layout is
// as high as that.
std::optional<Layout> place_in_order(const Problem& problem, const Timeline& timeline,
                                     const std::vector<BufferIndex>& order, Fit fit,
                                     const Budget& budget,
                                     const std::atomic<Bytes>* limit = nullptr);

}  // namespace stalloc::solve
