// The books of device memory: the taken addresses, and the bytes of each device. There is no memory
// behind them, unless contents are kept: then read() and the like copy what the memory holds. It
// belongs to the allocation or the handle, and goes with it.
//
// Addresses lie where no program on x86-64 or arm64 can map anything, so any access faults at once.
// Placement is first fit, so that freed addresses are reused soon: tests need reuse.
//
// Functions return CUDA's error codes. Not thread-safe: World locks.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "contents.h"
#include "history.h"

namespace standin {

class Memory {
 public:
  struct Device {
    std::uint64_t capacity = 0;
    std::uint64_t used = 0;
    std::uint64_t peak = 0;
  };

  // `used` bytes of each device stay taken.
  void configure(int devices, std::uint64_t bytes, std::uint64_t used = 0);
  std::vector<Device>& devices() { return devices_; }
  // Sets if new memory keeps what is written to it.
  void keep_contents(bool keep) { keeps_contents_ = keep; }
  bool keeps_contents() const { return keeps_contents_; }

  // Plain allocations.
  int allocate(int device, std::uint64_t size, Address* out);
  struct Allocation {
    std::uint64_t size = 0;
    int device = 0;
    std::shared_ptr<Contents> contents;  // null: not kept
  };
  std::optional<Allocation> allocation_at(Address begin) const;
  // `begin` is the begin of an allocation.
  void free(Address begin);

  // Virtual memory: reserved addresses, memory by handle, and mappings of one to the other.
  int reserve(std::uint64_t size, std::uint64_t alignment, Address hint, Address* out);
  int unreserve(Address begin, std::uint64_t size, std::string* complaint);
  int create(int device, std::uint64_t size, std::uint64_t* handle, bool shareable);
  int release(std::uint64_t handle, std::string* complaint);
  int map(Address begin, std::uint64_t size, std::uint64_t handle);
  int unmap(Address begin, std::uint64_t size, std::string* complaint);
  // `devices` has a bit for each device.
  int set_access(Address begin, std::uint64_t size, std::uint64_t devices);
  std::uint64_t accesses(Address begin) const;
  // The memory that is mapped to an address; 0: none.
  std::uint64_t handle_at(Address address) const;
  int retain_at(Address address, std::uint64_t* handle);
  int retain(std::uint64_t handle);
  int device_of(std::uint64_t handle) const;
  std::uint64_t size_of(std::uint64_t handle) const;
  bool is_shareable(std::uint64_t handle) const;

  // The parts of [begin, end) that are mapped, as addresses of the memory itself: the same for all
  // mappings of one handle, and no other's ever.
  struct Part {
    Address begin = 0;
    Address end = 0;
  };
  std::vector<Part> parts_behind(Address begin, Address end) const;

  // True if all of [begin, end) may be used; the device that it lies on.
  bool usable(Address begin, Address end) const;
  struct Piece {
    Address begin = 0;
    std::uint64_t size = 0;
    int device = 0;
    Contents* contents = nullptr;
  };
  std::optional<Piece> piece_around(Address address) const;

  // What usable memory holds. Each returns false, and does nothing, if the memory is not usable or
  // keeps nothing.
  bool read(Address begin, void* to, std::uint64_t size) const;
  bool write(Address begin, const void* from, std::uint64_t size);
  // The length of a pattern is 1, 2, 4, 8 or 16, and divides `begin`.
  bool fill(Address begin, const void* pattern, std::uint64_t length, std::uint64_t size);

  // True for addresses that only this memory can have.
  static bool is_device_address(Address address);

  std::size_t live_allocations() const { return allocations_.size() + handles_.size(); }
  std::size_t live_reservations() const { return reservations_.size(); }
  std::size_t live_mappings() const { return mappings_.size(); }

  static constexpr std::uint64_t kGranularity = std::uint64_t{2} << 20;  // of virtual memory

 private:
  struct Handle {
    std::uint64_t size = 0;
    int device = 0;
    int references = 1;
    int mappings = 0;
    bool shareable = false;  // with other processes
    Address begin = 0;       // of the memory itself
    std::shared_ptr<Contents> contents;
  };
  struct Mapping {
    std::uint64_t size = 0;
    std::uint64_t handle = 0;
    std::uint64_t devices = 0;  // that may use it, a bit each
  };

  bool take(int device, std::uint64_t size);
  std::shared_ptr<Contents> new_contents(std::uint64_t size) const;
  // Calls `body` with each piece's contents, the offset there, the bytes, and the bytes before.
  template <typename Body>
  bool visit(Address begin, std::uint64_t size, Body body) const;
  void drop_if_unused(std::uint64_t handle);

  std::vector<Device> devices_;
  std::map<Address, Allocation> allocations_;
  std::map<Address, std::uint64_t> reservations_;
  std::map<Address, Mapping> mappings_;
  std::unordered_map<std::uint64_t, Handle> handles_;
  std::uint64_t next_handle_ = 1;
  Address next_begin_ = 0;  // of the memory of handles
  bool keeps_contents_ = false;
};

}  // namespace standin
