// The machine's own memory, in whole pages, straight from the kernel.
#pragma once

#include <atomic>
#include <cstddef>
#include <mutex>
#include <unordered_map>
#include <unordered_set>

#include "device/growing_pool.h"
#include "device/memory.h"

namespace stalloc::device {

class HostMemory final : public DeviceMemory {
 public:
  // Limits the bytes handed out at a time. 0: only the machine limits them.
  explicit HostMemory(Bytes limit = 0) : limit_(limit) {}

  std::string_view name() const override { return "host"; }
  Bytes unit() const override { return Bytes{16} << 10; }
  Bytes alignment() const override;  // a page
  // Pools always keep their addresses.
  bool use_virtual(VirtualPools) override { return true; }
  void* allocate(Bytes size) override;
  void* allocate_pool(Bytes size, bool grows) override;
  void* allocate_addresses(Bytes size, Bytes memory) override;
  // Moves pages.
  void* allocate_movable(Bytes size, Bytes memory, Bytes chunk) override;
  bool can_grow(const void* pool) const override;
  Bytes room(const void* pool) const override;
  bool grow(void* pool, Bytes before, Bytes size) override;
  bool extend(void* pool, Bytes before, Bytes size) override;
  Range detach(void* pool, Range range) override;
  bool attach(void* pool, Range range) override;
  void shrink(void* pool, Bytes size) noexcept override;
  void drop_detached(void* pool) noexcept override;
  void release(void* piece, Bytes size) noexcept override;
  bool suspend(void* piece, Bytes size) override;
  bool resume(void* piece, Bytes size) override;
  Bytes available() const override;

 private:
  bool take(Bytes size);
  // The mutex is held in these.
  bool add(GrowingPool& pool, std::byte* begin, Bytes size, Bytes counted);
  GrowingPool* find(const void* pool);
  void* reserve(Bytes room, Bytes size, Bytes memory);

  const Bytes limit_;
  std::atomic<Bytes> used_{0};
  mutable std::mutex mutex_;
  std::unordered_set<void*> suspended_;
  std::unordered_map<const void*, GrowingPool> growing_;
};

}  // namespace stalloc::device
