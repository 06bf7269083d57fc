// A pretended GPU: the control functions of the stand-in for CUDA's runtime library.
//
// The library replaces libcudart (it has its soname and symbol versions). torch and stalloc run on
// it as on a GPU of any size. Its addresses cannot be touched, so 80 GB take no memory. Kernels do
// nothing. The library keeps the order of work: streams hold work that completes only when told,
// and events complete with the work before them.
//
// With STANDIN_CONTENTS=1, device memory holds what copies and fills put there: cudaMemcpy and
// cudaMemset move real bytes, in the order of their streams. Its addresses still cannot be touched.
// A copy from or to memory that is freed or unmapped is a misuse, and fails as an illegal access.
// New memory holds nothing of the old: its bytes are 0xff. Copies that a graph captures move
// nothing at its launch. Kernels still do nothing: tests/cuda/computing.py does their work.
//
// Two kinds of errors are counted, each with a sentence that says what happened:
//
//   hazard   an address, or virtual memory behind it, is used for another owner (standin_use), and
//            no stream, event or wait of the host orders the earlier owner's work before it. Found
//            from the order alone, as by a race detector, whenever the work completed.
//   misuse   an error of the program: memory freed twice, freed while mapped, unmapped while in
//            use, or used without an allocation; a destroyed stream used; a forbidden call while a
//            stream is captured.
//
// Streams are given as cudaStream_t; null is the current device's default stream. Environment at
// the start, and at standin_reset(): STANDIN_DEVICES (1), STANDIN_MEMORY in bytes a device (80
// GiB), STANDIN_CONTEXT in bytes of it that are never free, as a driver's own (0), STANDIN_MANUAL
// (0), STANDIN_CONTENTS (0), STANDIN_VERBOSE (1 prints each complaint to stderr).
//
// A CUDA build of torch runs on it with LD_PRELOAD set to libcudart.so.13, libcuda.so.1 and, to
// train, libstandin_cublas.so.
//
// Thread-safe. Plain C, for ctypes.
#pragma once

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// Resets everything: no memory, streams, events, faults or counts.
void standin_reset(void);
void standin_set_devices(int count);
void standin_set_memory(int device, uint64_t bytes);
// Sets if the devices can access each other's memory (0 at the start).
void standin_set_peers(int reach);

// Sets how work of new streams and of default streams completes: when told (1), or as soon as the
// work that it waits for is complete (0).
void standin_set_manual(int manual);

// Sets if a new stream gets the handle of the one destroyed last, as happens on a real device.
void standin_recycle_handles(int recycle);

// Adds work to a stream. The second function reads and writes [p, p + bytes) for `owner`, for
// example a tensor: any number but 0. Returns 0, or CUDA's error.
int standin_submit(void* stream);
int standin_use(void* stream, const void* p, uint64_t bytes, uint64_t owner);

// Completes up to `items` items of the stream's work, as far as the work that they wait for is
// complete. Returns how many. Records and waits are items too.
int64_t standin_advance(void* stream, int64_t items);
// Completes all the stream's work, and the work that it waits for.
void standin_drain(void* stream);
void standin_drain_all(void);
int64_t standin_pending(void* stream);

// Lets threads that wait for a device (cudaDeviceSynchronize) wait on, or go on. Returns how many
// are held.
void standin_hold(int hold);
int standin_held(void);

// Makes the nth call from now (1 is the next) of the named function, such as "cudaMalloc", fail
// with `error`, and also the `times` - 1 calls after it. times < 0: all calls. nth 0 cancels this.
void standin_fail(const char* call, int64_t nth, int error, int64_t times);
// Makes every call fail with `error` from now on, as after an illegal access. 0 cancels this.
void standin_lose_device(int error);

int64_t standin_calls(const char* call);
// The number of calls in which the host waited for incomplete work.
int64_t standin_host_waits(void);

int64_t standin_hazards(void);
int64_t standin_misuses(void);
// The sentence of the last error of either kind; empty if there is none. Valid until the thread's
// next call.
const char* standin_last_complaint(void);

uint64_t standin_capacity(int device);
uint64_t standin_used(int device);
uint64_t standin_peak(int device);
int64_t standin_allocations(void);   // live: of cudaMalloc, its kin, and of cuMemCreate
int64_t standin_reservations(void);  // live: of cuMemAddressReserve
int64_t standin_mappings(void);
// The number of devices that may use the mapping at `p`.
int64_t standin_accesses(const void* p);
// The handle of the memory of cuMemCreate that is mapped to an address; 0 if there is none.
uint64_t standin_memory_at(const void* p);
// What device memory holds, if contents are kept: copied at once, whatever is pending. The length
// of a pattern is 1, 2, 4, 8 or 16 bytes, and divides the address. Each returns 0, or CUDA's error.
int standin_read(const void* p, void* to, uint64_t bytes);
int standin_write(void* p, const void* from, uint64_t bytes);
int standin_fill(void* p, const void* pattern, uint64_t length, uint64_t bytes);
// The number of devices with a context; true if this one has a context.
int64_t standin_contexts(void);
int standin_has_context(int device);
int64_t standin_streams(void);  // live, without default ones
int64_t standin_events(void);

#ifdef __cplusplus
}
#endif
