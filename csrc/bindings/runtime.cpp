// The runtime for Python: each device has a Runtime object, which is also the sink of the hooks.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "base/format.h"
#include "bindings/index.h"
#include "bindings/parts.h"
#include "runtime/device_runtime.h"

namespace py = pybind11;

namespace stalloc::bindings {
namespace {

using ReleaseGil = py::call_guard<py::gil_scoped_release>;

py::dict to_dict(const runtime::Statistics& s) {
  py::dict d;
  d["iterations"] = s.iterations;
  d["planned"] = s.planned;
  d["requests"] = s.requests();
  d["served_as_planned"] = s.served_as_planned();
  d["hits"] = s.hits;
  d["misses"] = s.misses;
  d["startup"] = s.startup;
  d["startup_requests"] = s.startup_requests;
  d["conflicts"] = s.conflicts;
  d["dynamic_requests"] = s.dynamic_requests;
  d["dynamic_region_requests"] = s.dynamic_region_requests;
  d["dynamic_reused_requests"] = s.dynamic_reused_requests;
  d["dynamic_fallback_requests"] = s.dynamic_fallback_requests;
  d["unplanned_requests"] = s.unplanned_requests;
  d["evaluation_requests"] = s.evaluation_requests;
  d["idle_requests"] = s.idle_requests;
  d["persistent_requests"] = s.persistent_requests;
  d["stream_waits"] = s.stream_waits;
  d["handed_back"] = s.handed_back;
  d["moves"] = s.moves;
  d["pools_left"] = s.pools_left;
  d["fallback_requests"] = s.fallback_requests;
  d["allocated"] = s.allocated.current;
  d["peak_allocated"] = s.allocated.peak;
  d["reserved"] = s.reserved.current;
  d["peak_reserved"] = s.reserved.peak;
  d["run_peak_allocated"] = s.run_peak_allocated;
  d["run_peak_reserved"] = s.run_peak_reserved;
  d["fallback_allocated"] = s.fallback.current;
  d["peak_fallback_allocated"] = s.fallback.peak;
  d["dynamic_allocated"] = s.dynamic.current;
  d["peak_dynamic_allocated"] = s.dynamic.peak;
  d["peak_dynamic_in_region"] = s.dynamic_region.peak;
  d["peak_dynamic_reused"] = s.dynamic_reused.peak;
  d["pool"] = s.pool;
  d["resident"] = s.resident;
  d["fallback_reserved"] = s.fallback_reserved;
  d["live_blocks"] = s.live_blocks;
  d["strays"] = s.strays;
  return d;
}

}  // namespace

void bind_runtime(py::module_& m) {
  py::class_<runtime::DeviceRuntime, std::unique_ptr<runtime::DeviceRuntime, py::nodelete>>(
      m, "Runtime")
      // The hooks' sink. Short calls under an uncontended mutex: the GIL stays. The end of an
      // iteration may wait for devices.
      .def(
          "enter_phase",
          [](runtime::DeviceRuntime& r, int kind, std::int32_t microbatch, std::int32_t chunk) {
            if (kind < 0 || kind > static_cast<int>(trace::PhaseKind::kUnplanned)) {
              throw py::value_error("there is no phase kind " + std::to_string(kind));
            }
            r.enter_phase(static_cast<trace::PhaseKind>(kind), microbatch, chunk);
          },
          py::arg("kind"), py::arg("microbatch"), py::arg("chunk"))
      .def(
          "set_extents",
          [](runtime::DeviceRuntime& r, const std::vector<std::string>& names,
             const std::vector<std::int64_t>& values) {
            if (names.size() != values.size()) {
              throw py::value_error(std::to_string(names.size()) + " names for " +
                                    std::to_string(values.size()) + " extents");
            }
            r.set_extents(names, values);
          },
          py::arg("names"), py::arg("values"))
      .def("enter_unplanned", &runtime::DeviceRuntime::enter_unplanned)
      .def("begin_evaluation", &runtime::DeviceRuntime::begin_evaluation)
      .def("end_evaluation_forward", &runtime::DeviceRuntime::end_evaluation_forward)
      .def("leave_unplanned", &runtime::DeviceRuntime::leave_unplanned)
      .def("end_iteration", &runtime::DeviceRuntime::end_iteration, ReleaseGil())
      .def(
          "define_layer",
          [](runtime::DeviceRuntime& r, const std::string& name, bool dynamic) {
            return r.recorder().define_layer(name, dynamic);
          },
          py::arg("name"), py::arg("dynamic") = false)
      .def("enter_layer", &runtime::DeviceRuntime::enter_layer, py::arg("layer"),
           py::arg("recompute"))
      .def("leave_layer", &runtime::DeviceRuntime::leave_layer)
      .def("tag_sequence", &runtime::DeviceRuntime::tag_sequence, py::arg("layer"),
           py::arg("first"), py::arg("last"))

      .def("join_iterations", &runtime::DeviceRuntime::join_iterations)
      .def("lead", &runtime::DeviceRuntime::lead, py::arg("other").none(true),
           "Forwards phases and the ends of iterations to another runtime, too; None: to none.")
      .def(
          "start_recording",
          [](runtime::DeviceRuntime& r, bool keep_layers) {
            using enum runtime::Recorder::Layers;
            r.recorder().start(keep_layers ? kKept : kForgotten);
          },
          py::arg("keep_layers") = false,
          "Layers that were defined before are kept if hooks go on to report them.")
      .def(
          "finish_recording",
          [](runtime::DeviceRuntime& r) {
            return std::make_shared<trace::Trace>(r.recorder().finish(&r.streams()));
          },
          ReleaseGil())
      .def_property_readonly("recording",
                             [](runtime::DeviceRuntime& r) { return r.recorder().active(); })
      .def_property_readonly("recorded_requests",
                             [](runtime::DeviceRuntime& r) { return r.recorder().requests(); })
      .def_property_readonly("recorded_iterations",
                             [](runtime::DeviceRuntime& r) { return r.recorder().iterations(); })
      .def_property_readonly("recorder_bytes",
                             [](runtime::DeviceRuntime& r) { return r.recorder().memory_bytes(); })

      .def(
          "enable",
          [](runtime::DeviceRuntime& r, const plan::Plan& plan, bool reuse, bool startup,
             bool hand_back, bool filled, bool ahead) {
            r.allocator().enable(plan, {.reuse = reuse,
                                        .startup = startup,
                                        .hand_back = hand_back,
                                        .filled = filled,
                                        .ahead = ahead});
          },
          py::arg("plan"), py::arg("reuse") = true, py::arg("startup") = false,
          py::arg("hand_back") = true, py::arg("filled") = true, py::arg("ahead") = false,
          ReleaseGil(),
          "If `filled` is false, the pool's addresses get memory with their first requests, on a "
          "device that can add it. With `ahead`, the first iteration serves only requests that "
          "live on into the next one.")
      .def(
          "prepare",
          [](runtime::DeviceRuntime& r, const std::vector<Bytes>& sizes) {
            r.allocator().prepare(sizes);
          },
          py::arg("sizes"), ReleaseGil())
      .def(
          "disable", [](runtime::DeviceRuntime& r) { r.allocator().disable(); }, ReleaseGil())
      .def(
          "drain", [](runtime::DeviceRuntime& r, bool departed) { r.allocator().drain(departed); },
          py::arg("departed"), ReleaseGil())
      .def(
          "keep_clear", [](runtime::DeviceRuntime& r) { r.allocator().keep_clear(); }, ReleaseGil())
      .def(
          "keep_pauses_clear",
          [](runtime::DeviceRuntime& r, bool on) { r.allocator().keep_pauses_clear(on); },
          py::arg("on"), ReleaseGil())
      .def(
          "trust_all",
          [](runtime::DeviceRuntime& r, bool makes_states) {
            r.allocator().trust_all(makes_states);
          },
          py::arg("makes_states"), ReleaseGil())
      .def(
          "make_states", [](runtime::DeviceRuntime& r, bool on) { r.allocator().make_states(on); },
          py::arg("on"), ReleaseGil())
      .def_property_readonly("enabled",
                             [](runtime::DeviceRuntime& r) { return r.allocator().enabled(); })
      .def("statistics",
           [](runtime::DeviceRuntime& r) { return to_dict(r.allocator().figures().statistics()); })
      .def("reset_peaks", [](runtime::DeviceRuntime& r) { r.allocator().figures().reset_peaks(); })
      .def(
          "release_cached",
          [](runtime::DeviceRuntime& r) { return r.allocator().release_cached(); }, ReleaseGil())
      .def(
          "keep_addresses",
          [](runtime::DeviceRuntime& r, std::optional<bool> keep) {
            using enum device::VirtualPools;
            return r.memory().use_virtual(!keep ? kGrowing : *keep ? kAll : kNone);
          },
          py::arg("keep"),
          "Sets whether pools reserved from now on keep their addresses when released. None: those "
          "that can grow do. False if the device has no virtual memory and all shall.")
      .def(
          "release_pool",
          [](runtime::DeviceRuntime& r, bool partly) { return r.allocator().release_pool(partly); },
          py::arg("partly") = false, ReleaseGil())
      .def(
          "acquire_pool", [](runtime::DeviceRuntime& r) { r.allocator().acquire_pool(); },
          ReleaseGil())
      .def(
          "check", [](runtime::DeviceRuntime& r) { r.allocator().inspect().check(); }, ReleaseGil(),
          "Throws unless the pools' invariants hold; for tests.");

  m.def("format_bytes", &format_bytes, py::arg("size"));
  m.def("runtime", &runtime::DeviceRuntime::of, py::arg("device"),
        py::return_value_policy::reference,
        "The process's runtime for 'cpu', 'meta', or a GPU or 'pinned' memory that has one.");
  m.def(
      "runtimes",
      [] {
        std::vector<std::string> names = {"cpu", "meta"};
        for (int i = 0; i < runtime::DeviceRuntime::kGpus; ++i) {
          if (runtime::DeviceRuntime* r = runtime::DeviceRuntime::find_gpu(i)) {
            names.emplace_back(r->memory().name());
          }
        }
        if (runtime::DeviceRuntime* r = runtime::DeviceRuntime::find_pinned()) {
          names.emplace_back(r->memory().name());
        }
        return names;
      },
      "The names that runtime() knows.");
}

}  // namespace stalloc::bindings
