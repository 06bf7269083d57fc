// The thin layer between torch's allocator interface and the runtime. One adapter a device; each is
// made once, and never destroyed, because a tensor's storage keeps a pointer to its allocator.
#pragma once

namespace stalloc::torch_adapters {

// Puts our allocator in front of torch's for tensors on the CPU, or takes it out again. Both may be
// called at any time and any number of times: blocks that are live stay with whoever gave them.
void install_cpu();
void uninstall_cpu();

// The same for tensors on the meta device, which have lifetimes and no memory. Recording only.
void install_meta();
void uninstall_meta();

// Lets compat mode, which torch's pluggable allocator interface calls, ask torch what it needs.
void connect_compat();

}  // namespace stalloc::torch_adapters
