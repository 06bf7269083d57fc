// Traces, profiles and their tables.
#include "trace/trace.h"

#include <pybind11/stl.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "bindings/columns.h"
#include "bindings/interruptible.h"
#include "bindings/parts.h"
#include "bindings/streams.h"
#include "plan/build.h"
#include "profile/lifetimes.h"
#include "trace/fingerprint.h"
#include "trace/trace_columns.h"
#include "trace/trace_json.h"

namespace py = pybind11;

namespace stalloc::bindings {
namespace {

using ReleaseGil = py::call_guard<py::gil_scoped_release>;

py::bytes json_bytes(const trace::Trace& trace) {
  std::string text;
  {
    const py::gil_scoped_release no_gil;
    text = to_json(trace);
  }
  return text;
}

// Binds a table that a trace or a profile holds.
template <auto Rows, typename Owner>
auto table_of(const auto& columns) {
  return [&columns](const py::object& self) {
    return table(self, self.cast<const Owner&>().*Rows, columns);
  };
}

// The trace as if no request that outlives its iteration were ever freed: a plan then has no
// address for any of them, and its pool is empty between iterations.
trace::Trace without_frees_of_later_iterations(const trace::Trace& trace) {
  trace::Trace result = trace;
  for (trace::Request& request : result.requests) {
    const auto end = std::ranges::upper_bound(trace.iterations, request.lower);
    if (end == trace.iterations.end() || request.upper <= *end) continue;
    request.hidden = std::exchange(request.upper, kNever);
    request.phase_end = kNone;
    request.layer_end = kNone;
  }
  return result;
}

py::dict extents_of(const trace::Trace& trace) {
  const auto rows = static_cast<py::ssize_t>(trace.extents.size());
  const auto names = static_cast<py::ssize_t>(trace.extent_names.size());
  py::array_t<std::int32_t> phase(rows);
  py::array_t<std::int64_t> values({rows, names});
  for (py::ssize_t i = 0; i < rows; ++i) {
    const trace::MicrobatchExtents& row = trace.extents[static_cast<std::size_t>(i)];
    phase.mutable_at(i) = row.phase.number();
    for (py::ssize_t e = 0; e < names; ++e) {
      values.mutable_at(i, e) = row.values[static_cast<std::size_t>(e)];
    }
  }
  py::dict arrays;
  arrays["phase"] = phase;
  arrays["values"] = values;
  for (const auto& [name, array] : arrays) array.attr("setflags")(py::arg("write") = false);
  return arrays;
}

using Profiled = profile::ProfiledRequest;
constexpr std::tuple kProfiledColumns{
    Column<&Profiled::request>{"request"},
    Column<&Profiled::size>{"size"},
    Column<&Profiled::lower>{"lower"},
    Column<&Profiled::upper>{"upper"},
    Column<&Profiled::phase_begin>{"phase_begin"},
    Column<&Profiled::phase_end>{"phase_end"},
    Column<&Profiled::layer_begin>{"layer_begin"},
    Column<&Profiled::layer_end>{"layer_end"},
    Column<&Profiled::stream>{"stream"},
    Column<&Profiled::thread>{"thread"},
    Column<&Profiled::lifetime>{"lifetime"},
    Column<&Profiled::dynamic>{"dynamic"},
};

py::dict profiled_requests_of(const py::object& self) {
  const auto& profile = self.cast<const profile::IterationProfile&>();
  const auto& rows = profile.requests;
  py::array_t<bool> plannable(static_cast<py::ssize_t>(rows.size()));
  for (std::size_t i = 0; i < rows.size(); ++i) {
    plannable.mutable_at(i) = profile.is_plannable(rows[i]);
  }
  py::dict columns = table(self, rows, kProfiledColumns);
  columns["plannable"] = plannable;
  return columns;
}

// A group, and the most requests and bytes of any compared iteration there.
struct GroupRow {
  PhaseIndex phase = kNone;
  PhaseIndex phase_end = kNone;
  StreamId stream = 0;
  Tick lower = 0;
  Tick upper = 0;
  std::int64_t requests = 0;
  Bytes bytes = 0;
};

constexpr std::tuple kGroupColumns{
    Column<&GroupRow::phase>{"phase"},   Column<&GroupRow::phase_end>{"phase_end"},
    Column<&GroupRow::stream>{"stream"}, Column<&GroupRow::lower>{"lower"},
    Column<&GroupRow::upper>{"upper"},   Column<&GroupRow::requests>{"requests"},
    Column<&GroupRow::bytes>{"bytes"},
};

py::dict groups_of(const profile::IterationProfile& profile) {
  std::vector<GroupRow> rows;
  for (const profile::ProfiledGroup& group : profile.groups) {
    GroupRow row{group.phase, group.phase_end, group.stream, group.lower, group.upper};
    for (const auto& sightings : group.sightings) {
      Bytes bytes = 0;
      for (const profile::DynamicSighting& s : sightings) bytes += s.size;
      row.requests = std::max(row.requests, static_cast<std::int64_t>(sightings.size()));
      row.bytes = std::max(row.bytes, bytes);
    }
    rows.push_back(row);
  }
  return owning_table(std::move(rows), kGroupColumns);
}

plan::Plan plan_of(const trace::Trace& trace, const std::string& algorithm, Bytes alignment,
                   std::optional<double> time_limit, bool regions, bool dynamic,
                   solve::Streams streams, bool share, const py::object& progress) {
  const plan::PlanOptions options{algorithm, alignment, time_limit, regions,
                                  dynamic,   streams,   share};
  return run_interruptibly(progress, [&](const std::atomic<bool>* cancel, const auto& report) {
    plan::Plan plan = plan::make_plan(profile::profile_iteration(trace), options, cancel, report);
    plan.info = trace.info;
    plan.fingerprint = trace::fingerprint(trace);
    return plan;
  });
}

}  // namespace

void bind_trace(py::module_& m) {
  m.attr("NEVER") = kNever;
  py::list kinds;
  for (int i = 0; i <= static_cast<int>(trace::PhaseKind::kUnplanned); ++i) {
    kinds.append(to_string(static_cast<trace::PhaseKind>(i)));
  }
  m.attr("PHASE_KINDS") = py::tuple(kinds);
  py::list lifetimes;
  for (int i = 0; i <= static_cast<int>(profile::LifetimeClass::kPersistent); ++i) {
    lifetimes.append(to_string(static_cast<profile::LifetimeClass>(i)));
  }
  m.attr("LIFETIME_CLASSES") = py::tuple(lifetimes);
  py::dict tables;
  tables["phases"] = describe<trace::PhaseSpan>(trace::kPhaseSpanColumns);
  tables["layer_spans"] = describe<trace::LayerSpan>(trace::kLayerSpanColumns);
  tables["orders"] = describe<Order>(trace::kOrderColumns);
  tables["requests"] = describe<trace::Request>(trace::kRequestColumns);
  m.attr("TRACE_TABLES") = tables;

  py::class_<profile::IterationProfile, std::shared_ptr<profile::IterationProfile>>(
      m, "IterationProfile")
      .def_readonly("iteration", &profile::IterationProfile::iteration)
      .def_readonly("compared", &profile::IterationProfile::compared)
      .def_readonly("period", &profile::IterationProfile::period)
      .def_readonly("load", &profile::IterationProfile::load)
      .def("phases", table_of<&profile::IterationProfile::phases, profile::IterationProfile>(
                         trace::kPhaseColumns<profile::ProfiledPhase>))
      .def("requests", &profiled_requests_of)
      .def("groups", &groups_of);

  py::class_<trace::Trace, std::shared_ptr<trace::Trace>>(m, "Trace")
      .def_readwrite("info", &trace::Trace::info)
      .def_readonly("end", &trace::Trace::end)
      .def_readonly("layers", &trace::Trace::layers)
      .def_readonly("iterations", &trace::Trace::iterations)
      .def("requests", table_of<&trace::Trace::requests, trace::Trace>(trace::kRequestColumns))
      .def("phases", table_of<&trace::Trace::phases, trace::Trace>(trace::kPhaseSpanColumns))
      .def("layer_spans",
           table_of<&trace::Trace::layer_spans, trace::Trace>(trace::kLayerSpanColumns))
      .def_readonly("extent_names", &trace::Trace::extent_names)
      .def("extents", &extents_of)
      .def("orders", table_of<&trace::Trace::orders, trace::Trace>(trace::kOrderColumns))
      .def("check", &trace::Trace::check, ReleaseGil())
      .def(
          "without_frees_of_later_iterations",
          [](const trace::Trace& t) {
            return std::make_shared<trace::Trace>(without_frees_of_later_iterations(t));
          },
          ReleaseGil())
      .def("to_json", &json_bytes)
      .def_static(
          "from_json",
          [](const py::bytes& text, const std::string& source) {
            const std::string_view view = text;
            const py::gil_scoped_release no_gil;
            return std::make_shared<trace::Trace>(trace::trace_from_json(view, source));
          },
          py::arg("text"), py::arg("source"))
      .def("fingerprint", &trace::fingerprint, ReleaseGil())
      .def(
          "profile",
          [](const trace::Trace& t) {
            return std::make_shared<profile::IterationProfile>(profile::profile_iteration(t));
          },
          ReleaseGil())
      .def("plan", &plan_of, py::arg("algorithm"), py::arg("alignment"), py::arg("time_limit"),
           py::arg("regions"), py::arg("dynamic"), py::arg("streams"), py::arg("share"),
           py::arg("progress"));
}

}  // namespace stalloc::bindings
