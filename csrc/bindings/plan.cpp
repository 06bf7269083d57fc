// Plans and what is read out of them. Making one is Trace.plan, in trace.cpp.
#include "plan/plan.h"

#include <pybind11/stl.h>

#include <memory>

#include "bindings/columns.h"
#include "bindings/parts.h"
#include "bindings/phases.h"
#include "plan/plan_json.h"

namespace py = pybind11;

namespace stalloc::bindings {
namespace {

using ReleaseGil = py::call_guard<py::gil_scoped_release>;

py::bytes json_bytes(const plan::Plan& plan) {
  std::string text;
  {
    const py::gil_scoped_release no_gil;
    text = to_json(plan);
  }
  return text;
}

py::dict decisions_of(const py::object& self) {
  const auto& rows = self.cast<const plan::Plan&>().decisions;
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
  const auto& rows = self.cast<const plan::Plan&>().opening;
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
  const auto& rows = self.cast<const plan::Plan&>().groups;
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

py::dict reusable_of(const plan::Plan& plan) {
  const auto rows =
      std::make_shared<const std::vector<plan::ReusableRow>>(plan::reusable_rows(plan));
  const py::capsule owner(new auto(rows), [](void* p) {
    delete static_cast<std::shared_ptr<const std::vector<plan::ReusableRow>>*>(p);
  });
  py::dict d;
  d["group"] = column(owner, *rows, [](auto& r) -> auto& { return r.group; });
  d["begin"] = column(owner, *rows, [](auto& r) -> auto& { return r.range.begin; });
  d["end"] = column(owner, *rows, [](auto& r) -> auto& { return r.range.end; });
  return d;
}

}  // namespace

void bind_plan(py::module_& m) {
  py::class_<plan::Plan, std::shared_ptr<plan::Plan>>(m, "Plan")
      .def_readwrite("info", &plan::Plan::info)
      .def_readwrite("dynamic", &plan::Plan::dynamic)
      .def_readonly("headroom", &plan::Plan::headroom)
      .def_readonly("headroom_cost", &plan::Plan::headroom_cost)
      .def_readonly("headroom_saves", &plan::Plan::headroom_saves)
      .def_readonly("fingerprint", &plan::Plan::fingerprint)
      .def_readonly("algorithm", &plan::Plan::algorithm)
      .def_readonly("optimal", &plan::Plan::optimal)
      .def_readonly("pool", &plan::Plan::pool)
      .def_readonly("resident", &plan::Plan::resident)
      .def_readonly("absent", &plan::Plan::absent)
      .def_readonly("bound", &plan::Plan::bound)
      .def_readonly("load", &plan::Plan::load)
      .def_readonly("alignment", &plan::Plan::alignment)
      .def_readonly("period", &plan::Plan::period)
      .def_property_readonly("gap", &plan::Plan::gap)
      .def_property_readonly(
          "ordered",
          [](const plan::Plan& plan) { return plan.streams == solve::Streams::kOrdered; })
      .def("phases",
           [](const py::object& self) {
             return phase_columns(self, self.cast<const plan::Plan&>().phases);
           })
      .def("decisions", &decisions_of)
      .def("groups", &groups_of)
      .def("opening", &opening_of)
      .def("reusable", &reusable_of)
      .def("check", &plan::Plan::check, ReleaseGil())
      .def("to_json", &json_bytes)
      .def_static(
          "from_json",
          [](const py::bytes& text, const std::string& source) {
            const std::string_view view = text;
            const py::gil_scoped_release no_gil;
            return std::make_shared<plan::Plan>(plan::plan_from_json(view, source));
          },
          py::arg("text"), py::arg("source"));
}

}  // namespace stalloc::bindings
