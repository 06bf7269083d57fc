// The interface of memory sources. No other folder takes memory from the machine.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/types.h"

namespace stalloc::device {

// The pools that are virtual memory: addresses with memory mapped to them. Such a pool keeps its
// addresses when it is suspended, and grows in place. Another process cannot share it.
enum class VirtualPools : std::uint8_t { kNone, kGrowing, kAll };

// A source of large, rarely requested pieces. Thread-safe.
class DeviceMemory {
 public:
  virtual ~DeviceMemory() = default;

  virtual std::string_view name() const = 0;

  // The smallest sensible request: the cost of a call and the granularity of memory differ widely
  // between devices.
  virtual Bytes unit() const { return Bytes{2} << 20; }

  // The alignment of every piece: a multiple of kDefaultAlignment.
  virtual Bytes alignment() const { return kDefaultAlignment; }

  // Returns a piece of at least `size` (> 0) bytes; null if the device has not that much left.
  virtual void* allocate(Bytes size) = 0;

  // Sets the pools that are virtual memory from now on. Returns false, without effect, if all shall
  // be and the device has no virtual memory.
  virtual bool use_virtual(VirtualPools pools) { return pools != VirtualPools::kAll; }

  // Like allocate(), for a plan's pool. `grows`: the pool may need more memory later.
  virtual void* allocate_pool(Bytes size, bool /*grows*/) { return allocate(size); }

  // True if grow() can add memory to the pool.
  virtual bool can_grow(const void* /*pool*/) const { return false; }

  // Adds memory behind a pool of `before` bytes, which has `size` then. Returns false, without
  // effect, if the device has not that much left.
  virtual bool grow(void* /*pool*/, Bytes /*before*/, Bytes /*size*/) { return false; }

  // Takes back a piece or pool, with the size it was allocated with or has grown to.
  virtual void release(void* piece, Bytes size) noexcept = 0;

  // Gives back a pool's memory with its content and keeps its addresses. Returns false, without
  // effect, if that is not possible.
  virtual bool suspend(void* /*piece*/, Bytes /*size*/) { return false; }

  // Maps other memory to the addresses of a suspended pool. Returns false if the device has not
  // that much left.
  virtual bool resume(void* /*piece*/, Bytes /*size*/) { return false; }

  // Estimates the bytes that allocate() can still give; for messages and early refusals.
  virtual Bytes available() const = 0;
};

}  // namespace stalloc::device
