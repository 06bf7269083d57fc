// Several attempts at one problem, side by side, of which the best wins.
//
// Who wins does not depend on who is fast: the lowest layout, and of equals the attempt that comes
// first in the list. An attempt is told to give up only when it can no longer win: when one before
// it has a layout as low as its own is by now, or one after it a lower one.
#pragma once

#include <atomic>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "solve/core/planner.h"

namespace stalloc::solve {

struct Attempt {
  std::string name;
  // Gives up, with no layout, once that would be as high as `limit`, which falls as others finish.
  std::function<std::optional<Layout>(const Budget& budget, const std::atomic<Bytes>& limit)> run;
};

struct Winner {
  Layout layout;
  std::string name;  // empty: no attempt has finished yet
};

// Runs the attempts in their order on up to `threads` threads and replaces `winner` where one is
// lower. Ends when all have ended, or one meets the budget's target and those before it have ended.
// Reports progress all the while. What an attempt throws is thrown when none has a layout.
void race(const std::vector<Attempt>& attempts, int threads, const Budget& budget, Winner& winner);

}  // namespace stalloc::solve
