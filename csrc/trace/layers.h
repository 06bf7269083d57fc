// Layers by name. Names nest as modules do: "layers.3.experts.0" lies inside "layers.3".
#pragma once

#include <functional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "trace/trace.h"

namespace stalloc::trace {

using LayerNames = std::set<std::string, std::less<>>;

// True if the layer lies inside one of `modules`; none lies inside itself.
bool lies_inside(std::string_view layer, const LayerNames& modules);

// The layers that call one which does not lie inside them: the root, whose name is that of its
// class, and modules that share others.
std::set<LayerIndex> layers_with_guests(const Trace& trace);

// By layer of the trace: true if it is one of `modules` or lies inside one.
std::vector<bool> layers_in(const Trace& trace, std::span<const std::string> modules);

}  // namespace stalloc::trace
