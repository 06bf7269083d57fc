// The order that a program gives the streams of a GPU, reported to the recorder of its device while
// a profile needs it.
//
// torch tells one listener of each event that is recorded, awaited or destroyed and of each
// synchronisation: c10::impl::GPUTrace. The listener that torch has for it is written in Python.
// That one cannot be switched off again, calls into Python at each request and free, and loses the
// exception that is being raised when a tensor is freed. So ours takes its place, passes on what
// it is told to the one that was there, and goes.
#pragma once

#include "runtime/device_runtime.h"

namespace stalloc::torch_adapters {

// Begins to report the order of the streams of a device to its recorder; null ends that. A listener
// that has been put in our place meanwhile stays, and nothing more is reported. Not thread-safe;
// torch may report from any thread meanwhile.
void follow_program_order(runtime::DeviceRuntime* runtime, int device);

}  // namespace stalloc::torch_adapters
