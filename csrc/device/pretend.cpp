// Allocates first fit from a range that no program on x86-64 or arm64 can map, so that touching an
// address faults at once.
#include "device/pretend.h"

#include <algorithm>

#include "base/align.h"

namespace stalloc::device {
namespace {

constexpr std::uintptr_t kBase = std::uintptr_t{1} << 60;
constexpr Bytes kGranularity = Bytes{2} << 20;

// The addresses of a pool that can grow, at most.
constexpr Bytes kRoom = Bytes{1} << 42;

}  // namespace

Bytes PretendMemory::alignment() const { return kGranularity; }

// Counts a call, and `size` bytes as used unless it fails.
bool PretendMemory::take(Bytes size) {
  ++calls_;
  if (fail_in_ > 0 && --fail_in_ == 0) return false;
  if (size > capacity_ - used_) return false;
  used_ += size;
  return true;
}

void* PretendMemory::place(Bytes size, Bytes room) {
  const std::lock_guard lock(mutex_);
  if (!take(size)) return nullptr;
  std::uintptr_t address = kBase;
  for (const auto& [begin, piece] : pieces_) {
    if (begin - address >= static_cast<std::uintptr_t>(room)) break;
    address = begin + static_cast<std::uintptr_t>(align_up(piece.room, kGranularity));
  }
  pieces_.emplace(address, Piece{size, room});
  return reinterpret_cast<void*>(address);
}

void* PretendMemory::allocate(Bytes size) { return place(size, size); }

void* PretendMemory::allocate_pool(Bytes size, bool grows) {
  return place(size, grows && grows_ ? std::max(size, std::min(capacity_, kRoom)) : size);
}

bool PretendMemory::can_grow(const void* pool) const {
  const std::lock_guard lock(mutex_);
  const auto it = pieces_.find(reinterpret_cast<std::uintptr_t>(pool));
  return it != pieces_.end() && it->second.room > it->second.size;
}

bool PretendMemory::grow(void* pool, Bytes before, Bytes size) {
  const std::lock_guard lock(mutex_);
  const auto it = pieces_.find(reinterpret_cast<std::uintptr_t>(pool));
  if (it == pieces_.end() || it->second.size != before || size > it->second.room) return false;
  if (!take(size - before)) return false;
  it->second.size = size;
  return true;
}

void PretendMemory::release(void* piece, Bytes size) noexcept {
  const std::lock_guard lock(mutex_);
  const auto it = pieces_.find(reinterpret_cast<std::uintptr_t>(piece));
  if (it == pieces_.end() || it->second.size != size) {
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
