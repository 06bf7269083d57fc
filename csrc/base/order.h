// The program's own order between streams of a device: its events, waits and synchronisations.
#pragma once

#include "base/types.h"

namespace stalloc {

// Work that `stream` gets from `tick` on begins after all work that `after` gets before `upto`,
// which is later than `tick` if `after` is idle meanwhile. Rows are transitive: they include the
// order that goes through other streams or through the host.
struct Order {
  Tick tick = 0;
  StreamId stream = 0;
  StreamId after = 0;
  Tick upto = 0;
};

}  // namespace stalloc
