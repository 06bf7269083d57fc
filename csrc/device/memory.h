// The interface of memory sources. No other folder takes memory from the machine.
#pragma once

#include <string>
#include <string_view>

#include "base/types.h"

namespace stalloc::device {

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

  // Sets whether pools allocated from now on can be suspended. Returns false, without effect, if
  // the device does not support it.
  virtual bool keep_addresses(bool keep) { return !keep; }

  // Like allocate(), for a plan's pool.
  virtual void* allocate_pool(Bytes size) { return allocate(size); }

  // Takes back a piece or pool, with the size it was allocated with.
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
