// A pretended GPU: the control functions of the stand-in for CUDA's runtime library.
//
// The library is loaded in libcudart's place (it has its soname and symbol versions) and lets torch
// and stalloc run as on a GPU of any size. What it hands out are addresses that no program can
// touch, so 80 GB take no memory; kernels do nothing. What it keeps is the order of things: streams
// hold work that completes only when told, events complete with the work before them.
//
// Two kinds of mistake are counted, each with a sentence that says what happened:
//
//   hazard   an address is used for another owner (standin_use) with nothing that orders the
//            earlier owner's work before it: no stream, event, or wait of the host. Found from
//            order alone, as a race detector does, not from when work happened to complete.
//   misuse   what no correct program does: freed twice, freed while mapped, unmapped while in use,
//            a destroyed stream used, memory used that is not allocated, a forbidden call while
//            a stream is captured.
//
// Streams are given as cudaStream_t; null is the current device's default stream. Environment at
// the start, and at standin_reset(): STANDIN_DEVICES (1), STANDIN_MEMORY in bytes a device (80
// GiB), STANDIN_MANUAL (0), STANDIN_VERBOSE (1 prints each complaint to stderr).
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

// Everything as at the start: no memory, streams, events, faults, counts.
void standin_reset(void);
void standin_set_devices(int count);
void standin_set_memory(int device, uint64_t bytes);
// Whether the devices reach each other's memory (0 at the start).
void standin_set_peers(int reach);

// Whether work of streams made from now on, and of default streams, waits to be told (1), or
// completes as soon as what it waits for has (0).
void standin_set_manual(int manual);

// Whether a new stream gets the handle of the one destroyed last, as happens on a real device.
void standin_recycle_handles(int recycle);

// Work on a stream. The second kind reads and writes [p, p + bytes) for `owner`, any number but 0:
// a tensor, say. Returns 0, or CUDA's error.
int standin_submit(void* stream);
int standin_use(void* stream, const void* p, uint64_t bytes, uint64_t owner);

// Completes up to `items` of the stream's work, as far as what they wait for is complete; returns
// how many. Records and waits are items too.
int64_t standin_advance(void* stream, int64_t items);
// Completes all the stream's work, and whatever that waits for.
void standin_drain(void* stream);
void standin_drain_all(void);
int64_t standin_pending(void* stream);

// Lets the nth call from now (1 is the next) of the named function, "cudaMalloc" or "cuMemMap",
// fail with `error`, and the times - 1 after it too; times < 0: for ever. nth 0 takes that back.
void standin_fail(const char* call, int64_t nth, int error, int64_t times);
// Every call fails with `error` from now on, as after an illegal access; 0 takes that back.
void standin_lose_device(int error);

int64_t standin_calls(const char* call);
// Calls in which the host waited for work that was not complete.
int64_t standin_host_waits(void);

int64_t standin_hazards(void);
int64_t standin_misuses(void);
// The last complaint of either kind; empty when there is none. Valid until the thread's next call.
const char* standin_last_complaint(void);

uint64_t standin_used(int device);
uint64_t standin_peak(int device);
int64_t standin_allocations(void);   // live: of cudaMalloc, its kin, and of cuMemCreate
int64_t standin_reservations(void);  // live: of cuMemAddressReserve
int64_t standin_mappings(void);
// How many devices may use the mapping at `p`.
int64_t standin_accesses(const void* p);
// How many devices have a context; whether this one has.
int64_t standin_contexts(void);
int standin_has_context(int device);
int64_t standin_streams(void);  // live, without default ones
int64_t standin_events(void);

#ifdef __cplusplus
}
#endif
