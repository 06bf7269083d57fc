// HomoPhase groups: local plans for requests that start and end in the same phases (section 5.1).
#pragma once

#include <cstdint>
#include <vector>

#include "solve/core/planner.h"
#include "solve/core/problem.h"

namespace stalloc::solve {

struct GroupMember {
  std::int32_t buffer = 0;
  Bytes size = 0;  // rounded
  Tick lower = 0;
  Tick upper = 0;
  Offset offset = 0;  // from the start of the group
};

// A local plan D_g, treated as one request m_g from here on.
struct PhaseGroup {
  std::vector<GroupMember> members;
  Bytes size = 0;  // D_g.s
  Tick lower = 0;  // D_g.t_s
  Tick upper = 0;  // D_g.t_e
};

// Every buffer that has a size and a lifetime, in one group each; single ones are groups of their
// own. Where time is circular, buffers that wrap round stay single.
std::vector<PhaseGroup> phase_groups(const Problem& problem, const Budget& budget);

}  // namespace stalloc::solve
