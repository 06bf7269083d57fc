// A device of a chosen size with no memory behind it: addresses that must not be touched. For
// tests, and for replaying 80 GB traces on a small machine.
#pragma once

#include <map>
#include <mutex>

#include "device/memory.h"

namespace stalloc::device {

class PretendMemory final : public DeviceMemory {
 public:
  explicit PretendMemory(Bytes capacity) : capacity_(capacity) {}

  std::string_view name() const override { return "pretend"; }
  Bytes alignment() const override;
  void* allocate(Bytes size) override;
  void release(void* piece, Bytes size) noexcept override;
  Bytes available() const override;

  Bytes used() const;
  int calls() const;           // calls of allocate()
  int wrong_releases() const;  // releases of pieces never given: bugs of the caller
  // Makes the n-th call of allocate() from now fail (1 is the next); 0 cancels that.
  void fail_at(int n);

 private:
  const Bytes capacity_;
  mutable std::mutex mutex_;
  std::map<std::uintptr_t, Bytes> pieces_;
  Bytes used_ = 0;
  int calls_ = 0;
  int fail_in_ = 0;
  int wrong_releases_ = 0;
};

}  // namespace stalloc::device
