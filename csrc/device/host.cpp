// mmap rather than malloc: pages arrive zeroed and untouched, so that a pool that is larger than
// what the run needs costs address space and no memory, and a released pool really goes back.
// Transparent huge pages are asked for: a pool is large, long-lived and touched all over.
#include "device/host.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <string>

namespace stalloc {
namespace {

// MemAvailable of /proc/meminfo; "everything" where there is no such file.
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

void* HostMemory::allocate(Bytes size) {
  const Bytes before = used_.fetch_add(size, std::memory_order_relaxed);
  void* piece = MAP_FAILED;
  if ((limit_ == 0 || before <= limit_ - size) && size <= machine_available()) {
    piece = mmap(nullptr, static_cast<std::size_t>(size), PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  }
  if (piece == MAP_FAILED) {
    used_.fetch_sub(size, std::memory_order_relaxed);
    return nullptr;
  }
  madvise(piece, static_cast<std::size_t>(size), MADV_HUGEPAGE);
  return piece;
}

void HostMemory::release(void* piece, Bytes size) noexcept {
  munmap(piece, static_cast<std::size_t>(size));
  used_.fetch_sub(size, std::memory_order_relaxed);
}

Bytes HostMemory::available() const {
  const Bytes machine = machine_available();
  if (limit_ == 0) return machine;
  return std::clamp<Bytes>(limit_ - used_.load(std::memory_order_relaxed), 0, machine);
}

}  // namespace stalloc
