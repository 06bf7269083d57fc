// The Python module of the adapters: only the code that must be compiled against torch.
#include <pybind11/pybind11.h>

#include "runtime/device_runtime.h"
#include "torch/adapters.h"
#include "torch/autograd.h"

namespace py = pybind11;

PYBIND11_MODULE(STALLOC_MODULE, m) {
  m.attr("TORCH_VERSION") = STALLOC_TORCH_VERSION;
  m.attr("TORCH_INTERFACE") = STALLOC_TORCH_INTERFACE;
  stalloc::runtime::DeviceRuntime::set_autograd_thread(&stalloc::torch_adapters::autograd_thread);
  m.def("install_cpu", &stalloc::torch_adapters::install_cpu);
  m.def("uninstall_cpu", &stalloc::torch_adapters::uninstall_cpu);
  m.def("leave_small_cpu", &stalloc::torch_adapters::leave_small_cpu);
  m.def("install_meta", &stalloc::torch_adapters::install_meta);
  m.def("uninstall_meta", &stalloc::torch_adapters::uninstall_meta);
  m.def("mute_meta", &stalloc::torch_adapters::mute_meta);
  m.def("record_meta_on_cpu", &stalloc::torch_adapters::record_meta_on_cpu);
  m.def("resize_meta", &stalloc::torch_adapters::resize_meta);
  m.def("enter_meta_stream", &stalloc::torch_adapters::enter_meta_stream);
  m.def("note_meta_event", &stalloc::torch_adapters::note_meta_event);
  m.def("forget_meta_event", &stalloc::torch_adapters::forget_meta_event);
  m.def("synchronize_meta", &stalloc::torch_adapters::synchronize_meta);
  m.def("pretend_gpu", &stalloc::torch_adapters::pretend_gpu);
  m.def("pretend_no_gpu", &stalloc::torch_adapters::pretend_no_gpu);
  m.def("ask_for_device", &stalloc::torch_adapters::ask_for_device);
  m.def("seek_no_gpu", &stalloc::torch_adapters::seek_no_gpu);
  m.def("connect_compat", &stalloc::torch_adapters::connect_compat);
}
