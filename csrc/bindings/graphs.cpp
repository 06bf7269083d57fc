// Memory of captured graphs, for stalloc/graphs.py.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstdint>
#include <optional>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

#include "bindings/parts.h"
#include "device/graph_memory.h"

namespace py = pybind11;

namespace stalloc::bindings {
namespace {

using device::GraphMemory;

using Block = std::pair<std::uintptr_t, std::uintptr_t>;
using Use = std::tuple<std::uintptr_t, std::uintptr_t, std::int64_t, std::int64_t, std::uint64_t>;

void settle(int device, GraphMemory::Pool pool, const std::vector<Block>& kept,
            const std::optional<std::vector<Use>>& uses) {
  std::vector<GraphMemory::Addresses> blocks;
  blocks.reserve(kept.size());
  for (const auto& [begin, end] : kept) blocks.push_back({begin, end});
  std::vector<GraphMemory::Use> others;
  if (uses) {
    others.reserve(uses->size());
    for (const auto& [begin, end, from, to, stream] : *uses) {
      others.push_back({{begin, end}, from, to, stream});
    }
  }
  const py::gil_scoped_release released;
  std::optional<std::span<const GraphMemory::Use>> known;
  if (uses) known = others;
  GraphMemory::of(device).settle(pool, blocks, known);
}

py::dict figures(int device) {
  const GraphMemory* memory = GraphMemory::known(device);
  const GraphMemory::Figures f = memory ? memory->figures() : GraphMemory::Figures{};
  py::dict d;
  d["addresses"] = f.addresses;
  d["shared"] = f.shared;
  d["own"] = f.own;
  d["eager"] = f.eager;
  d["pools"] = f.pools;
  return d;
}

}  // namespace

void bind_graphs(py::module_& m) {
  m.def(
      "begin_graph_pool",
      [](int device, GraphMemory::Pool pool) { GraphMemory::of(device).begin(pool); },
      py::arg("device"), py::arg("pool"),
      "The capture of a graph begins, into the private pool of this id.");
  m.def(
      "end_graph_pool",
      [](int device, GraphMemory::Pool pool) { GraphMemory::of(device).end(pool); },
      py::arg("device"), py::arg("pool"), py::call_guard<py::gil_scoped_release>(),
      "The capture into that pool has ended, or failed.");
  m.def("settle_graph_pool", &settle, py::arg("device"), py::arg("pool"), py::arg("kept"),
        py::arg("uses"),
        "A capture has ended. `kept`: begin and end of each block that lives on. `uses`: begin, "
        "end, first and last tick and stream of each other one, or None.");
  m.def(
      "graph_memory_of", [](int device) { GraphMemory::of(device); }, py::arg("device"),
      "Makes the memory of a device's graphs, once.");
  m.def("graph_memory", &figures, py::arg("device"), "Bytes, and the number of pools.");
}

}  // namespace stalloc::bindings
