// mmap rather than malloc: pages arrive untouched, so a pool larger than the run needs costs
// address space and no memory, and a released pool returns to the system. Pools use transparent
// huge pages because they are large, long-lived and touched everywhere.
#include "device/host.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <string>

namespace stalloc::device {
namespace {

// Returns MemAvailable of /proc/meminfo; the largest number if there is no such file.
Bytes machine_available() {
  std::ifstream meminfo("/proc/meminfo");
  std::string key, unit;
  Bytes kib = 0;
  while (meminfo >> key >> kib) {
    std::getline(meminfo, unit);
    if (key == "MemAvailable:") return kib * 1024;
  }
  return std::numeric_limits<Bytes>::max();
}

}  // namespace

Bytes HostMemory::alignment() const { return sysconf(_SC_PAGESIZE); }

// Counts `size` more bytes as used unless they exceed the limit.
bool HostMemory::take(Bytes size) {
  const Bytes before = used_.fetch_add(size, std::memory_order_relaxed);
  if ((limit_ == 0 || before <= limit_ - size) && size <= machine_available()) return true;
  used_.fetch_sub(size, std::memory_order_relaxed);
  return false;
}

void* HostMemory::allocate(Bytes size) {
  if (!take(size)) return nullptr;
  void* piece = mmap(nullptr, static_cast<std::size_t>(size), PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (piece == MAP_FAILED) {
    used_.fetch_sub(size, std::memory_order_relaxed);
    return nullptr;
  }
  madvise(piece, static_cast<std::size_t>(size), MADV_HUGEPAGE);
  return piece;
}

// The addresses of a growing pool suffice for all memory of the machine.
void* HostMemory::allocate_pool(Bytes size, bool grows) {
  if (!grows) return allocate(size);
  const Bytes room = std::max(size, Bytes{sysconf(_SC_PHYS_PAGES)} * sysconf(_SC_PAGESIZE));
  void* pool = mmap(nullptr, static_cast<std::size_t>(room), PROT_NONE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (pool == MAP_FAILED) return allocate(size);  // the process has a limit of addresses
  {
    const std::lock_guard lock(mutex_);
    rooms_[pool] = room;
  }
  if (grow(pool, 0, size)) return pool;
  const std::lock_guard lock(mutex_);
  rooms_.erase(pool);
  munmap(pool, static_cast<std::size_t>(room));
  return nullptr;
}

bool HostMemory::can_grow(const void* pool) const {
  const std::lock_guard lock(mutex_);
  return rooms_.contains(pool);
}

bool HostMemory::grow(void* pool, Bytes before, Bytes size) {
  const std::lock_guard lock(mutex_);
  const auto room = rooms_.find(pool);
  if (room == rooms_.end() || size > room->second || suspended_.contains(pool)) return false;
  if (!take(size - before)) return false;
  if (mprotect(pool, static_cast<std::size_t>(size), PROT_READ | PROT_WRITE) != 0) {
    used_.fetch_sub(size - before, std::memory_order_relaxed);
    return false;
  }
  madvise(pool, static_cast<std::size_t>(size), MADV_HUGEPAGE);
  return true;
}

void HostMemory::release(void* piece, Bytes size) noexcept {
  const std::lock_guard lock(mutex_);
  const auto room = rooms_.find(piece);
  munmap(piece, static_cast<std::size_t>(room == rooms_.end() ? size : room->second));
  if (room != rooms_.end()) rooms_.erase(room);
  if (suspended_.erase(piece) == 0) used_.fetch_sub(size, std::memory_order_relaxed);
}

bool HostMemory::suspend(void* piece, Bytes size) {
  const std::lock_guard lock(mutex_);
  if (suspended_.contains(piece)) return true;
  suspended_.insert(piece);
  // Replaces the pages by new, untouched ones.
  if (mmap(piece, static_cast<std::size_t>(size), PROT_NONE,
           MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0) == MAP_FAILED) {
    suspended_.erase(piece);
    return false;
  }
  used_.fetch_sub(size, std::memory_order_relaxed);
  return true;
}

bool HostMemory::resume(void* piece, Bytes size) {
  const std::lock_guard lock(mutex_);
  if (!suspended_.contains(piece)) return true;
  if (!take(size)) return false;
  if (mprotect(piece, static_cast<std::size_t>(size), PROT_READ | PROT_WRITE) != 0) {
    used_.fetch_sub(size, std::memory_order_relaxed);
    return false;
  }
  madvise(piece, static_cast<std::size_t>(size), MADV_HUGEPAGE);
  suspended_.erase(piece);
  return true;
}

Bytes HostMemory::available() const {
  const Bytes machine = machine_available();
  if (limit_ == 0) return machine;
  return std::clamp<Bytes>(limit_ - used_.load(std::memory_order_relaxed), 0, machine);
}

}  // namespace stalloc::device
