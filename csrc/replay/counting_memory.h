// The pretended device of a replay: counts the memory that allocators take, in whole pages. It has
// virtual memory, like every GPU that torch supports.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <utility>

#include "base/align.h"
#include "device/pretend.h"
#include "replay/placements.h"
#include "runtime/statistics.h"

namespace stalloc::replay {

// The address of a piece of the pretended device as a number.
inline Offset address_of(const void* p) {
  return static_cast<Offset>(std::bit_cast<std::uintptr_t>(p));
}

// Records pieces in `placements` unless that is null. Another allocator of the device, which asks
// no DeviceMemory, may hold a share of it.
class CountingMemory final : public device::DeviceMemory {
 public:
  CountingMemory(Bytes capacity, Bytes page, Placements* placements)
      : memory_(capacity, /*grows=*/true), page_(page), placements_(placements) {}

  std::string_view name() const override { return memory_.name(); }
  void* allocate(Bytes size) override { return allocate_pool(size, /*grows=*/false); }
  void* allocate_pool(Bytes size, bool grows) override {
    const Bytes pages = align_up(size, page_);
    return take(size, pages, [&] { return memory_.allocate_pool(pages, grows); });
  }
  void* allocate_addresses(Bytes size, Bytes memory) override {
    return take(memory, memory,
                [&] { return memory_.allocate_addresses(align_up(size, page_), memory); });
  }
  void* allocate_movable(Bytes size, Bytes memory, Bytes chunk) override {
    const Bytes pages = align_up(size, page_);
    const Bytes held = align_up(memory, page_);
    return take(memory, held,
                [&] { return memory_.allocate_movable(pages, held, align_up(chunk, page_)); });
  }
  bool can_grow(const void* pool) const override { return memory_.can_grow(pool); }
  Bytes room(const void* pool) const override { return memory_.room(pool); }
  bool grow(void* pool, Bytes before, Bytes size) override {
    const Bytes pages = align_up(size, page_);
    const Bytes more = pages - align_up(before, page_);
    if (!add(more, [&] { return memory_.grow(pool, pages - more, pages); })) return false;
    if (placements_) placements_->take(address_of(pool) + before, size - before);
    return true;
  }
  bool extend(void* pool, Bytes before, Bytes size) override {
    return memory_.extend(pool, align_up(before, page_), align_up(size, page_));
  }
  Range detach(void* pool, Range range) override {
    const Range gone = memory_.detach(pool, range);
    if (gone.size() <= 0) return {};
    ++unmaps_;
    detached_ += gone.size();
    if (placements_) placements_->give_back(address_of(pool) + gone.begin, gone.size());
    return gone;
  }
  // The last range of a pool may end within a page.
  bool attach(void* pool, Range range) override {
    const Range pages{range.begin, align_up(range.end, page_)};
    if (!add(pages.size(), [&] { return memory_.attach(pool, pages); })) return false;
    if (placements_) placements_->take(address_of(pool) + range.begin, range.size());
    return true;
  }
  void shrink(void* pool, Bytes size) noexcept override {
    memory_.shrink(pool, align_up(size, page_));
  }
  void drop_detached(void* pool) noexcept override {
    memory_.drop_detached(pool);
    held_.add(-std::exchange(detached_, 0));
  }
  void release(void* piece, Bytes size) noexcept override {
    const Bytes before = memory_.used();
    ++frees_;
    memory_.release(piece, align_up(size, page_));
    held_.add(memory_.used() - before);
    if (placements_) placements_->give_back(address_of(piece), size);
  }
  Bytes available() const override { return memory_.available() - others_; }

  // The other allocator holds `bytes` now.
  void set_others(Bytes bytes) {
    held_.add(bytes - others_);
    others_ = bytes;
  }
  // The bytes of pieces.
  Bytes in_pieces() const { return held_.current - others_; }

  // The bytes of pieces and of the other allocator.
  const runtime::Gauge& held() const { return held_; }
  void reset_peak() { held_.reset_peak(); }
  std::int64_t mallocs() const { return mallocs_; }
  std::int64_t frees() const { return frees_; }
  std::int64_t maps() const { return maps_; }
  std::int64_t unmaps() const { return unmaps_; }

 private:
  // Takes a piece in which `size` bytes of `pages` have memory for the caller.
  void* take(Bytes size, Bytes pages, auto call) {
    if (pages > available()) return nullptr;
    void* piece = call();
    if (!piece) return nullptr;
    ++mallocs_;
    held_.add(pages);
    if (placements_) placements_->take(address_of(piece), size);
    return piece;
  }
  // Adds memory to a pool, at first what is detached.
  bool add(Bytes size, auto call) {
    const Bytes kept = std::min(detached_, size);
    if (size - kept > available() || !call()) return false;
    ++maps_;
    detached_ -= kept;
    held_.add(size - kept);
    return true;
  }

  device::PretendMemory memory_;
  const Bytes page_;
  Placements* const placements_;
  Bytes others_ = 0;
  Bytes detached_ = 0;
  runtime::Gauge held_;
  std::int64_t mallocs_ = 0;
  std::int64_t frees_ = 0;
  std::int64_t maps_ = 0;
  std::int64_t unmaps_ = 0;
};

}  // namespace stalloc::replay
