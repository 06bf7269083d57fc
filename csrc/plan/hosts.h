// Lets groups share one region: those that a phase keeps, the temporaries of one site, or all.
//
// The layers of a forward keep activations for its backward, and those of all layers are live
// together when the forward ends. The experts of one layer get a number of tokens that varies more
// than the sum over all layers. So these groups use one region, that of their host:
//
//   own regions              one region, of the host
//   +---------+ l_3          +---------+
//   |    +----+--+ l_2       | l_3     |
//   +----+-------+           | l_2     |       a layer with more tokens takes
//   |    +-------+--+ l_1    | l_1     |       the space that another one leaves
//   +----+----------+        +---------+
//
// The region is open from the first request of all these groups until the last free. That costs
// nothing unless the load is highest while only a part of the layers has run.
//
// The temporaries of a site (a call of a layer) fall into groups by their lifetimes. One group
// often needs most before another does, so together they need less than the sum.
//
// If the sizes of all groups vary by themselves, as those of embedding tables do, the most that
// they need together is far below the sum of what each needs at most, even of those that are never
// live together: a gradient takes the space that activations have left.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "plan/plan.h"
#include "profile/lifetimes.h"

namespace stalloc::plan {

enum class Sharing : std::uint8_t {
  kKept,         // groups of one phase whose requests live beyond it
  kKeptOfSite,   // the same of one site
  kTemporaries,  // groups of one site whose requests do not
  kAll,          // groups of one stream whose needs follow no law
};

// The host of each group: the first of the groups of its stream that share their region. kNone for
// a group that keeps its own region.
std::vector<GroupIndex> find_hosts(std::span<const profile::ProfiledGroup> groups, Tick period,
                                   Sharing sharing);

// The groups as their regions see them: a host has the requests of all its groups, and the window
// that holds theirs; the other groups have no requests. A host has the law of its largest group.
std::vector<profile::ProfiledGroup> with_hosts(std::span<const profile::ProfiledGroup> groups,
                                               const std::vector<GroupIndex>& hosts);

}  // namespace stalloc::plan
