// The machine's own memory, in whole pages, straight from the kernel.
#pragma once

#include <atomic>
#include <mutex>
#include <unordered_set>

#include "device/memory.h"

namespace stalloc::device {

class HostMemory final : public DeviceMemory {
 public:
  // Limits the bytes handed out at a time. 0: only the machine limits them.
  explicit HostMemory(Bytes limit = 0) : limit_(limit) {}

  std::string_view name() const override { return "host"; }
  Bytes unit() const override { return Bytes{128} << 10; }
  Bytes alignment() const override;  // a page
  // Pools always keep their addresses.
  bool keep_addresses(bool) override { return true; }
  void* allocate(Bytes size) override;
  void release(void* piece, Bytes size) noexcept override;
  bool suspend(void* piece, Bytes size) override;
  bool resume(void* piece, Bytes size) override;
  Bytes available() const override;

 private:
  const Bytes limit_;
  bool take(Bytes size);

  std::atomic<Bytes> used_{0};
  std::mutex mutex_;
  std::unordered_set<void*> suspended_;
};

}  // namespace stalloc::device
