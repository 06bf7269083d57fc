// Runs several attempts at one problem in parallel. The first that meets the target wins; if none
// does, the lowest layout.
//
// The winner does not depend on speed. Among equal layouts, that of the first attempt in the list
// wins. An attempt is told to give up only if it can no longer win: if an attempt before it meets
// the target or has a layout as low as its own height so far, or if an attempt after it has a lower
// one and its own height is above the target.
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
  // Returns nothing once the layout would be as high as `limit`, which falls as others finish.
  std::function<std::optional<Layout>(const Budget& budget, const std::atomic<Bytes>& limit)> run;
};

struct Winner {
  Layout layout;
  std::string name;  // empty: no attempt has finished yet
};

// Runs the attempts in their order on up to `threads` threads, and replaces `winner` if one is
// lower. Returns when all attempts have ended, or when one meets the budget's target and those
// before it have ended. Reports progress. If no attempt has a layout, rethrows the first exception.
void run_attempts(const std::vector<Attempt>& attempts, int threads, const Budget& budget,
                  Winner& winner);

}  // namespace stalloc::solve
