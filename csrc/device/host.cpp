// mmap rather than malloc: pages arrive untouched, so a pool larger than the run needs costs
// address space and no memory, and a released pool returns to the system. Pools use transparent
// huge pages because they are large, long-lived and touched everywhere.
#include "device/host.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <fstream>
#include <limits>
#include <string>
#include <utility>

#include "base/align.h"

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

// The addresses of a growing pool suffice for more than all memory of the machine.
void* HostMemory::allocate_pool(Bytes size, bool grows) {
  void* pool = grows ? allocate_addresses(size, size) : nullptr;
  return pool ? pool : allocate(size);
}

void* HostMemory::allocate_addresses(Bytes size, Bytes memory) {
  const Bytes machine = Bytes{sysconf(_SC_PHYS_PAGES)} * sysconf(_SC_PAGESIZE);
  return reserve(std::max(size, kRoomPerMemory * machine), size, memory);
}

void* HostMemory::allocate_movable(Bytes size, Bytes memory, Bytes /*chunk*/) {
  return reserve(size, size, memory);
}

// Reserves `room` bytes of addresses for a pool of `size` bytes, the first `memory` of which have
// memory.
void* HostMemory::reserve(Bytes room, Bytes size, Bytes memory) {
  void* pool = mmap(nullptr, static_cast<std::size_t>(room), PROT_NONE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (pool == MAP_FAILED) return nullptr;  // the process has a limit of addresses
  {
    const std::lock_guard lock(mutex_);
    growing_[pool] = {.room = room};
  }
  if (grow(pool, 0, memory) && (memory == size || extend(pool, memory, size))) return pool;
  const std::lock_guard lock(mutex_);
  growing_.erase(pool);
  munmap(pool, static_cast<std::size_t>(room));
  return nullptr;
}

GrowingPool* HostMemory::find(const void* pool) {
  const auto at = growing_.find(pool);
  return at == growing_.end() ? nullptr : &at->second;
}

bool HostMemory::can_grow(const void* pool) const {
  const std::lock_guard lock(mutex_);
  const auto it = growing_.find(pool);
  return it != growing_.end() && it->second.room > it->second.size;
}

Bytes HostMemory::room(const void* pool) const {
  const std::lock_guard lock(mutex_);
  const auto it = growing_.find(pool);
  return it == growing_.end() ? 0 : it->second.room;
}

// Makes `size` bytes from `begin` on usable, `counted` of which are new to the pool.
bool HostMemory::add(GrowingPool& pool, std::byte* begin, Bytes size, Bytes counted) {
  const Bytes lacking = pool.lacking(counted);
  if (!take(lacking)) return false;
  if (mprotect(begin, static_cast<std::size_t>(size), PROT_READ | PROT_WRITE) != 0) {
    used_.fetch_sub(lacking, std::memory_order_relaxed);
    return false;
  }
  madvise(begin, static_cast<std::size_t>(size), MADV_HUGEPAGE);
  pool.add(counted);
  return true;
}

bool HostMemory::grow(void* memory, Bytes before, Bytes size) {
  const std::lock_guard lock(mutex_);
  GrowingPool* pool = find(memory);
  if (!pool || size > pool->room || suspended_.contains(memory)) return false;
  const Bytes from = before / alignment() * alignment();  // this page is usable already
  if (!add(*pool, static_cast<std::byte*>(memory) + from, size - from, size - before)) return false;
  pool->size = size;
  return true;
}

bool HostMemory::extend(void* memory, Bytes before, Bytes size) {
  const std::lock_guard lock(mutex_);
  GrowingPool* pool = find(memory);
  if (!pool || pool->size != before || size > pool->room || suspended_.contains(memory))
    return false;
  pool->extend(size);
  return true;
}

// Only the right to use pages moves: other pages come with the new addresses.
Range HostMemory::detach(void* memory, Range range) {
  const std::lock_guard lock(mutex_);
  GrowingPool* pool = find(memory);
  if (!pool || suspended_.contains(memory)) return {};
  const Range whole = pool->chunks_in(range, alignment());
  if (whole.size() == 0) return {};
  if (mmap(static_cast<std::byte*>(memory) + whole.begin, static_cast<std::size_t>(whole.size()),
           PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1,
           0) == MAP_FAILED) {
    return {};
  }
  pool->detach(whole);
  return whole;
}

bool HostMemory::attach(void* memory, Range range) {
  const std::lock_guard lock(mutex_);
  GrowingPool* pool = find(memory);
  std::byte* begin = static_cast<std::byte*>(memory) + range.begin;
  if (!pool || !pool->lacks(range) || !add(*pool, begin, range.size(), range.size())) return false;
  pool->absent.remove(range);
  return true;
}

void HostMemory::shrink(void* memory, Bytes size) noexcept {
  const std::lock_guard lock(mutex_);
  if (GrowingPool* pool = find(memory)) pool->shrink(size);
}

void HostMemory::drop_detached(void* memory) noexcept {
  const std::lock_guard lock(mutex_);
  GrowingPool* pool = find(memory);
  if (!pool) return;
  used_.fetch_sub(pool->drop(), std::memory_order_relaxed);
}

void HostMemory::release(void* piece, Bytes size) noexcept {
  const std::lock_guard lock(mutex_);
  const auto [room, held] = [&] {
    const GrowingPool* pool = find(piece);
    if (pool) return std::pair{pool->room, pool->held};
    return std::pair{size, suspended_.contains(piece) ? 0 : size};
  }();
  munmap(piece, static_cast<std::size_t>(room));
  used_.fetch_sub(held, std::memory_order_relaxed);
  growing_.erase(piece);
  suspended_.erase(piece);
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
  Bytes held = size;
  if (GrowingPool* pool = find(piece)) {
    held = pool->held;
    *pool = {.room = pool->room, .size = pool->size};
  }
  used_.fetch_sub(held, std::memory_order_relaxed);
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
  if (GrowingPool* pool = find(piece)) pool->held = pool->size = size;
  suspended_.erase(piece);
  return true;
}

Bytes HostMemory::available() const {
  const Bytes machine = machine_available();
  if (limit_ == 0) return machine;
  return std::clamp<Bytes>(limit_ - used_.load(std::memory_order_relaxed), 0, machine);
}

}  // namespace stalloc::device
