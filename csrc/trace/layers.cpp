#include "trace/layers.h"

namespace stalloc::trace {

bool lies_inside(std::string_view layer, const LayerNames& modules) {
  for (auto dot = layer.rfind('.'); dot != std::string_view::npos; dot = layer.rfind('.')) {
    layer = layer.substr(0, dot);
    if (modules.contains(layer)) return true;
  }
  return false;
}

std::set<LayerIndex> layers_with_guests(const Trace& trace) {
  std::set<LayerIndex> hosts;
  std::vector<const LayerSpan*> open;
  for (const LayerSpan& span : trace.layer_spans) {
    while (!open.empty() && open.back()->end <= span.begin) open.pop_back();
    for (const LayerSpan* outer : open) {
      if (outer->layer == span.layer || hosts.contains(outer->layer)) continue;
      const std::string& name = trace.layers[outer->layer.position()];
      if (!lies_inside(trace.layers[span.layer.position()], {name})) hosts.insert(outer->layer);
    }
    open.push_back(&span);
  }
  return hosts;
}

std::vector<bool> layers_in(const Trace& trace, std::span<const std::string> modules) {
  const LayerNames names(modules.begin(), modules.end());
  std::vector<bool> in;
  for (const std::string& layer : trace.layers) {
    in.push_back(names.contains(layer) || lies_inside(layer, names));
  }
  return in;
}

}  // namespace stalloc::trace
