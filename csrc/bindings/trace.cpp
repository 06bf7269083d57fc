// Traces and what is read out of them.
#include "trace/trace.h"

#include <pybind11/stl.h>

#include <algorithm>
#include <memory>

#include "bindings/columns.h"
#include "bindings/interruptible.h"
#include "bindings/parts.h"
#include "bindings/phases.h"
#include "plan/build.h"
#include "profile/lifetimes.h"
#include "trace/fingerprint.h"
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

py::dict requests_of(const py::object& self) {
  const auto& rows = self.cast<const trace::Trace&>().requests;
  py::dict d;
  d["size"] = column(self, rows, [](auto& r) -> auto& { return r.size; });
  d["lower"] = column(self, rows, [](auto& r) -> auto& { return r.lower; });
  d["upper"] = column(self, rows, [](auto& r) -> auto& { return r.upper; });
  d["phase_begin"] = column(self, rows, [](auto& r) -> auto& { return r.phase_begin; });
  d["phase_end"] = column(self, rows, [](auto& r) -> auto& { return r.phase_end; });
  d["layer_begin"] = column(self, rows, [](auto& r) -> auto& { return r.layer_begin; });
  d["layer_end"] = column(self, rows, [](auto& r) -> auto& { return r.layer_end; });
  d["stream"] = column(self, rows, [](auto& r) -> auto& { return r.stream; });
  d["thread"] = column(self, rows, [](auto& r) -> auto& { return r.thread; });
  d["dynamic"] = column(self, rows, [](auto& r) -> auto& { return r.dynamic; });
  return d;
}

py::dict phases_of(const py::object& self) {
  const auto& rows = self.cast<const trace::Trace&>().phases;
  py::dict d = phase_columns(self, rows);
  d["iteration"] = column(self, rows, [](auto& r) -> auto& { return r.iteration; });
  return d;
}

py::dict layer_spans_of(const py::object& self) {
  const auto& rows = self.cast<const trace::Trace&>().layer_spans;
  py::dict d;
  d["layer"] = column(self, rows, [](auto& r) -> auto& { return r.layer; });
  d["phase"] = column(self, rows, [](auto& r) -> auto& { return r.phase; });
  d["begin"] = column(self, rows, [](auto& r) -> auto& { return r.begin; });
  d["end"] = column(self, rows, [](auto& r) -> auto& { return r.end; });
  d["recompute"] = column(self, rows, [](auto& r) -> auto& { return r.recompute; });
  return d;
}

py::dict profiled_requests_of(const py::object& self) {
  const auto& profile = self.cast<const profile::IterationProfile&>();
  const auto& rows = profile.requests;
  py::array_t<bool> plannable(static_cast<py::ssize_t>(rows.size()));
  for (std::size_t i = 0; i < rows.size(); ++i) {
    plannable.mutable_at(i) = profile.is_plannable(rows[i]);
  }
  py::dict d;
  d["request"] = column(self, rows, [](auto& r) -> auto& { return r.request; });
  d["size"] = column(self, rows, [](auto& r) -> auto& { return r.size; });
  d["lower"] = column(self, rows, [](auto& r) -> auto& { return r.lower; });
  d["upper"] = column(self, rows, [](auto& r) -> auto& { return r.upper; });
  d["phase_begin"] = column(self, rows, [](auto& r) -> auto& { return r.phase_begin; });
  d["phase_end"] = column(self, rows, [](auto& r) -> auto& { return r.phase_end; });
  d["layer_begin"] = column(self, rows, [](auto& r) -> auto& { return r.layer_begin; });
  d["layer_end"] = column(self, rows, [](auto& r) -> auto& { return r.layer_end; });
  d["stream"] = column(self, rows, [](auto& r) -> auto& { return r.stream; });
  d["thread"] = column(self, rows, [](auto& r) -> auto& { return r.thread; });
  d["lifetime"] = column(self, rows, [](auto& r) -> auto& { return r.lifetime; });
  d["dynamic"] = column(self, rows, [](auto& r) -> auto& { return r.dynamic; });
  d["plannable"] = plannable;
  return d;
}

// A place, and the most that any compared iteration asked for there.
struct PlaceRow {
  PhaseIndex phase = kNone;
  PhaseIndex phase_end = kNone;
  StreamId stream = 0;
  Tick lower = 0;
  Tick upper = 0;
  std::int64_t requests = 0;
  Bytes bytes = 0;
};

py::dict places_of(const profile::IterationProfile& profile) {
  auto rows = std::make_shared<std::vector<PlaceRow>>();
  for (const profile::DynamicPlace& place : profile.places) {
    PlaceRow row{place.phase, place.phase_end, place.stream, place.lower, place.upper};
    for (const auto& sightings : place.sightings) {
      Bytes bytes = 0;
      for (const profile::DynamicSighting& s : sightings) bytes += s.size;
      row.requests = std::max(row.requests, static_cast<std::int64_t>(sightings.size()));
      row.bytes = std::max(row.bytes, bytes);
    }
    rows->push_back(row);
  }
  const py::capsule owner(new auto(rows), [](void* p) {
    delete static_cast<std::shared_ptr<std::vector<PlaceRow>>*>(p);
  });
  py::dict d;
  d["phase"] = column(owner, *rows, [](auto& r) -> auto& { return r.phase; });
  d["phase_end"] = column(owner, *rows, [](auto& r) -> auto& { return r.phase_end; });
  d["stream"] = column(owner, *rows, [](auto& r) -> auto& { return r.stream; });
  d["lower"] = column(owner, *rows, [](auto& r) -> auto& { return r.lower; });
  d["upper"] = column(owner, *rows, [](auto& r) -> auto& { return r.upper; });
  d["requests"] = column(owner, *rows, [](auto& r) -> auto& { return r.requests; });
  d["bytes"] = column(owner, *rows, [](auto& r) -> auto& { return r.bytes; });
  return d;
}

plan::Plan plan_of(const trace::Trace& trace, const std::string& algorithm, Bytes alignment,
                   double time_limit, bool regions, bool dynamic, bool ordered,
                   const py::object& progress) {
  const plan::PlanOptions options{
      algorithm, alignment, time_limit,
      regions,   dynamic,   ordered ? solve::Streams::kOrdered : solve::Streams::kSeparate};
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

  py::class_<profile::IterationProfile, std::shared_ptr<profile::IterationProfile>>(
      m, "IterationProfile")
      .def_readonly("iteration", &profile::IterationProfile::iteration)
      .def_readonly("compared", &profile::IterationProfile::compared)
      .def_readonly("period", &profile::IterationProfile::period)
      .def_readonly("load", &profile::IterationProfile::load)
      .def("phases",
           [](const py::object& self) {
             return phase_columns(self, self.cast<const profile::IterationProfile&>().phases);
           })
      .def("requests", &profiled_requests_of)
      .def("places", &places_of);

  py::class_<trace::Trace, std::shared_ptr<trace::Trace>>(m, "Trace")
      .def_readwrite("info", &trace::Trace::info)
      .def_readonly("end", &trace::Trace::end)
      .def_readonly("layers", &trace::Trace::layers)
      .def_readonly("iterations", &trace::Trace::iterations)
      .def("requests", &requests_of)
      .def("phases", &phases_of)
      .def("layer_spans", &layer_spans_of)
      .def("check", &trace::Trace::check, ReleaseGil())
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
           py::arg("regions"), py::arg("dynamic"), py::arg("ordered"), py::arg("progress"));
}

}  // namespace stalloc::bindings
