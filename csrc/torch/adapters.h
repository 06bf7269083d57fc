// The thin layer between torch's allocator interface and the runtime. Each device has one adapter,
// which is never destroyed, because a tensor's storage keeps a pointer to its allocator.
#pragma once

#include <cstddef>
#include <cstdint>

namespace stalloc::torch_adapters {

// Puts stalloc's allocator in front of torch's for tensors on the CPU, or removes it. Both may be
// called at any time and repeatedly: live blocks stay with the allocator that gave them.
void install_cpu();
void uninstall_cpu();
// Leaves requests of fewer bytes to torch, also while a plan is in force: kernels of the CPU make
// tensors of numbers that other devices get as arguments. 0 plans all.
void leave_small_cpu(std::size_t bytes);

// The same for tensors on the meta device, which have lifetimes and no memory. Recording only.
void install_meta();
void uninstall_meta();
// The meta device records no request of this thread while it is muted.
void mute_meta(bool mute);
// Lets the CPU's runtime record the requests of the meta device among its own: those of a program
// on a CPU of which most tensors have no memory. Muting then holds for tensors with memory, too,
// and requests of fewer bytes than `least` are not recorded. 0 ends it.
void record_meta_on_cpu(std::size_t least);
// True if the CPU's runtime is not to record a request of this thread for n bytes.
bool is_left_out(std::size_t n);

// A program on a pretended GPU has resized a storage there, whose StorageImpl is at the address
// `storage`: torch changes the size of one without memory, and requests nothing.
void resize_meta(std::uintptr_t storage, std::size_t n);
// It has streams and events, which are numbers: its own, above 2; 0 is the default stream.
// Requests of this thread belong to `stream` from now on.
void enter_meta_stream(std::uintptr_t stream);
// A stream has recorded an event, or waits for it.
void note_meta_event(bool awaited, std::uintptr_t event, std::uintptr_t stream);
void forget_meta_event(std::uintptr_t event);
// The host has waited for an event; for the device if that is 0.
void synchronize_meta(std::uintptr_t event);

// Lets torch carry tensors that claim to be on a GPU in a process that has none, or ends that.
// Their backward pass needs a device guard, which a torch without CUDA lacks; this one does
// nothing. A guard that torch has of its own stays. Both may be called repeatedly, and not during a
// backward.
void pretend_gpu();
void pretend_no_gpu();
// Keeps autograd from looking for streams of a GPU, in a CUDA build of torch on a machine without
// one: registers a backend without devices, which stays. Returns false if autograd looks for them
// all the same.
bool seek_no_gpu();

// The tensor, whose TensorImpl is at this address, asks Python for its device. Autograd takes that
// of a wrapper such as DTensor for a real GPU's otherwise, and looks for its streams.
void ask_for_device(std::uintptr_t tensor);

// Provides torch's services to compat mode, which torch's pluggable allocator interface calls.
void connect_compat();

}  // namespace stalloc::torch_adapters
