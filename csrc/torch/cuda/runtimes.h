// The runtimes of GPUs that native mode serves.
#pragma once

#include <span>

#include "runtime/device_runtime.h"

namespace stalloc::torch_adapters {

// In the order they were added. Takes no lock.
std::span<runtime::DeviceRuntime* const> gpu_runtimes();
// Adds a runtime unless it is there. Callers take turns.
void add_gpu_runtime(runtime::DeviceRuntime& runtime);

}  // namespace stalloc::torch_adapters
