// A GPU's memory: pieces from cudaMalloc, and pools that can go and come back.
//
// A pool is a range of addresses that is reserved for good, with memory mapped into it (CUDA's
// virtual memory calls): suspend() takes the memory away and keeps the addresses, resume() maps
// other memory there. Such memory is made accessible from all devices that can reach this one, as
// cudaMalloc's may be, but cannot be shared between processes by cudaIpcGetMemHandle. So it is used
// only where asked for.
#pragma once

#include <atomic>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "device/cuda_runtime.h"
#include "device/memory.h"
#include "device/tally.h"

namespace stalloc::device {

class CudaMemory final : public DeviceMemory {
 public:
  // Throws Error when no runtime is loaded.
  explicit CudaMemory(int device);

  // "cuda:0", with HIP too, as torch calls it.
  std::string_view name() const override { return name_; }
  int device() const { return device_; }

  // All these throw Error when the device fails in another way than by having no memory left.
  void* allocate(Bytes size) override;
  bool keep_addresses(bool keep) override;
  void* allocate_pool(Bytes size) override;
  void release(void* piece, Bytes size) noexcept override;
  bool suspend(void* piece, Bytes size) override;
  bool resume(void* piece, Bytes size) override;
  Bytes available() const override;
  // Asked of the device once: it stays the same, also where the device is lost later.
  Bytes total() const;

  // At most `limit` bytes are held at a time from now on, what is held already included; 0 leaves
  // it to the device.
  void set_limit(Bytes limit);

  // What is held of the device, in bytes and in pieces.
  struct Held {
    Tally bytes;
    Tally pieces;
  };
  struct HeldBySize {
    Held all;
    Held small;  // pieces of at most unit()
    Held large;
  };
  HeldBySize held() const;
  void reset_peaks();
  void reset_totals();

 private:
  struct Range {  // of reserved addresses
    std::size_t size = 0;
    bool mapped = false;
  };

  // Notes `size` bytes as held, unless that is more than the limit allows.
  bool take(Bytes size);
  bool has_room(Bytes size) const;  // the mutex is held
  void note(Bytes size, bool taken) noexcept;
  void give_back(Bytes size) noexcept;
  void* allocate_plain(Bytes size);
  void* allocate_virtual(Bytes size);
  struct Info {
    Bytes free = 0;
    Bytes total = 0;
  };
  Info info() const;
  CudaRuntime::AllocationProperties properties() const;
  std::vector<CudaRuntime::Access> accesses() const;
  bool map(std::uintptr_t begin, std::size_t size);
  void unmap(std::uintptr_t begin, std::size_t size) noexcept;
  [[noreturn]] void fail(const std::string& what, CudaRuntime::Error error) const;

  const CudaRuntime& runtime_;
  const int device_;
  const std::string name_;
  std::atomic<bool> virtual_pools_{false};
  mutable std::atomic<Bytes> total_{0};  // 0: not asked for yet
  mutable std::mutex mutex_;             // of what follows
  std::map<std::uintptr_t, Range> ranges_;
  Bytes limit_ = 0;
  HeldBySize held_;
};

}  // namespace stalloc::device
