#include "trace/layers.h"

namespace stalloc::trace {

bool lies_inside(std::string_view layer, const LayerNames& modules) {
  for (auto dot = layer.rfind('.'); dot != std::string_view::npos; dot = layer.rfind('.')) {
    layer = layer.substr(0, dot);
    if (modules.contains(layer)) return true;
  }
  return false;
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
