// The Python module of the core. Each part binds itself in the file of its name.
#include <pybind11/pybind11.h>

#include "base/format.h"
#include "bindings/parts.h"

PYBIND11_MODULE(_core, m) {
  m.doc() = "The core of stalloc: traces, plans and the runtime. Use the modules above it.";
  stalloc::bind_errors();
  stalloc::bind_trace(m);
  stalloc::bind_plan(m);
  stalloc::bind_planner(m);
  stalloc::bind_runtime(m);
  stalloc::bind_make_trace(m);
  stalloc::bind_replay(m);
  stalloc::bind_placements(m);
  stalloc::bind_compat(m);
  m.def("format_bytes", &stalloc::format_bytes, pybind11::arg("size"));
}
