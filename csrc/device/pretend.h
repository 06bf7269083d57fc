// A device of a chosen size with no memory behind it: addresses that must not be touched. For
// tests, and for replaying 80 GB traces on a small machine.
#pragma once

#include <map>
#include <mutex>

#include "device/growing_pool.h"
#include "device/memory.h"

namespace stalloc::device {

class PretendMemory final : public DeviceMemory {
 public:
  // `grows`: pools can grow in place.
  explicit PretendMemory(Bytes capacity, bool grows = false) : capacity_(capacity), grows_(grows) {}

  std::string_view name() const override { return "pretend"; }
  Bytes alignment() const override;
  void* allocate(Bytes size) override;
  void* allocate_pool(Bytes size, bool grows) override;
  void* allocate_addresses(Bytes size, Bytes memory) override;
  void* allocate_movable(Bytes size, Bytes memory, Bytes chunk) override;
  bool can_grow(const void* pool) const override;
  Bytes room(const void* pool) const override;
  bool grow(void* pool, Bytes before, Bytes size) override;
  bool extend(void* pool, Bytes before, Bytes size) override;
  // Whole chunks: see chunk_of().
  Range detach(void* pool, Range range) override;
  bool attach(void* pool, Range range) override;
  void shrink(void* pool, Bytes size) noexcept override;
  void drop_detached(void* pool) noexcept override;
  void release(void* piece, Bytes size) noexcept override;
  Bytes available() const override;

  Bytes used() const;
  int calls() const;           // calls of allocate(), allocate_pool(), grow() and attach()
  int wrong_releases() const;  // releases of pieces never given: bugs of the caller
  // Makes the n-th of these calls from now fail (1 is the next); 0 cancels that.
  void fail_at(int n);

 private:
  struct Piece : GrowingPool {
    Bytes chunk = 0;  // in which memory moves; 0: it does not
  };

  void* place(Bytes size, Bytes room, Bytes chunk);
  Bytes most_room(Bytes size) const;
  // The mutex is held in these.
  bool take(Bytes size);
  Piece* find(const void* piece);
  bool add(Piece& piece, Bytes size);

  const Bytes capacity_;
  const bool grows_;
  mutable std::mutex mutex_;
  std::map<std::uintptr_t, Piece> pieces_;
  Bytes used_ = 0;
  int calls_ = 0;
  int fail_in_ = 0;
  int wrong_releases_ = 0;
};

}  // namespace stalloc::device
