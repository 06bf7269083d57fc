// Turns each of the core's exceptions into the class of the same name in stalloc/errors.py. Python
// defines the classes because there they can have two bases and documentation.
#include <pybind11/gil_safe_call_once.h>

#include "base/error.h"
#include "bindings/parts.h"

namespace py = pybind11;

namespace stalloc::bindings {
namespace {

struct ErrorClasses {
  py::object base;
  py::object trace;
  py::object plan;
  py::object out_of_memory;
};

// Never destroyed: the interpreter ends before static objects are destroyed.
const ErrorClasses& classes() {
  static py::gil_safe_call_once_and_store<ErrorClasses> storage;
  return storage
      .call_once_and_store_result([] {
        const auto module = py::module_::import("stalloc.errors");
        return ErrorClasses{module.attr("StallocError"), module.attr("TraceError"),
                            module.attr("PlanError"), module.attr("OutOfMemory")};
      })
      .get_stored();
}

}  // namespace

void bind_errors() {
  classes();
  py::register_exception_translator([](std::exception_ptr error) {
    try {
      if (error) std::rethrow_exception(error);
    } catch (const TraceError& e) {
      py::set_error(classes().trace, e.what());
    } catch (const PlanError& e) {
      py::set_error(classes().plan, e.what());
    } catch (const OutOfMemory& e) {
      py::set_error(classes().out_of_memory, e.what());
    } catch (const Error& e) {
      py::set_error(classes().base, e.what());
    }
  });
}

}  // namespace stalloc::bindings
