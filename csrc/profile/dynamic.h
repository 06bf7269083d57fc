// Groups dynamic requests by their site among the static requests. The paper's HomoLayer groups
// (section 5.2) are the same with layers for sites.
//
// A request is dynamic if it is tagged or has no counterpart. Its site is known from the newest
// plannable request of its phase before it. Dynamic requests of two iterations need not correspond
// one by one: a plan needs only the window of a group, from the first birth to the last free in any
// iteration.
#pragma once

#include <set>
#include <string>
#include <utility>
#include <vector>

#include "profile/counterparts.h"
#include "profile/iteration_profile.h"

namespace stalloc::profile {

// Calls of modules, by phase and layer.
using DynamicStays = std::set<std::pair<trace::PhaseKey, LayerIndex>>;

// Finds dynamic modules that nobody has tagged. The result has the calls of modules, by phase and
// layer, in which one request in eight or more, and four in an iteration, has no counterpart. The
// other requests of such a call are dynamic too: they have a counterpart by chance only. The same
// applies to the modules inside. O(n log n) for each iteration.
DynamicStays dynamic_stays(const Counterparts& all);

// The dynamic modules among `stays` that nobody has tagged: those that make no request in any other
// phase and call no modules but their own, by name. Only the outermost of nested ones.
std::vector<std::string> dynamic_modules(const Counterparts& all, const DynamicStays& stays);

// Fills `profile.groups` and `profile.kept` from the dynamic requests of every compared iteration.
// Only requests count that the training thread makes in a planned phase of the reference. Requests
// that live longer than a period are kept. A request that possibly lives that long belongs to no
// group. Adds the laws of groups to `profile.laws`. `profile` is complete except for these and
// start-up.
//
// Windows are safe to plan with. If a dynamic request and a plannable one were live together in any
// compared iteration, the window and the lifetime overlap, on the circle. The same applies to two
// dynamic requests of different groups.
//
// O(n log n) for each iteration.
void find_groups(const Counterparts& all, IterationProfile& profile);

}  // namespace stalloc::profile
