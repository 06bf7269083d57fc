// Compat mode's figures in torch's format.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>

#include "bindings/parts.h"
#include "compat/gpu.h"

namespace py = pybind11;

namespace stalloc::bindings {
namespace {

py::dict to_dict(const device::Tally& t) {
  py::dict d;
  d["current"] = t.current;
  d["peak"] = t.peak;
  d["allocated"] = t.added;
  d["freed"] = t.removed;
  return d;
}

// One quantity: for all blocks or pieces, for small and for large ones.
template <typename Parts, typename Read>
py::dict by_size(const Parts& parts, Read read) {
  py::dict d;
  d["all"] = to_dict(read(parts.all));
  d["small_pool"] = to_dict(read(parts.small));
  d["large_pool"] = to_dict(read(parts.large));
  return d;
}

// All bytes held and not live. torch counts only the remainders of split blocks.
device::Tally idle(Bytes bytes) {
  device::Tally t;
  t.current = t.peak = bytes;
  return t;
}

py::dict statistics(int device) {
  const compat::CompatGpu::Figures f = compat::CompatGpu::of(device).figures();
  using Counts = compat::CompatGpu::Counts;
  using Held = device::CudaMemory::Held;
  py::dict d;
  for (const char* name : {"allocation", "active"}) {
    d[name] = by_size(f, [](const Counts& c) { return c.blocks; });
  }
  for (const char* name : {"allocated_bytes", "active_bytes"}) {
    d[name] = by_size(f, [](const Counts& c) { return c.rounded; });
  }
  d["requested_bytes"] = by_size(f, [](const Counts& c) { return c.requested; });
  d["segment"] = by_size(f.held, [](const Held& h) { return h.pieces; });
  d["reserved_bytes"] = by_size(f.held, [](const Held& h) { return h.bytes; });
  // Small blocks also lie in pools, which are large pieces.
  const Bytes small = std::max<Bytes>(f.held.small.bytes.current - f.small.rounded.current, 0);
  const Bytes all = f.held.all.bytes.current - f.all.rounded.current;
  py::dict inactive;
  inactive["all"] = to_dict(idle(all));
  inactive["small_pool"] = to_dict(idle(small));
  inactive["large_pool"] = to_dict(idle(all - small));
  d["inactive_split_bytes"] = inactive;
  d["inactive_split"] = by_size(f, [](const Counts&) { return device::Tally{}; });
  for (const char* name : {"oversize_allocations", "oversize_segments"}) d[name] = to_dict({});
  d["num_ooms"] = f.out_of_memory;
  d["num_device_alloc"] = f.held.all.pieces.added;
  d["num_device_free"] = f.held.all.pieces.removed;
  for (const char* name : {"num_alloc_retries", "num_sync_all_streams"}) d[name] = 0;
  d["max_split_size"] = -1;
  return d;
}

py::dict to_dict(const runtime::Inspection::LiveBlock& block) {
  py::dict d;
  d["address"] = reinterpret_cast<std::uintptr_t>(block.begin);
  d["size"] = block.rounded;
  d["requested_size"] = block.size;
  d["state"] = block.waiting ? "active_pending_free" : "active_allocated";
  d["frames"] = py::list();
  return d;
}

py::dict hole(std::uintptr_t begin, std::uintptr_t end) {
  py::dict d;
  d["address"] = begin;
  d["size"] = end - begin;
  d["requested_size"] = 0;
  d["state"] = "inactive";
  d["frames"] = py::list();
  return d;
}

py::dict to_dict(int device, const compat::CompatGpu::Segment& segment) {
  const auto begin = reinterpret_cast<std::uintptr_t>(segment.content.piece.begin);
  const std::uintptr_t end = begin + static_cast<std::uintptr_t>(segment.content.piece.size);
  py::list blocks;
  std::uintptr_t at = begin;
  Bytes allocated = 0, active = 0, requested = 0;
  for (const auto& block : segment.content.blocks) {
    const auto address = reinterpret_cast<std::uintptr_t>(block.begin);
    if (address > at) blocks.append(hole(at, address));
    blocks.append(to_dict(block));
    at = address + static_cast<std::uintptr_t>(block.rounded);
    active += block.rounded;
    if (block.waiting) continue;
    allocated += block.rounded;
    requested += block.size;
  }
  if (end > at) blocks.append(hole(at, end));
  py::dict d;
  d["device"] = device;
  d["address"] = begin;
  d["total_size"] = segment.content.piece.size;
  d["allocated_size"] = allocated;
  d["active_size"] = active;
  d["requested_size"] = requested;
  d["stream"] = 0;
  d["segment_type"] =
      segment.content.piece.size <= 2 * compat::CompatGpu::kSmall ? "small" : "large";
  d["segment_pool_id"] = segment.graph;
  d["is_expandable"] = false;
  d["frames"] = py::list();
  d["blocks"] = blocks;
  return d;
}

py::list segments() {
  py::list result;
  for (int device = 0; device < runtime::DeviceRuntime::kGpus; ++device) {
    const compat::CompatGpu* gpu = compat::CompatGpu::known(device);
    if (!gpu) continue;
    for (const auto& segment : gpu->segments()) result.append(to_dict(device, segment));
  }
  return result;
}

}  // namespace

void bind_compat(py::module_& m) {
  m.def(
      "compat_runtime", [](int device) { return &compat::CompatGpu::of(device).runtime(); },
      py::arg("device"), py::return_value_policy::reference,
      "The runtime of a GPU that torch's pluggable allocator interface serves.");
  m.def(
      "compat_record_exactly",
      [](int device, bool exact) { compat::CompatGpu::of(device).record_exactly(exact); },
      py::arg("device"), py::arg("exact"));
  m.def(
      "compat_fraction", [](int device) { return compat::CompatGpu::of(device).fraction(); },
      py::arg("device"));
  m.def("compat_statistics", &statistics, py::arg("device"));
  m.def("compat_segments", &segments);
  m.def(
      "compat_reset_peaks", [](int device) { compat::CompatGpu::of(device).reset_peaks(); },
      py::arg("device"));
  m.def(
      "compat_reset_totals", [](int device) { compat::CompatGpu::of(device).reset_totals(); },
      py::arg("device"));
}

}  // namespace stalloc::bindings
