#include "memory.h"

#include <algorithm>

#include "errors.h"

namespace standin {
namespace {

constexpr Address kPlainBase = Address{1} << 60;
constexpr Address kDeviceSpan = Address{1} << 50;
constexpr Address kVirtualBase = Address{1} << 61;
constexpr std::uint64_t kPlainUnit = 512;

std::uint64_t round_up(std::uint64_t size, std::uint64_t unit) {
  return (size + unit - 1) / unit * unit;
}

// The lowest hole of `size` bytes above `base` in `taken`, which maps begins to sizes.
template <typename Map, typename Size>
Address first_gap(const Map& taken, Address base, std::uint64_t size, std::uint64_t alignment,
                  Size size_of) {
  Address at = base;
  for (auto it = taken.lower_bound(base); it != taken.end(); ++it) {
    if (it->first - at >= size && it->first >= at) break;
    at = round_up(it->first + size_of(it->second), alignment);
  }
  return at;
}

}  // namespace

void Memory::configure(int devices, std::uint64_t bytes, std::uint64_t used) {
  const bool keep = keeps_contents_;
  *this = Memory{};
  keeps_contents_ = keep;
  devices_.assign(static_cast<std::size_t>(devices), Device{bytes, used, used});
}

bool Memory::take(int device, std::uint64_t size) {
  Device& d = devices_[static_cast<std::size_t>(device)];
  if (size > d.capacity - std::min(d.used, d.capacity)) return false;
  d.used += size;
  d.peak = std::max(d.peak, d.used);
  return true;
}

int Memory::allocate(int device, std::uint64_t size, Address* out) {
  const std::uint64_t rounded = round_up(size, kPlainUnit);
  if (rounded < size || !take(device, rounded)) return kOutOfMemory;
  const Address base = kPlainBase + static_cast<Address>(device) * kDeviceSpan;
  *out = first_gap(allocations_, base, rounded, kPlainUnit,
                   [](const Allocation& a) { return a.size; });
  allocations_.emplace(*out, Allocation{rounded, device, new_contents(rounded)});
  return kSuccess;
}

std::optional<Memory::Allocation> Memory::allocation_at(Address begin) const {
  const auto it = allocations_.find(begin);
  if (it == allocations_.end()) return std::nullopt;
  return it->second;
}

void Memory::free(Address begin) {
  const auto it = allocations_.find(begin);
  devices_[static_cast<std::size_t>(it->second.device)].used -= it->second.size;
  allocations_.erase(it);
}

int Memory::reserve(std::uint64_t size, std::uint64_t alignment, Address hint, Address* out) {
  if (size == 0 || size % kGranularity != 0) return kInvalidValue;
  const std::uint64_t align = std::max(alignment, kGranularity);
  const Address base = hint >= kVirtualBase ? round_up(hint, align) : kVirtualBase;
  // Spans of the whole map, from the base: a reservation that begins before a hint may reach it.
  Address at = first_gap(reservations_, kVirtualBase, size, align,
                         [](std::uint64_t length) { return length; });
  if (base > at) {
    auto next = reservations_.lower_bound(base);
    const bool after = next == reservations_.end() || next->first - base >= size;
    const bool before =
        next == reservations_.begin() || std::prev(next)->first + std::prev(next)->second <= base;
    if (after && before) at = base;
  }
  *out = at;
  reservations_.emplace(at, size);
  return kSuccess;
}

int Memory::unreserve(Address begin, std::uint64_t size, std::string* complaint) {
  const auto it = reservations_.find(begin);
  if (it == reservations_.end() || it->second != size) {
    *complaint = "cuMemAddressFree of addresses that were not reserved, or not as many";
    return kInvalidValue;
  }
  const auto mapping = mappings_.lower_bound(begin);
  if (mapping != mappings_.end() && mapping->first < begin + size) {
    *complaint = "cuMemAddressFree of addresses with a live mapping";
    return kInvalidValue;
  }
  reservations_.erase(it);
  return kSuccess;
}

int Memory::create(int device, std::uint64_t size, std::uint64_t* handle, bool shareable) {
  if (size == 0 || size % kGranularity != 0) return kInvalidValue;
  if (!take(device, size)) return kOutOfMemory;
  *handle = next_handle_++;
  handles_.emplace(*handle, Handle{size, device, 1, 0, shareable, next_begin_, new_contents(size)});
  next_begin_ += size;
  return kSuccess;
}

void Memory::drop_if_unused(std::uint64_t handle) {
  const auto it = handles_.find(handle);
  if (it->second.references > 0 || it->second.mappings > 0) return;
  devices_[static_cast<std::size_t>(it->second.device)].used -= it->second.size;
  handles_.erase(it);
}

int Memory::retain(std::uint64_t handle) {
  const auto it = handles_.find(handle);
  if (it == handles_.end()) return kInvalidValue;
  ++it->second.references;
  return kSuccess;
}

std::uint64_t Memory::size_of(std::uint64_t handle) const {
  const auto it = handles_.find(handle);
  return it == handles_.end() ? 0 : it->second.size;
}

bool Memory::is_shareable(std::uint64_t handle) const {
  const auto it = handles_.find(handle);
  return it != handles_.end() && it->second.shareable;
}

int Memory::release(std::uint64_t handle, std::string* complaint) {
  const auto it = handles_.find(handle);
  if (it == handles_.end() || it->second.references == 0) {
    *complaint = "cuMemRelease of a handle that is not live";
    return kInvalidValue;
  }
  --it->second.references;
  drop_if_unused(handle);
  return kSuccess;
}

int Memory::map(Address begin, std::uint64_t size, std::uint64_t handle) {
  const auto it = handles_.find(handle);
  if (it == handles_.end() || it->second.size != size) return kInvalidValue;
  auto reservation = reservations_.upper_bound(begin);
  if (reservation == reservations_.begin()) return kInvalidValue;
  --reservation;
  if (begin + size > reservation->first + reservation->second) return kInvalidValue;
  auto next = mappings_.lower_bound(begin);
  if (next != mappings_.end() && next->first < begin + size) return kInvalidValue;
  if (next != mappings_.begin() && std::prev(next)->first + std::prev(next)->second.size > begin) {
    return kInvalidValue;
  }
  mappings_.emplace(begin, Mapping{size, handle, false});
  ++it->second.mappings;
  return kSuccess;
}

int Memory::unmap(Address begin, std::uint64_t size, std::string* complaint) {
  const auto first = mappings_.find(begin);
  Address at = begin;
  auto last = first;
  for (; last != mappings_.end() && last->first == at && at < begin + size; ++last) {
    at += last->second.size;
  }
  if (at != begin + size) {
    *complaint = "cuMemUnmap of addresses that are not mapped, or of a part of a mapping";
    return kInvalidValue;
  }
  for (auto it = first; it != last; ++it) {
    --handles_.at(it->second.handle).mappings;
    drop_if_unused(it->second.handle);
  }
  mappings_.erase(first, last);
  return kSuccess;
}

int Memory::set_access(Address begin, std::uint64_t size, std::uint64_t devices) {
  Address at = begin;
  for (auto it = mappings_.find(begin);
       it != mappings_.end() && it->first == at && at < begin + size; ++it) {
    it->second.devices |= devices;
    at += it->second.size;
  }
  return at == begin + size ? kSuccess : kInvalidValue;
}

std::uint64_t Memory::accesses(Address begin) const {
  const auto it = mappings_.find(begin);
  return it == mappings_.end() ? 0 : it->second.devices;
}

std::vector<Memory::Part> Memory::parts_behind(Address begin, Address end) const {
  std::vector<Part> result;
  auto it = mappings_.upper_bound(begin);
  if (it != mappings_.begin()) --it;
  for (; it != mappings_.end() && it->first < end; ++it) {
    const Address from = std::max(begin, it->first);
    const Address to = std::min(end, it->first + it->second.size);
    if (from >= to) continue;
    const Address base = handles_.at(it->second.handle).begin;
    result.push_back({base + (from - it->first), base + (to - it->first)});
  }
  return result;
}

std::uint64_t Memory::handle_at(Address address) const {
  auto it = mappings_.upper_bound(address);
  if (it == mappings_.begin()) return 0;
  --it;
  return address < it->first + it->second.size ? it->second.handle : 0;
}

int Memory::retain_at(Address address, std::uint64_t* handle) {
  const std::uint64_t found = handle_at(address);
  if (!found) return kInvalidValue;
  *handle = found;
  ++handles_.at(found).references;
  return kSuccess;
}

int Memory::device_of(std::uint64_t handle) const {
  const auto it = handles_.find(handle);
  return it == handles_.end() ? -1 : it->second.device;
}

std::optional<Memory::Piece> Memory::piece_around(Address address) const {
  if (auto it = allocations_.upper_bound(address); it != allocations_.begin()) {
    --it;
    if (address < it->first + it->second.size) {
      return Piece{it->first, it->second.size, it->second.device, it->second.contents.get()};
    }
  }
  if (auto it = mappings_.upper_bound(address); it != mappings_.begin()) {
    --it;
    if (address < it->first + it->second.size && it->second.devices) {
      const Handle& handle = handles_.at(it->second.handle);
      return Piece{it->first, it->second.size, handle.device, handle.contents.get()};
    }
  }
  return std::nullopt;
}

std::shared_ptr<Contents> Memory::new_contents(std::uint64_t size) const {
  return keeps_contents_ ? std::make_shared<Contents>(size) : nullptr;
}

bool Memory::is_device_address(Address address) { return address >= kPlainBase; }

template <typename Body>
bool Memory::visit(Address begin, std::uint64_t size, Body body) const {
  if (!usable(begin, begin + size)) return false;
  for (std::uint64_t done = 0; done < size;) {
    const auto piece = piece_around(begin + done);
    if (!piece->contents) return false;
    const std::uint64_t offset = begin + done - piece->begin;
    const std::uint64_t part = std::min(piece->size - offset, size - done);
    body(*piece->contents, offset, part, done);
    done += part;
  }
  return true;
}

bool Memory::read(Address begin, void* to, std::uint64_t size) const {
  return visit(begin, size, [&](Contents& c, auto offset, auto part, auto done) {
    c.read(offset, static_cast<char*>(to) + done, part);
  });
}

bool Memory::write(Address begin, const void* from, std::uint64_t size) {
  return visit(begin, size, [&](Contents& c, auto offset, auto part, auto done) {
    c.write(offset, static_cast<const char*>(from) + done, part);
  });
}

bool Memory::fill(Address begin, const void* pattern, std::uint64_t length, std::uint64_t size) {
  return visit(begin, size, [&](Contents& c, auto offset, auto part, auto) {
    c.fill(offset, pattern, length, part);
  });
}

bool Memory::usable(Address begin, Address end) const {
  const bool in_virtual = begin >= kVirtualBase;
  while (begin < end) {
    const auto piece = piece_around(begin);
    if (!piece) return false;
    begin = piece->begin + piece->size;
    if (!in_virtual && begin < end) return false;  // two allocations are never one
  }
  return true;
}

}  // namespace standin
