#include "runtime/partial_release.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/range_set.h"

namespace stalloc::runtime {

bool PartialRelease::release(Pool& pool) {
  const std::vector<Range> idle = pool.space.vacate();
  if (pool.more.empty()) {
    release_chunks(pool, idle);
  } else {
    release_pieces(pool, idle);
  }
  return is_partial();
}

bool PartialRelease::release_more(Pool& pool) {
  const Bytes before = pool.space.memory();
  release(pool);
  return pool.space.memory() < before;
}

void PartialRelease::release_chunks(Pool& pool, const std::vector<Range>& idle) {
  for (const Range& r : idle) {
    const Range chunks = device_.detach(pool.base, r);
    if (chunks.size() <= 0) continue;
    pool.space.remove_memory(chunks);
    gone_.push_back(chunks);
  }
  if (is_partial()) device_.drop_detached(pool.base);
}

void PartialRelease::release_pieces(Pool& pool, const std::vector<Range>& idle) {
  RangeSet empty;
  for (const Range& r : idle) empty.insert(r);
  for (const Pool::Piece& piece : pool.pieces()) {
    const Range whole{piece.begin, piece.begin + piece.size};
    if (!empty.holds(whole)) continue;
    device_.release(piece.memory, piece.size);
    pool.set_memory(piece.begin, nullptr);
    pool.space.remove_memory(whole);
    gone_.push_back(whole);
  }
}

// In these two, a driver that fails gives no memory. A later call tells if the device is lost.
bool PartialRelease::attach(Range chunks, const Pool& pool) {
  try {
    return device_.attach_again(pool.base, chunks);
  } catch (const Error&) {
    return false;
  }
}

std::byte* PartialRelease::allocate(Range piece) {
  try {
    return static_cast<std::byte*>(device_.allocate_pool(piece.size(), /*grows=*/false));
  } catch (const Error&) {
    return nullptr;
  }
}

// Gives back the first `count` ranges. A range that the driver does not give back stays.
void PartialRelease::detach_again(std::size_t count, Pool& pool) {
  std::vector<Range> gone(gone_.begin() + static_cast<std::ptrdiff_t>(count), gone_.end());
  for (std::size_t i = 0; i < count; ++i) {
    const Range chunks = device_.detach(pool.base, gone_[i]);
    if (chunks.size() > 0) gone.push_back(chunks);
    if (chunks == gone_[i]) continue;
    pool.space.return_memory(gone_[i]);
    if (chunks.size() > 0) pool.space.remove_memory(chunks);
  }
  device_.drop_detached(pool.base);
  gone_ = std::move(gone);
}

bool PartialRelease::acquire(Pool& pool) {
  return pool.more.empty() ? acquire_chunks(pool) : acquire_pieces(pool);
}

bool PartialRelease::acquire_chunks(Pool& pool) {
  for (std::size_t i = 0; i < gone_.size(); ++i) {
    if (attach(gone_[i], pool)) continue;
    detach_again(i, pool);
    return false;
  }
  for (const Range& chunks : gone_) pool.space.return_memory(chunks);
  gone_.clear();
  return true;
}

bool PartialRelease::acquire_pieces(Pool& pool) {
  std::vector<std::pair<Range, std::byte*>> taken;
  const auto take = [&](Range piece) {
    std::byte* memory = allocate(piece);
    if (memory) taken.emplace_back(piece, memory);
    return memory != nullptr;
  };
  if (!std::ranges::all_of(gone_, take)) {
    for (const auto& [piece, memory] : taken) device_.release(memory, piece.size());
    return false;
  }
  for (const auto& [piece, memory] : taken) {
    pool.set_memory(piece.begin, memory);
    pool.space.return_memory(piece);
  }
  gone_.clear();
  return true;
}

Bytes PartialRelease::size() const {
  Bytes sum = 0;
  for (const Range& r : gone_) sum += r.size();
  return sum;
}

}  // namespace stalloc::runtime
