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

// A local plan D_g, which the planner then treats as one request m_g.
struct PhaseGroup {
  std::vector<GroupMember> members;
  Bytes size = 0;  // D_g.s
  Tick lower = 0;  // D_g.t_s
  Tick upper = 0;  // D_g.t_e
};

// Groups every buffer that has a size and a lifetime. A single buffer is a group of its own, as are
// buffers that wrap round.
std::vector<PhaseGroup> phase_groups(const Problem& problem, const Budget& budget);

}  // namespace stalloc::solve
