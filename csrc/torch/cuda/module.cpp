// The Python module of native mode: the code that must be compiled against a CUDA build of torch.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "runtime/device_runtime.h"
#include "torch/autograd.h"
#include "torch/cuda/adapter.h"
#include "torch/cuda/allocator.h"
#include "torch/cuda/graph_routes.h"
#include "torch/cuda/pinned.h"
#include "torch/cuda/program_order.h"

namespace py = pybind11;

PYBIND11_MODULE(STALLOC_MODULE, m) {
  namespace adapters = stalloc::torch_adapters;
  m.attr("TORCH_VERSION") = STALLOC_TORCH_VERSION;
  m.attr("TORCH_INTERFACE") = STALLOC_TORCH_INTERFACE;
  stalloc::runtime::DeviceRuntime::set_autograd_thread(&adapters::autograd_thread);
  stalloc::runtime::DeviceRuntime::set_phase_listener([](stalloc::runtime::DeviceRuntime& runtime) {
    adapters::CudaAllocator::look_for_profiler();
    if (!runtime.allocator().loop().wants_cached()) return;
    // Blocks that are freed while this runs may need it elsewhere.
    const py::gil_scoped_release release;
    adapters::CudaAllocator::instance().give_back_cached(runtime);
  });
  m.def("install", &adapters::install_cuda, py::arg("device"), py::arg("hidden") = false);
  m.def("uninstall", &adapters::uninstall_cuda);
  m.def("note_profiler", &adapters::CudaAllocator::note_profiler, py::arg("starts"));
  m.def(
      "record_exactly",
      [](bool exact) { adapters::CudaAllocator::instance().record_exactly(exact); },
      py::arg("exact"));
  m.def(
      "note_expandable", [](bool on) { adapters::CudaAllocator::instance().note_expandable(on); },
      py::arg("on"), "stalloc has turned torch's expandable segments on, or off.");
  m.def(
      "note_virtual_block",
      [](std::uintptr_t address) {
        adapters::CudaAllocator::instance().note_virtual_block(reinterpret_cast<void*>(address));
      },
      py::arg("address"),
      "A block in an expandable segment of torch's shows how such memory is shared.");
  m.def(
      "when_sharing_is_unknown",
      [](const pybind11::function& show) {
        // Never destroyed: there may be no interpreter then.
        static const auto* kept = new pybind11::function(show);
        adapters::CudaAllocator::instance().when_sharing_is_unknown([] {
          const pybind11::gil_scoped_acquire acquire;
          try {
            (*kept)();
          } catch (pybind11::error_already_set& e) {
            e.discard_as_unraisable("stalloc");
          }
        });
      },
      py::arg("show"), "Calls `show` before a tensor is shared, until note_virtual_block() is.");
  m.def(
      "follow_program_order",
      [](int device) {
        adapters::follow_program_order(stalloc::runtime::DeviceRuntime::find_gpu(device), device);
      },
      py::arg("device"), "Reports the order of the device's streams to its recorder; -1: no more.");
  m.def("begin_graph_routes", &adapters::begin_graph_routes, py::arg("device"), py::arg("pool"),
        py::arg("kept"), py::arg("number"), py::call_guard<py::gil_scoped_release>(),
        "A capture into `pool` begins, after `number` others; `kept` serves what will live on.");
  m.def("end_graph_routes", &adapters::end_graph_routes, py::call_guard<py::gil_scoped_release>(),
        "It has ended, or failed. True if the graph holds the kept pool.");
  m.def("learn_graph_lives", &adapters::learn_graph_lives, py::arg("lives"),
        "Which requests of the last capture live on, in their order.");
  m.def("release_graph_pool", &adapters::release_graph_pool, py::arg("device"), py::arg("pool"),
        py::call_guard<py::gil_scoped_release>());
  const auto loans = []() -> adapters::GraphLoans& {
    return adapters::CudaAllocator::instance().loans();
  };
  const auto index = [](int device) { return static_cast<c10::DeviceIndex>(device); };
  m.def(
      "start_graph_loans", [=](int device, bool may_run) { loans().start(index(device), may_run); },
      py::arg("device"), py::arg("may_run"), py::call_guard<py::gil_scoped_release>(),
      "Lets eager blocks have the memory of graphs; if some may run, after their next replay.");
  m.def(
      "stop_graph_loans", [=](int device) { loans().stop(index(device)); }, py::arg("device"),
      py::call_guard<py::gil_scoped_release>(),
      "Lends no more. What is lent is still looked for at each replay.");
  m.def(
      "end_graph_loans", [=](int device) { loans().end(index(device)); }, py::arg("device"),
      py::call_guard<py::gil_scoped_release>(), "The program may launch graphs by itself.");
  m.def(
      "begin_graph_replay",
      [=](int device, std::uintptr_t stream, bool stays) {
        loans().begin_replay(index(device), reinterpret_cast<cudaStream_t>(stream), stays);
      },
      py::arg("device"), py::arg("stream"), py::arg("stays"),
      py::call_guard<py::gil_scoped_release>());
  m.def(
      "end_graph_replay", [=](int device) { loans().end_replay(index(device)); }, py::arg("device"),
      py::call_guard<py::gil_scoped_release>());
  m.def(
      "pause_graph_loans", [=](int device) { loans().begin_capture(index(device)); },
      py::arg("device"), py::call_guard<py::gil_scoped_release>(), "A capture is about to begin.");
  m.def(
      "resume_graph_loans", [=](int device) { loans().end_capture(index(device)); },
      py::arg("device"), py::call_guard<py::gil_scoped_release>(),
      "It has ended, and its memory is settled; or it has failed.");
  m.def("install_pinned", &adapters::install_pinned, py::arg("device"));
  m.def("settle_pinned", &adapters::settle_pinned, py::call_guard<py::gil_scoped_release>());
  m.def("give_back_pinned", &adapters::give_back_pinned, py::call_guard<py::gil_scoped_release>());
  // Without the GIL: blocks that are freed while this runs may need it elsewhere.
  m.def(
      "empty_cache",
      [](int device) {
        adapters::CudaAllocator::instance().emptyCache();
        adapters::CudaAllocator::instance().share_out(static_cast<c10::DeviceIndex>(device));
      },
      py::arg("device"), py::call_guard<py::gil_scoped_release>());
  m.def(
      "note",
      [](int device) {
        adapters::CudaAllocator::instance().note(static_cast<c10::DeviceIndex>(device));
        adapters::CudaAllocator::instance().share_out(static_cast<c10::DeviceIndex>(device));
      },
      py::arg("device"), py::call_guard<py::gil_scoped_release>());
}
