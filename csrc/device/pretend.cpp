// Allocates first fit from a range that no program on x86-64 or arm64 can map, so that touching an
// address faults at once.
#include "device/pretend.h"

#include <algorithm>

#include "base/align.h"

namespace stalloc::device {
namespace {

constexpr std::uintptr_t kBase = std::uintptr_t{1} << 60;
constexpr Bytes kGranularity = Bytes{2} << 20;

// More memory than a pool that can grow ever needs.
constexpr Bytes kMost = Bytes{1} << 42;

}  // namespace

Bytes PretendMemory::alignment() const { return kGranularity; }

// Counts a call, and `size` bytes as used unless it fails.
bool PretendMemory::take(Bytes size) {
  ++calls_;
  if (fail_in_ > 0 && --fail_in_ == 0) return false;
  if (size > capacity_ - used_) return false;
  used_ += size;
  return true;
}

void* PretendMemory::place(Bytes size, Bytes room, Bytes chunk) {
  const std::lock_guard lock(mutex_);
  if (!take(size)) return nullptr;
  std::uintptr_t address = kBase;
  for (const auto& [begin, piece] : pieces_) {
    if (begin - address >= static_cast<std::uintptr_t>(room)) break;
    address = begin + static_cast<std::uintptr_t>(align_up(piece.room, kGranularity));
  }
  pieces_[address] = {{.room = room, .size = size, .held = size}, chunk};
  return reinterpret_cast<void*>(address);
}

void* PretendMemory::allocate(Bytes size) { return place(size, size, /*chunk=*/0); }

// The addresses of a pool that grows.
Bytes PretendMemory::most_room(Bytes size) const {
  return std::max(size, std::min(capacity_, kMost) * kRoomPerMemory);
}

void* PretendMemory::allocate_pool(Bytes size, bool grows) {
  if (!grows || !grows_) return allocate(size);
  return place(size, most_room(size), chunk_of(size, kGranularity));
}

void* PretendMemory::allocate_addresses(Bytes size, Bytes memory) {
  if (!grows_) return nullptr;
  void* pool = place(memory, most_room(size), chunk_of(size, kGranularity));
  if (pool) extend(pool, memory, size);
  return pool;
}

void* PretendMemory::allocate_movable(Bytes size, Bytes memory, Bytes chunk) {
  if (!grows_) return nullptr;
  void* piece = place(memory, /*room=*/size, align_up(chunk, kGranularity));
  if (piece && memory < size) extend(piece, memory, size);
  return piece;
}

bool PretendMemory::can_grow(const void* pool) const {
  const std::lock_guard lock(mutex_);
  const auto it = pieces_.find(reinterpret_cast<std::uintptr_t>(pool));
  return it != pieces_.end() && it->second.room > it->second.size;
}

Bytes PretendMemory::room(const void* pool) const {
  const std::lock_guard lock(mutex_);
  const auto it = pieces_.find(reinterpret_cast<std::uintptr_t>(pool));
  return it == pieces_.end() ? 0 : it->second.room;
}

PretendMemory::Piece* PretendMemory::find(const void* piece) {
  const auto it = pieces_.find(reinterpret_cast<std::uintptr_t>(piece));
  return it == pieces_.end() ? nullptr : &it->second;
}

bool PretendMemory::add(Piece& piece, Bytes size) {
  if (!take(piece.lacking(size))) return false;
  piece.add(size);
  return true;
}

bool PretendMemory::grow(void* pool, Bytes before, Bytes size) {
  const std::lock_guard lock(mutex_);
  Piece* piece = find(pool);
  if (!piece || piece->size != before || size > piece->room || !add(*piece, size - before)) {
    return false;
  }
  piece->size = size;
  return true;
}

bool PretendMemory::extend(void* memory, Bytes before, Bytes size) {
  const std::lock_guard lock(mutex_);
  Piece* pool = find(memory);
  if (!pool || pool->size != before || size > pool->room) return false;
  pool->extend(size);
  return true;
}

Range PretendMemory::detach(void* pool, Range range) {
  const std::lock_guard lock(mutex_);
  Piece* piece = find(pool);
  if (!piece || piece->chunk == 0) return {};
  const Range whole = piece->chunks_in(range, piece->chunk);
  if (whole.size() == 0) return {};
  piece->detach(whole);
  return whole;
}

bool PretendMemory::attach(void* pool, Range range) {
  const std::lock_guard lock(mutex_);
  Piece* piece = find(pool);
  if (!piece || !piece->lacks(range) || !add(*piece, range.size())) return false;
  piece->absent.remove(range);
  return true;
}

void PretendMemory::shrink(void* memory, Bytes size) noexcept {
  const std::lock_guard lock(mutex_);
  if (Piece* pool = find(memory)) pool->shrink(size);
}

void PretendMemory::drop_detached(void* pool) noexcept {
  const std::lock_guard lock(mutex_);
  Piece* piece = find(pool);
  if (!piece) return;
  used_ -= piece->drop();
}

void PretendMemory::release(void* piece, Bytes size) noexcept {
  const std::lock_guard lock(mutex_);
  const auto it = pieces_.find(reinterpret_cast<std::uintptr_t>(piece));
  if (it == pieces_.end() || it->second.size != size) {
    ++wrong_releases_;
    return;
  }
  used_ -= it->second.held;
  pieces_.erase(it);
}

Bytes PretendMemory::available() const {
  const std::lock_guard lock(mutex_);
  return capacity_ - used_;
}

Bytes PretendMemory::used() const {
  const std::lock_guard lock(mutex_);
  return used_;
}

int PretendMemory::calls() const {
  const std::lock_guard lock(mutex_);
  return calls_;
}

int PretendMemory::wrong_releases() const {
  const std::lock_guard lock(mutex_);
  return wrong_releases_;
}

void PretendMemory::fail_at(int n) {
  const std::lock_guard lock(mutex_);
  fail_in_ = n;
}

}  // namespace stalloc::device
