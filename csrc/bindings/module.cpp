// The Python module of the core. Each part is bound in the file of its name.
#include <pybind11/pybind11.h>

#include "base/format.h"
#include "bindings/parts.h"

PYBIND11_MODULE(_core, m) {
  m.doc() = "The core of stalloc: traces, plans and the runtime. Use the modules above it.";
  stalloc::bindings::bind_errors();
  stalloc::bindings::bind_trace(m);
  stalloc::bindings::bind_plan(m);
  stalloc::bindings::bind_planner(m);
  stalloc::bindings::bind_runtime(m);
  stalloc::bindings::bind_make_trace(m);
  stalloc::bindings::bind_replay(m);
  stalloc::bindings::bind_placements(m);
  stalloc::bindings::bind_compat(m);
  stalloc::bindings::bind_graphs(m);
  m.def("format_bytes", &stalloc::format_bytes, pybind11::arg("size"));
}
