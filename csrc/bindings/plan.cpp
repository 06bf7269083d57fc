// Plans and their tables. Trace.plan, in trace.cpp, makes them.
#include "plan/plan.h"

#include <pybind11/stl.h>

#include <memory>

#include "bindings/columns.h"
#include "bindings/parts.h"
#include "bindings/streams.h"
#include "plan/anchors.h"
#include "plan/plan_columns.h"
#include "plan/plan_json.h"
#include "plan/resize.h"
#include "trace/trace_columns.h"

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

// Binds a table that a plan holds.
template <auto Rows>
auto table_of(const auto& columns) {
  return [&columns](const py::object& self) {
    return table(self, self.cast<const plan::Plan&>().*Rows, columns);
  };
}

constexpr const auto& kPhaseColumns = trace::kPhaseColumns<profile::ProfiledPhase>;

}  // namespace

void bind_plan(py::module_& m) {
  py::dict tables;
  tables["phases"] = describe<profile::ProfiledPhase>(kPhaseColumns);
  tables["decisions"] = describe<plan::Decision>(plan::kDecisionColumns);
  tables["orders"] = describe<Order>(trace::kOrderColumns);
  tables["groups"] = describe<plan::DynamicGroup>(plan::kGroupColumns);
  tables["persistent"] = describe<plan::PersistentRequest>(plan::kPersistentColumns);
  tables["startup"] = describe<plan::StartupRequest>(plan::kStartupColumns);
  tables["slots"] = describe<plan::SlotClass>(plan::kSlotColumns);
  tables["slot_decisions"] = describe<plan::SlotDecisionRow>(plan::kSlotDecisionColumns);
  tables["slot_startup"] = describe<plan::SlotStartupRow>(plan::kSlotStartupColumns);
  tables["turns"] = describe<plan::TurnRow>(plan::kTurnColumns);
  tables["contexts"] = describe<plan::ContextRow>(plan::kContextColumns);
  tables["laws"] = describe<profile::SizeLaw>(plan::kLawColumns);
  tables["law_terms"] = describe<plan::LawTermRow>(plan::kLawTermColumns);
  tables["reusable"] = describe<plan::ReusableRow>(plan::kReusableColumns);
  m.attr("PLAN_TABLES") = tables;
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
      .def_property_readonly("absent",
                             [](const plan::Plan& plan) {
                               std::vector<std::int32_t> numbers;
                               for (const plan::DecisionIndex d : plan.absent) {
                                 numbers.push_back(d.number());
                               }
                               return numbers;
                             })
      .def_readonly("bound", &plan::Plan::bound)
      .def_readonly("load", &plan::Plan::load)
      .def_readonly("alignment", &plan::Plan::alignment)
      .def_readonly("period", &plan::Plan::period)
      .def_property_readonly("gap", &plan::Plan::gap)
      .def_readonly("streams", &plan::Plan::streams)
      .def("phases", table_of<&plan::Plan::phases>(kPhaseColumns))
      .def("decisions", table_of<&plan::Plan::decisions>(plan::kDecisionColumns))
      .def("groups", table_of<&plan::Plan::groups>(plan::kGroupColumns))
      .def("startup", table_of<&plan::Plan::startup>(plan::kStartupColumns))
      .def("slots", table_of<&plan::Plan::slots>(plan::kSlotColumns))
      .def("slot_decisions",
           [](const plan::Plan& plan) {
             return owning_table(plan::slot_decision_rows(plan), plan::kSlotDecisionColumns);
           })
      .def("turns",
           [](const plan::Plan& plan) {
             return owning_table(plan::turn_rows(plan), plan::kTurnColumns);
           })
      .def_readonly("extent_names", &plan::Plan::extent_names)
      .def_readonly("extents", &plan::Plan::extents)
      .def_readonly("seen", &plan::Plan::seen)
      .def("laws", table_of<&plan::Plan::laws>(plan::kLawColumns))
      .def("law_terms",
           [](const plan::Plan& plan) {
             return owning_table(plan::law_term_rows(plan), plan::kLawTermColumns);
           })
      .def("kinds_of_laws",
           [](const plan::Plan& plan) {
             std::vector<std::string> kinds;
             for (const profile::SizeLaw& law : plan.laws) kinds.emplace_back(kind_of(law));
             return kinds;
           })
      .def(
          "resize",
          [](const plan::Plan& plan, const std::vector<profile::Extent>& extents,
             std::optional<double> time_limit) {
            plan::ResizeOptions options;
            if (time_limit) {
              options.time_limit = *time_limit;
            } else {
              options.layout.work = plan::kLayoutWork;
            }
            options.anchors = plan::anchors_of(plan);
            return std::make_shared<plan::Plan>(plan::resize(plan, extents, options));
          },
          py::arg("extents"), py::arg("time_limit") = py::none(), ReleaseGil())
      .def(
          "bound_at",
          [](const plan::Plan& plan, const std::vector<profile::Extent>& extents) {
            return plan::bound_at(plan, extents);
          },
          py::arg("extents"), ReleaseGil())
      .def("reusable",
           [](const plan::Plan& plan) {
             return owning_table(plan::reusable_rows(plan), plan::kReusableColumns);
           })
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
