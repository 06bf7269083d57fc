// Allocates first fit from a range that no program on x86-64 or arm64 can map, so that touching an
// address faults at once.
#include "device/pretend.h"

#include "base/align.h"

namespace stalloc::device {
namespace {

constexpr std::uintptr_t kBase = std::uintptr_t{1} << 60;
constexpr Bytes kGranularity = Bytes{2} << 20;

}  // namespace

Bytes PretendMemory::alignment() const { return kGranularity; }

void* PretendMemory::allocate(Bytes size) {
  const std::lock_guard lock(mutex_);
  ++calls_;
  if (fail_in_ > 0 && --fail_in_ == 0) return nullptr;
  if (size > capacity_ - used_) return nullptr;
  std::uintptr_t address = kBase;
  for (const auto& [begin, length] : pieces_) {
    if (begin - address >= static_cast<std::uintptr_t>(size)) break;
    address = begin + static_cast<std::uintptr_t>(align_up(length, kGranularity));
  }
  pieces_.emplace(address, size);
  used_ += size;
  return reinterpret_cast<void*>(address);
}

void PretendMemory::release(void* piece, Bytes size) noexcept {
  const std::lock_guard lock(mutex_);
  const auto it = pieces_.find(reinterpret_cast<std::uintptr_t>(piece));
  if (it == pieces_.end() || it->second != size) {
    ++wrong_releases_;
    return;
  }
  pieces_.erase(it);
  used_ -= size;
}

Bytes PretendMemory::available() const {
  const std::lock_guard lock(mutex_);
  return capacity_ - used_;
}

Bytes PretendMemory::used() const {
  const std::lock_guard lock(mutex_);
  return used_;
}

int PretendMemory::calls() const {
  const std::lock_guard lock(mutex_);
  return calls_;
}

int PretendMemory::wrong_releases() const {
  const std::lock_guard lock(mutex_);
  return wrong_releases_;
}

void PretendMemory::fail_at(int n) {
  const std::lock_guard lock(mutex_);
  fail_in_ = n;
}

}  // namespace stalloc::device
