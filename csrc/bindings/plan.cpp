// Plans and what is read out of them. Making one is Trace.plan, in trace.cpp.
#include "plan/plan.h"

#include <pybind11/stl.h>

#include <memory>

#include "bindings/columns.h"
#include "bindings/parts.h"
#include "bindings/phases.h"
#include "plan/plan_json.h"

namespace py = pybind11;

namespace stalloc {
namespace {

using ReleaseGil = py::call_guard<py::gil_scoped_release>;

py::bytes json_bytes(const Plan& plan) {
  std::string text;
  {
    const py::gil_scoped_release no_gil;
    text = to_json(plan);
  }
  return text;
}

py::dict decisions_of(const py::object& self) {
  const auto& rows = self.cast<const Plan&>().decisions;
  py::dict d;
  d["size"] = column(self, rows, [](auto& r) -> auto& { return r.size; });
  d["offset"] = column(self, rows, [](auto& r) -> auto& { return r.offset; });
  d["lower"] = column(self, rows, [](auto& r) -> auto& { return r.lower; });
  d["upper"] = column(self, rows, [](auto& r) -> auto& { return r.upper; });
  d["phase"] = column(self, rows, [](auto& r) -> auto& { return r.phase; });
  d["phase_end"] = column(self, rows, [](auto& r) -> auto& { return r.phase_end; });
  d["stream"] = column(self, rows, [](auto& r) -> auto& { return r.stream; });
  return d;
}

py::dict opening_of(const py::object& self) {
  const auto& rows = self.cast<const Plan&>().opening;
  py::dict d;
  d["phase"] = column(self, rows, [](auto& r) -> auto& { return r.phase; });
  d["after"] = column(self, rows, [](auto& r) -> auto& { return r.after; });
  d["size"] = column(self, rows, [](auto& r) -> auto& { return r.size; });
  d["offset"] = column(self, rows, [](auto& r) -> auto& { return r.offset; });
  d["lower"] = column(self, rows, [](auto& r) -> auto& { return r.lower; });
  d["upper"] = column(self, rows, [](auto& r) -> auto& { return r.upper; });
  d["stream"] = column(self, rows, [](auto& r) -> auto& { return r.stream; });
  return d;
}

py::dict groups_of(const py::object& self) {
  const auto& rows = self.cast<const Plan&>().groups;
  py::dict d;
  d["phase"] = column(self, rows, [](auto& r) -> auto& { return r.phase; });
  d["after"] = column(self, rows, [](auto& r) -> auto& { return r.after; });
  d["size"] = column(self, rows, [](auto& r) -> auto& { return r.size; });
  d["offset"] = column(self, rows, [](auto& r) -> auto& { return r.offset; });
  d["lower"] = column(self, rows, [](auto& r) -> auto& { return r.lower; });
  d["upper"] = column(self, rows, [](auto& r) -> auto& { return r.upper; });
  d["phase_end"] = column(self, rows, [](auto& r) -> auto& { return r.phase_end; });
  d["stream"] = column(self, rows, [](auto& r) -> auto& { return r.stream; });
  return d;
}

py::dict reusable_of(const Plan& plan) {
  const auto rows = std::make_shared<const std::vector<ReusableRow>>(reusable_rows(plan));
  const py::capsule owner(new auto(rows), [](void* p) {
    delete static_cast<std::shared_ptr<const std::vector<ReusableRow>>*>(p);
  });
  py::dict d;
  d["group"] = column(owner, *rows, [](auto& r) -> auto& { return r.group; });
  d["begin"] = column(owner, *rows, [](auto& r) -> auto& { return r.range.begin; });
  d["end"] = column(owner, *rows, [](auto& r) -> auto& { return r.range.end; });
  return d;
}

}  // namespace

void bind_plan(py::module_& m) {
  py::class_<Plan, std::shared_ptr<Plan>>(m, "Plan")
      .def_readwrite("info", &Plan::info)
      .def_readwrite("dynamic", &Plan::dynamic)
      .def_readonly("headroom", &Plan::headroom)
      .def_readonly("headroom_cost", &Plan::headroom_cost)
      .def_readonly("headroom_saves", &Plan::headroom_saves)
      .def_readonly("fingerprint", &Plan::fingerprint)
      .def_readonly("algorithm", &Plan::algorithm)
      .def_readonly("optimal", &Plan::optimal)
      .def_readonly("pool", &Plan::pool)
      .def_readonly("resident", &Plan::resident)
      .def_readonly("absent", &Plan::absent)
      .def_readonly("bound", &Plan::bound)
      .def_readonly("load", &Plan::load)
      .def_readonly("alignment", &Plan::alignment)
      .def_readonly("period", &Plan::period)
      .def_property_readonly("gap", &Plan::gap)
      .def_property_readonly("ordered",
                             [](const Plan& plan) { return plan.streams == Streams::kOrdered; })
      .def("phases",
           [](const py::object& self) {
             return phase_columns(self, self.cast<const Plan&>().phases);
           })
      .def("decisions", &decisions_of)
      .def("groups", &groups_of)
      .def("opening", &opening_of)
      .def("reusable", &reusable_of)
      .def("check", &Plan::check, ReleaseGil())
      .def("to_json", &json_bytes)
      .def_static(
          "from_json",
          [](const py::bytes& text, const std::string& source) {
            const std::string_view view = text;
            const py::gil_scoped_release no_gil;
            return std::make_shared<Plan>(plan_from_json(view, source));
          },
          py::arg("text"), py::arg("source"));
}

}  // namespace stalloc
