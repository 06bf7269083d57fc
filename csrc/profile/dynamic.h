// Dynamic requests by their place among the static ones: what a HomoLayer group is in the paper
// (section 5.2), with places for layers.
//
// Nobody can tell which dynamic request of one iteration is which of another, and nobody needs to.
// Dynamic are those that are tagged and those without a counterpart; each is told by the newest
// plannable request of its phase before it, and freed before some numbered one is born. The window
// of a place, from its first birth to its last free in any iteration, is all that a plan needs.
#pragma once

#include <set>
#include <utility>
#include <vector>

#include "profile/counterparts.h"
#include "profile/iteration_profile.h"

namespace stalloc::profile {

// The stays in modules, by phase and module, in which one request in eight or more, and four in an
// iteration, has no counterpart: what does have one there had the same size by chance, or by
// belonging to a dynamic one, and is as dynamic as the rest; and so is what the modules inside ask
// for. That is how modules nobody has tagged are found.
// O(n log n) for each iteration.
std::set<std::pair<trace::PhaseKey, LayerIndex>> dynamic_stays(const Counterparts& all);

// Fills `profile.places` and `profile.kept`: the places of every compared iteration's dynamic
// requests that are asked for by the training thread in a planned phase that the reference has.
// Requests that live longer than a turn are kept, and those that perhaps do belong to no place.
// `profile` is complete but for that, and the opening.
//
// Windows are safe to plan with: where a dynamic request and a plannable one, or two dynamic
// requests of different places, were alive together in any compared iteration, window and lifetime
// overlap, on the circle.
//
// O(n log n) for each iteration.
void find_places(const Counterparts& all, IterationProfile& profile);

}  // namespace stalloc::profile
