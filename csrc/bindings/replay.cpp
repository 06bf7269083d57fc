// Replaying traces, and the model of torch's allocator one request at a time.
#include "replay/replay.h"

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "bindings/interruptible.h"
#include "bindings/parts.h"

namespace py = pybind11;

namespace stalloc::bindings {
namespace {

py::dict to_dict(const replay::ReplayResult& r, const trace::Trace& trace) {
  py::dict d;
  d["load"] = r.load;
  d["reserved"] = r.reserved;
  d["peak_load"] = r.peak_load;
  d["peak_reserved"] = r.peak_reserved;
  d["efficiency"] = r.efficiency();
  d["native_calls"] = r.native_calls();
  d["mallocs"] = r.mallocs;
  d["frees"] = r.frees;
  d["maps"] = r.maps;
  d["unmaps"] = r.unmaps;
  d["hits"] = r.hits;
  d["misses"] = r.misses;
  d["pool"] = r.pool;
  d["beside"] = r.beside;
  d["moves"] = r.moves;
  d["failed"] = r.failed;
  d["failed_size"] =
      r.failed == kNone ? 0 : trace.requests[static_cast<std::size_t>(r.failed)].size;
  return d;
}

// Zero or less means no limit.
Bytes or_unlimited(Bytes limit) { return limit > 0 ? limit : replay::CachingSettings::kUnlimited; }

replay::CachingSettings make_settings(bool expandable_segments, Bytes max_split_size,
                                      double garbage_collection_threshold,
                                      const std::vector<std::int64_t>& roundup_power2_divisions,
                                      Bytes max_non_split_rounding, Bytes capacity) {
  replay::CachingSettings settings;
  settings.expandable_segments = expandable_segments;
  settings.max_split_size = or_unlimited(max_split_size);
  if (max_non_split_rounding > 0) settings.max_non_split_rounding = max_non_split_rounding;
  settings.garbage_collection_threshold = garbage_collection_threshold;
  settings.capacity = or_unlimited(capacity);
  if (roundup_power2_divisions.size() > replay::CachingSettings::kRoundupIntervals) {
    throw Error("there are " + std::to_string(replay::CachingSettings::kRoundupIntervals) +
                " intervals for roundup_power2_divisions, not " +
                std::to_string(roundup_power2_divisions.size()));
  }
  std::copy(roundup_power2_divisions.begin(), roundup_power2_divisions.end(),
            settings.roundup_power2_divisions.begin());
  return settings;
}

py::dict to_dict(const replay::CachingStats& s) {
  py::dict d;
  d["requested"] = s.requested.current;
  d["peak_requested"] = s.requested.peak;
  d["allocated"] = s.allocated.current;
  d["peak_allocated"] = s.allocated.peak;
  d["reserved"] = s.reserved.current;
  d["peak_reserved"] = s.reserved.peak;
  d["mallocs"] = s.mallocs;
  d["frees"] = s.frees;
  d["maps"] = s.maps;
  d["unmaps"] = s.unmaps;
  d["retries"] = s.retries;
  d["ooms"] = s.ooms;
  return d;
}

}  // namespace

void bind_replay(py::module_& m) {
  py::class_<replay::CachingSettings>(m, "CachingSettings")
      .def(py::init(&make_settings), py::kw_only(), py::arg("expandable_segments") = false,
           py::arg("max_split_size") = 0, py::arg("garbage_collection_threshold") = 0.0,
           py::arg("roundup_power2_divisions") = std::vector<std::int64_t>(),
           py::arg("max_non_split_rounding") = 0, py::arg("capacity") = 0);

  py::class_<replay::CachingModel>(m, "CachingModel")
      .def(py::init<const replay::CachingSettings&>(),
           py::arg("settings") = replay::CachingSettings{})
      .def(
          "malloc",
          [](replay::CachingModel& model, Bytes size, StreamId stream) -> py::object {
            const replay::CachingModel::Id id = model.malloc(size, stream);
            if (id == replay::CachingModel::kOutOfMemory) return py::none();
            return py::int_(id);
          },
          py::arg("size"), py::arg("stream") = 0)
      .def("free", &replay::CachingModel::free, py::arg("id"))
      .def("empty_cache", &replay::CachingModel::empty_cache)
      .def("reset_peaks", &replay::CachingModel::reset_peaks)
      .def("stats", [](const replay::CachingModel& model) { return to_dict(model.stats()); })
      .def("check", &replay::CachingModel::check);

  m.def(
      "replay_caching",
      [](const trace::Trace& trace, const replay::CachingSettings& settings) {
        const replay::ReplayResult result = run_interruptibly(
            py::none(),
            [&](const auto*, const auto&) { return replay::replay_caching(trace, settings); });
        return to_dict(result, trace);
      },
      py::arg("trace"), py::arg("settings"));
  m.def(
      "replay_stitching",
      [](const trace::Trace& trace, Bytes fragment_limit, Bytes capacity) {
        replay::StitchingSettings settings;
        settings.fragment_limit = fragment_limit;
        settings.capacity = or_unlimited(capacity);
        const replay::ReplayResult result = run_interruptibly(
            py::none(),
            [&](const auto*, const auto&) { return replay::replay_stitching(trace, settings); });
        return to_dict(result, trace);
      },
      py::arg("trace"), py::arg("fragment_limit") = replay::StitchingSettings{}.fragment_limit,
      py::arg("capacity") = 0);
  m.def(
      "replay_planned",
      [](const trace::Trace& trace, const plan::Plan& plan, Bytes capacity, bool reuse,
         bool startup, Bytes page, const std::optional<replay::CachingSettings>& torch,
         bool thrifty) {
        const replay::PlannedReplay options{.capacity = or_unlimited(capacity),
                                            .reuse = reuse,
                                            .startup = startup,
                                            .torch = torch,
                                            .thrifty = thrifty,
                                            .page = page};
        const replay::ReplayResult result = run_interruptibly(
            py::none(),
            [&](const auto*, const auto&) { return replay::replay_planned(trace, plan, options); });
        return to_dict(result, trace);
      },
      py::arg("trace"), py::arg("plan"), py::arg("capacity") = 0, py::arg("reuse") = true,
      py::arg("startup") = true, py::arg("page") = 1, py::arg("torch") = py::none(),
      py::arg("thrifty") = false);
  m.def(
      "unroll",
      [](const plan::Plan& plan, std::int32_t repetitions, bool startup) {
        return std::make_shared<trace::Trace>(replay::unroll(plan, repetitions, startup));
      },
      py::arg("plan"), py::arg("repetitions"), py::arg("startup"),
      py::call_guard<py::gil_scoped_release>());
}

}  // namespace stalloc::bindings
