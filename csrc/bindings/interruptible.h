// Runs long work for Python: without the GIL, with progress reported to a Python function, and
// cancelled by Ctrl-C.
#pragma once

#include <pybind11/pybind11.h>

#include <atomic>
#include <chrono>
#include <exception>
#include <functional>
#include <future>
#include <mutex>

namespace stalloc::bindings {

// Returns work(cancel, progress), which runs on another thread while this one checks for signals.
// `progress` may be None. If it or a signal's handler throws, the work is cancelled and that
// exception raised. The caller must hold the GIL.
template <typename Work>
auto run_interruptibly(const pybind11::object& progress, Work work) {
  namespace py = pybind11;
  constexpr auto kSignalPeriod = std::chrono::milliseconds(50);
  std::atomic<bool> cancel{false};
  std::mutex mutex;
  std::exception_ptr raised;
  std::function<void(double)> report;
  if (!progress.is_none()) {
    report = [&](double fraction) {
      if (cancel.load(std::memory_order_relaxed)) return;
      const py::gil_scoped_acquire gil;
      try {
        if (progress(fraction).is(py::bool_(false))) cancel = true;
      } catch (const py::error_already_set&) {
        const std::lock_guard lock(mutex);
        if (!raised) raised = std::current_exception();
        cancel = true;
      }
    };
  }
  const py::gil_scoped_release no_gil;
  auto result = std::async(std::launch::async, [&] { return work(&cancel, report); });
  while (result.wait_for(kSignalPeriod) != std::future_status::ready) {
    const py::gil_scoped_acquire gil;
    if (!cancel && PyErr_CheckSignals() != 0) {
      const std::lock_guard lock(mutex);
      if (!raised) raised = std::make_exception_ptr(py::error_already_set());
      cancel = true;
    }
  }
  {
    // The work may have ended before the last signal was checked.
    const py::gil_scoped_acquire gil;
    if (!raised && PyErr_CheckSignals() != 0) throw py::error_already_set();
  }
  if (raised) std::rethrow_exception(raised);
  return result.get();
}

}  // namespace stalloc::bindings
