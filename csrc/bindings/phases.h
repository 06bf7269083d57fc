// Phases as NumPy columns: of a trace, a profile or a plan.
#pragma once

#include "bindings/columns.h"
#include "trace/trace.h"

namespace stalloc::bindings {

// `Row` has a PhaseKey `key`, a `begin` and an `end`.
template <typename Row>
pybind11::dict phase_columns(const pybind11::object& owner, const std::vector<Row>& rows) {
  pybind11::dict d;
  d["kind"] = column(owner, rows, [](auto& r) -> auto& { return r.key.kind; });
  d["microbatch"] = column(owner, rows, [](auto& r) -> auto& { return r.key.microbatch; });
  d["chunk"] = column(owner, rows, [](auto& r) -> auto& { return r.key.chunk; });
  d["occurrence"] = column(owner, rows, [](auto& r) -> auto& { return r.key.occurrence; });
  d["begin"] = column(owner, rows, [](auto& r) -> auto& { return r.begin; });
  d["end"] = column(owner, rows, [](auto& r) -> auto& { return r.end; });
  return d;
}

}  // namespace stalloc::bindings
