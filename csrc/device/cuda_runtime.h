// The parts of the GPU's runtime library for memory and for order between streams.
//
// Nothing is linked. The calls are looked up when first needed, in the library that torch has
// loaded: libcudart of CUDA 12 or 13, or HIP's libamdhip64, whose names differ only in their
// prefix. So one binary serves all of them, and a machine without a GPU.
//
// The virtual memory calls belong to the driver, and the runtime provides them; they are null in a
// library without them (see has_virtual_memory). Thread-safe.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>

namespace stalloc::device {

struct CudaRuntime {
  using Error = int;  // cudaError_t, hipError_t, CUresult: the numbers used here are the same

  static constexpr Error kSuccess = 0;
  static constexpr Error kOutOfMemory = 2;
  static constexpr Error kNotReady = 600;
  static constexpr Error kNotPermitted = 800;
  static constexpr Error kNotSupported = 801;

  // The runtime that the process has loaded. Throws Error of base/error.h if there is none.
  static const CudaRuntime& get();
  // The same, or null if there is none.
  static const CudaRuntime* find() noexcept;

  const char* name = nullptr;  // "CUDA" or "HIP"

  Error (*get_device_count)(int* count) = nullptr;
  Error (*get_device)(int* device) = nullptr;
  Error (*set_device)(int device) = nullptr;
  Error (*device_synchronize)() = nullptr;
  Error (*can_access_peer)(int* can, int device, int peer) = nullptr;  // may be missing
  Error (*malloc)(void** p, std::size_t size) = nullptr;
  Error (*free)(void* p) = nullptr;
  Error (*mem_get_info)(std::size_t* free, std::size_t* total) = nullptr;
  Error (*host_alloc)(void** p, std::size_t size, unsigned flags) = nullptr;  // may be missing
  Error (*free_host)(void* p) = nullptr;                                      // may be missing
  Error (*get_last_error)() = nullptr;
  const char* (*get_error_string)(Error error) = nullptr;
  Error (*event_create)(void** event, unsigned flags) = nullptr;
  Error (*event_destroy)(void* event) = nullptr;
  Error (*event_record)(void* event, void* stream) = nullptr;
  Error (*event_query)(void* event) = nullptr;
  Error (*stream_wait_event)(void* stream, void* event, unsigned flags) = nullptr;
  Error (*stream_is_capturing)(void* stream, int* status) = nullptr;
  Error (*stream_get_device)(void* stream, int* device) = nullptr;  // may be missing
  Error (*exchange_capture_mode)(int* mode) = nullptr;

  // An argument of the library's virtual memory calls: memory of one device, pinned there.
  struct Location {
    int type = 1;
    int device = 0;
  };
  struct AllocationProperties {
    int type = 1;
    int handle_types = 0;
    Location location;
    void* win32 = nullptr;
    unsigned char compression = 0;
    unsigned char rdma_capable = 0;
    unsigned short usage = 0;
    unsigned char reserved[4] = {};
  };
  struct Access {
    Location location;
    int flags = 3;  // read and write
  };
  Error (*address_reserve)(std::uintptr_t* p, std::size_t size, std::size_t alignment,
                           std::uintptr_t hint, unsigned long long flags) = nullptr;
  Error (*address_free)(std::uintptr_t p, std::size_t size) = nullptr;
  Error (*memory_create)(std::uint64_t* handle, std::size_t size, const AllocationProperties*,
                         unsigned long long flags) = nullptr;
  Error (*memory_release)(std::uint64_t handle) = nullptr;
  Error (*memory_map)(std::uintptr_t p, std::size_t size, std::size_t offset, std::uint64_t handle,
                      unsigned long long flags) = nullptr;
  Error (*memory_unmap)(std::uintptr_t p, std::size_t size) = nullptr;
  Error (*memory_set_access)(std::uintptr_t p, std::size_t size, const Access*,
                             std::size_t count) = nullptr;
  Error (*memory_granularity)(std::size_t* granularity, const AllocationProperties*,
                              int option) = nullptr;
  // Makes a handle for other processes: for kFile, a file descriptor. May be missing.
  static constexpr int kFile = 1;
  Error (*memory_export)(void* shared, std::uint64_t handle, int type,
                         unsigned long long flags) = nullptr;

  bool has_virtual_memory() const { return memory_granularity != nullptr; }

  // The driver's contexts. May be missing; always missing with HIP.
  Error (*primary_context_retain)(void** context, int device) = nullptr;
  Error (*primary_context_state)(int device, unsigned* flags, int* active) = nullptr;
  Error (*context_push)(void* context) = nullptr;
  Error (*context_pop)(void** context) = nullptr;

  // Returns the device's shared context, and makes it if needed; null if there are no contexts.
  void* context_of(int device) const noexcept;
  // Returns false if the process has no context on the device, hence no work there.
  bool is_in_use(int device) const noexcept;

  // Returns "out of memory (error 2)" and clears the last error: torch asks for it after each
  // kernel, and would take it for its own.
  std::string explain(Error error) const;
  // Throws Error of base/error.h: `what` has failed on the device.
  [[noreturn]] void fail(const std::string& what, int device, Error error) const;

  static constexpr int kDevices = 64;

 private:
  mutable std::array<std::atomic<void*>, kDevices> contexts_{};  // the retained ones
};

// Makes `device` the calling thread's current one during its lifetime. If error() is set, the
// thread is still on another device and must not do the work meant for `device`.
//
// Uses the driver's stack of contexts where there is one. cudaSetDevice(), on the way back, would
// make a context of hundreds of megabytes on a device that the process does not use: a thread that
// has chosen none is on device 0, so each rank of a node would have a context there.
class DeviceGuard {
 public:
  DeviceGuard(const CudaRuntime& runtime, int device) noexcept;
  ~DeviceGuard();
  CudaRuntime::Error error() const { return error_; }
  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;

 private:
  const CudaRuntime& runtime_;
  int before_ = 0;
  bool pushed_ = false;
  bool changed_ = false;
  CudaRuntime::Error error_ = CudaRuntime::kSuccess;
};

// Lets the calling thread, during its lifetime, make calls that the capture of a graph anywhere in
// the process forbids, and that would invalidate the capture. They are harmless on streams that are
// not captured, where only the caller decides which memory and events are used.
class RelaxedCapture {
 public:
  explicit RelaxedCapture(const CudaRuntime& runtime) noexcept;
  ~RelaxedCapture();
  RelaxedCapture(const RelaxedCapture&) = delete;
  RelaxedCapture& operator=(const RelaxedCapture&) = delete;

 private:
  const CudaRuntime& runtime_;
  int mode_ = 2;  // relaxed; then the mode before
  bool exchanged_ = false;
};

}  // namespace stalloc::device
