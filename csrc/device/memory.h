// Where memory comes from: the only folder that asks the machine for any.
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

  // The least it makes sense to ask for at a time: what one call costs, and how finely the device
  // divides its memory, differ by far between devices.
  virtual Bytes unit() const { return Bytes{2} << 20; }

  // What every piece is aligned to: a multiple of kDefaultAlignment.
  virtual Bytes alignment() const { return kDefaultAlignment; }

  // A piece of at least `size` (> 0) bytes; null when the device has not that much left.
  virtual void* allocate(Bytes size) = 0;

  // Whether pools that are allocated from now on can be suspended. False, and nothing has changed,
  // where that cannot be had.
  virtual bool keep_addresses(bool keep) { return !keep; }

  // The same as allocate() for a plan's pool.
  virtual void* allocate_pool(Bytes size) { return allocate(size); }

  // Takes back what either of these gave, of the same size.
  virtual void release(void* piece, Bytes size) noexcept = 0;

  // Gives the memory behind a pool back, with all that is in it, and keeps its addresses. False,
  // and nothing has changed, where that cannot be done.
  virtual bool suspend(void* /*piece*/, Bytes /*size*/) { return false; }

  // Brings other memory to the addresses of a suspended pool. False when the device has not that
  // much left.
  virtual bool resume(void* /*piece*/, Bytes /*size*/) { return false; }

  // How much allocate() could probably give in all now; for messages and early refusals.
  virtual Bytes available() const = 0;
};

}  // namespace stalloc::device
