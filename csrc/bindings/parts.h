// The parts of the Python module in binding order: a part may use the types of those above it.
#pragma once

#include <pybind11/pybind11.h>

namespace stalloc::bindings {

void bind_errors();
void bind_trace(pybind11::module_& m);
void bind_plan(pybind11::module_& m);
void bind_planner(pybind11::module_& m);
void bind_runtime(pybind11::module_& m);
void bind_make_trace(pybind11::module_& m);
void bind_replay(pybind11::module_& m);
void bind_placements(pybind11::module_& m);
void bind_compat(pybind11::module_& m);
void bind_graphs(pybind11::module_& m);

}  // namespace stalloc::bindings
