// Before memory is unmapped, the whole device is synchronized: unlike cudaFree, unmapping does not
// wait for work that uses it.
#include "device/cuda_memory.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/error.h"
#include "base/format.h"

namespace stalloc::device {

CudaMemory::CudaMemory(int device)
    : runtime_(CudaRuntime::get()), device_(device), name_("cuda:" + std::to_string(device)) {
  int count = 0;
  if (const auto error = runtime_.get_device_count(&count)) {
    fail("asking how many there are", error);
  }
  if (device < 0 || device >= count) {
    throw Error("there is no " + name_ + ": the process has " + std::to_string(count) + " of them");
  }
}

bool CudaMemory::has_space(Bytes size) const {
  return limit_ == 0 || size <= limit_ - held_.all.bytes.current - set_aside_;
}

void CudaMemory::note(Bytes size, bool taken) noexcept {
  const auto change = taken ? &Tally::add : &Tally::remove;
  for (Held* held : {&held_.all, size <= unit() ? &held_.small : &held_.large}) {
    (held->bytes.*change)(size);
    (held->pieces.*change)(1);
  }
}

bool CudaMemory::set_aside(Bytes size) {
  const std::lock_guard lock(mutex_);
  if (!has_space(size)) return false;
  set_aside_ += size;
  return true;
}

void CudaMemory::settle(Bytes size, bool taken) noexcept {
  const std::lock_guard lock(mutex_);
  set_aside_ -= size;
  if (taken) note(size, /*taken=*/true);
}

void CudaMemory::give_back(Bytes size) noexcept {
  const std::lock_guard lock(mutex_);
  note(size, /*taken=*/false);
}

void CudaMemory::tell(Step step, void* begin, Bytes size) const noexcept {
  if (const Watcher watcher = watcher_.load(std::memory_order_acquire)) {
    watcher(step, device_, begin, size);
  }
}

void CudaMemory::tell_that_parts_go(std::uintptr_t begin, const Parts& parts) const noexcept {
  for (auto part = parts.rbegin(); part != parts.rend(); ++part) {
    const bool is_first = std::next(part) == parts.rend();
    tell(is_first ? Step::kGoes : Step::kPartGoes,
         reinterpret_cast<void*>(begin + static_cast<std::uintptr_t>(part->first)), part->second);
  }
}

void* CudaMemory::allocate(Bytes size) {
  if (!set_aside(size)) return nullptr;
  void* piece = nullptr;
  try {
    piece = allocate_plain(size);
  } catch (...) {
    settle(size, /*taken=*/false);
    throw;
  }
  settle(size, /*taken=*/piece != nullptr);
  if (piece) tell(Step::kTaken, piece, size);
  return piece;
}

void* CudaMemory::allocate_plain(Bytes size) {
  const DeviceGuard device(runtime_, device_);
  const RelaxedCapture relaxed(runtime_);
  void* piece = nullptr;
  auto error = device.error();
  if (!error) error = runtime_.malloc(&piece, static_cast<std::size_t>(size));
  if (error == CudaRuntime::kSuccess) return piece;
  if (error != CudaRuntime::kOutOfMemory) fail("allocating " + format_bytes(size), error);
  runtime_.get_last_error();
  return nullptr;
}

void* CudaMemory::allocate_pool(Bytes size, bool grows) {
  const VirtualPools which = virtual_pools_.load(std::memory_order_relaxed);
  const bool must = which == VirtualPools::kAll;
  const bool may = which == VirtualPools::kGrowing && grows && runtime_.has_virtual_memory();
  if (!must && !may) return allocate(size);
  try {
    return allocate_virtual({.size = size, .memory = size, .grows = grows});
  } catch (...) {
    if (must) throw;
    return allocate(size);  // some devices and containers have no virtual memory
  }
}

void* CudaMemory::allocate_addresses(Bytes size, Bytes memory) {
  if (!may_move()) return nullptr;
  try {
    return allocate_virtual({.size = size, .memory = memory, .grows = true});
  } catch (...) {
    return nullptr;  // allocate_pool() tells why
  }
}

void* CudaMemory::allocate_movable(Bytes size, Bytes memory, Bytes chunk) {
  if (!may_move()) return nullptr;
  try {
    return allocate_virtual({.size = size, .memory = memory, .chunk = chunk});
  } catch (...) {
    return nullptr;  // plain memory will do
  }
}

bool CudaMemory::may_move() const {
  return virtual_pools_.load(std::memory_order_relaxed) != VirtualPools::kNone &&
         runtime_.has_virtual_memory();
}

void* CudaMemory::allocate_virtual(const Virtual& wanted) {
  const Bytes memory = wanted.memory;
  if (!set_aside(memory)) return nullptr;
  void* piece = nullptr;
  try {
    piece = map_virtual(wanted);
  } catch (...) {
    settle(memory, /*taken=*/false);
    throw;
  }
  settle(memory, /*taken=*/piece != nullptr);
  if (piece) tell(Step::kTaken, piece, memory);
  return piece;
}

void* CudaMemory::map_virtual(const Virtual& wanted) {
  const auto& [size, memory, grows, chunk] = wanted;
  const DeviceGuard device(runtime_, device_);
  if (device.error()) fail("allocating " + format_bytes(size), device.error());
  // Memory needs a context. The driver's calls make none; the runtime makes one on any call.
  if (const auto error = runtime_.free(nullptr)) fail("using the device", error);
  const Bytes mapped = whole_units(memory), all = whole_units(size);
  const Bytes room = grows ? std::max(all, whole_units(kRoomPerMemory * total())) : all;
  const Bytes in_chunks = chunk > 0 ? whole_units(chunk) : all;
  auto range = std::make_unique<CudaVirtualRange>(
      runtime_, device_, room, grows ? chunk_of(size, whole_units(1)) : in_chunks);
  if (!range->map({0, mapped})) return nullptr;
  const std::uintptr_t begin = range->begin();
  const std::lock_guard lock(mutex_);
  pools_[begin] = {std::move(range), {{0, memory}}, memory};
  return reinterpret_cast<void*>(begin);
}

CudaMemory::Pool* CudaMemory::find(const void* pool) {
  const auto it = pools_.find(reinterpret_cast<std::uintptr_t>(pool));
  return it == pools_.end() ? nullptr : &it->second;
}

// The pool holds so many bytes from now on. The mutex is held.
void CudaMemory::change(Pool& pool, Bytes held) noexcept {
  if (held == pool.held) return;
  if (pool.held > 0) note(pool.held, /*taken=*/false);
  if (held > 0) note(held, /*taken=*/true);
  pool.held = held;
}

bool CudaMemory::can_grow(const void* pool) const {
  const std::lock_guard lock(mutex_);
  const auto it = pools_.find(reinterpret_cast<std::uintptr_t>(pool));
  return it != pools_.end() && it->second.range->end() < it->second.range->room();
}

Bytes CudaMemory::room(const void* pool) const {
  const std::lock_guard lock(mutex_);
  const auto it = pools_.find(reinterpret_cast<std::uintptr_t>(pool));
  return it != pools_.end() && it->second.range->is_mapped() ? it->second.range->room() : 0;
}

// Maps memory to `mapped`, the rest of the whole units of `added`. Detached memory is there already
// and costs nothing. The mutex is held.
bool CudaMemory::add(Pool& pool, Range mapped, Range added, Map map) {
  const Bytes used = std::min(pool.spare, added.size());
  if (!pool.range->is_mapped() || mapped.end > pool.range->room()) return false;
  if (!has_space(added.size() - used)) return false;
  const auto part = pool.parts.emplace(added.begin, added.size()).first;
  try {
    if (mapped.size() > 0 && !((*pool.range).*map)(mapped)) {
      pool.parts.erase(part);
      return false;
    }
  } catch (...) {
    pool.parts.erase(part);
    throw;
  }
  pool.spare -= used;
  change(pool, pool.held + added.size() - used);
  return true;
}

bool CudaMemory::grow(void* memory, Bytes before, Bytes size) {
  const DeviceGuard device(runtime_, device_);
  {
    const std::lock_guard lock(mutex_);
    Pool* pool = find(memory);
    if (!pool) return false;
    // The last unit before is mapped, unless its memory has moved.
    Bytes from = whole_units(before);
    if (from > before && !pool->range->is_mapped_at(before)) from -= whole_units(1);
    const Map map = &CudaVirtualRange::map;
    if (!add(*pool, {from, whole_units(size)}, {before, size}, map)) return false;
  }
  tell(Step::kPartAdded, static_cast<std::byte*>(memory) + before, size - before);
  return true;
}

bool CudaMemory::extend(void* memory, Bytes /*before*/, Bytes size) {
  const std::lock_guard lock(mutex_);
  const Pool* pool = find(memory);
  return pool && pool->range->is_mapped() && size <= pool->range->room();
}

std::optional<CudaVirtualRange::Shared> CudaMemory::share(const void* p, Bytes size) {
  const auto address = reinterpret_cast<std::uintptr_t>(p);
  const std::lock_guard lock(mutex_);
  const auto after = pools_.upper_bound(address);
  if (after == pools_.begin()) return std::nullopt;
  const auto& [begin, pool] = *std::prev(after);
  const auto offset = static_cast<Bytes>(address - begin);
  return pool.range->share({offset, offset + size});
}

Range CudaMemory::detach(void* memory, Range range) {
  const DeviceGuard device(runtime_, device_);
  const RelaxedCapture relaxed(runtime_);
  Range going;
  Parts gone;
  {
    const std::lock_guard lock(mutex_);
    Pool* pool = find(memory);
    if (!pool || !pool->range->is_mapped()) return {};
    // The last chunk ends behind the last byte that was asked for.
    const auto [last, last_size] = *pool->parts.rbegin();
    const Bytes asked = last + last_size;
    const Range whole{range.begin, range.end >= asked ? pool->range->end() : range.end};
    going = pool->range->unmap(whole);
    going.end = std::min(going.end, asked);
    if (going.size() <= 0) return {};
    pool->spare += going.size();
    Parts kept;
    for (const auto& [begin, size] : pool->parts) {
      const Offset end = begin + size;
      const Range inside{std::max(begin, going.begin), std::min(end, going.end)};
      if (inside.size() <= 0) {
        kept.emplace(begin, size);
        continue;
      }
      gone.emplace(inside.begin, inside.size());
      if (begin < inside.begin) kept.emplace(begin, inside.begin - begin);
      if (inside.end < end) kept.emplace(inside.end, end - inside.end);
    }
    pool->parts = std::move(kept);
  }
  for (const auto& [begin, size] : gone) {
    tell(Step::kPartGoes, static_cast<std::byte*>(memory) + begin, size);
  }
  return going;
}

Offset CudaMemory::large_chunk_at(const void* pool, Offset offset) const {
  const std::lock_guard lock(mutex_);
  const auto it = pools_.find(reinterpret_cast<std::uintptr_t>(pool));
  return it == pools_.end() ? offset : it->second.range->large_chunk_at(offset);
}

bool CudaMemory::attach(void* memory, Range range) {
  return attach(memory, range, &CudaVirtualRange::map);
}

bool CudaMemory::attach_again(void* memory, Range range) {
  return attach(memory, range, &CudaVirtualRange::map_again);
}

bool CudaMemory::attach(void* memory, Range range, Map map) {
  const DeviceGuard device(runtime_, device_);
  {
    const std::lock_guard lock(mutex_);
    Pool* pool = find(memory);
    if (!pool) return false;
    // The last unit is mapped if the pool has grown meanwhile.
    Bytes end = whole_units(range.end);
    if (end > range.end && pool->range->is_mapped_at(range.end)) end -= whole_units(1);
    if (!add(*pool, {range.begin, end}, range, map)) return false;
  }
  tell(Step::kPartAdded, static_cast<std::byte*>(memory) + range.begin, range.size());
  return true;
}

void CudaMemory::drop_detached(void* memory) noexcept {
  const DeviceGuard device(runtime_, device_);
  const std::lock_guard lock(mutex_);
  Pool* pool = find(memory);
  if (!pool) return;
  pool->range->drop_kept();
  change(*pool, pool->held - std::exchange(pool->spare, 0));
}

void CudaMemory::release(void* piece, Bytes size) noexcept {
  const DeviceGuard device(runtime_, device_);
  const RelaxedCapture relaxed(runtime_);
  const auto begin = reinterpret_cast<std::uintptr_t>(piece);
  std::map<std::uintptr_t, Pool>::node_type node;
  {
    const std::lock_guard lock(mutex_);
    node = pools_.extract(begin);
  }
  if (node) {
    Pool& pool = node.mapped();
    tell_that_parts_go(begin, pool.parts);
    pool.range.reset();
    if (pool.held > 0) give_back(pool.held);
    return;
  }
  tell(Step::kGoes, piece, size);
  // Errors go unreported: at the end of the process, or after a crash, the memory goes by itself.
  if (runtime_.free(piece) != CudaRuntime::kSuccess) runtime_.get_last_error();
  give_back(size);
}

bool CudaMemory::suspend(void* piece, Bytes /*size*/) {
  const DeviceGuard device(runtime_, device_);
  Parts parts;
  {
    const std::lock_guard lock(mutex_);
    Pool* pool = find(piece);
    if (!pool) return false;
    if (!pool->range->is_mapped()) return true;
    parts.swap(pool->parts);
  }
  tell_that_parts_go(reinterpret_cast<std::uintptr_t>(piece), parts);
  const std::lock_guard lock(mutex_);
  Pool* pool = find(piece);
  pool->range->clear();
  pool->spare = 0;
  change(*pool, 0);
  return true;
}

bool CudaMemory::resume(void* piece, Bytes size) {
  const DeviceGuard device(runtime_, device_);
  {
    const std::lock_guard lock(mutex_);
    Pool* pool = find(piece);
    if (!pool) return false;
    if (pool->range->is_mapped()) return true;
    bool mapped = false;
    try {
      mapped = has_space(size) && pool->range->map_again({0, whole_units(size)});
    } catch (...) {
      pool->range->drop_kept();
      throw;
    }
    if (!mapped) {
      pool->range->drop_kept();
      return false;
    }
    pool->parts = {{0, size}};
    change(*pool, size);
  }
  tell(Step::kTaken, piece, size);
  return true;
}

void CudaMemory::set_limit(Bytes limit) {
  const std::lock_guard lock(mutex_);
  limit_ = limit;
}

CudaMemory::HeldBySize CudaMemory::held() const {
  const std::lock_guard lock(mutex_);
  return held_;
}

void CudaMemory::reset_peaks() {
  const std::lock_guard lock(mutex_);
  for (Held* held : {&held_.all, &held_.small, &held_.large}) {
    held->bytes.reset_peak();
    held->pieces.reset_peak();
  }
}

void CudaMemory::reset_totals() {
  const std::lock_guard lock(mutex_);
  for (Held* held : {&held_.all, &held_.small, &held_.large}) {
    held->bytes.reset_totals();
    held->pieces.reset_totals();
  }
}

bool CudaMemory::use_virtual(VirtualPools pools) {
  if (pools == VirtualPools::kAll && !runtime_.has_virtual_memory()) return false;
  virtual_pools_.store(pools, std::memory_order_relaxed);
  return true;
}

CudaMemory::Info CudaMemory::info() const {
  const DeviceGuard device(runtime_, device_);
  std::size_t free_bytes = 0, all_bytes = 0;
  auto error = device.error();
  if (!error) error = runtime_.mem_get_info(&free_bytes, &all_bytes);
  if (error) fail("asking how much memory there is", error);
  return {static_cast<Bytes>(free_bytes), static_cast<Bytes>(all_bytes)};
}

Bytes CudaMemory::available() const {
  const Bytes device = info().free;
  const std::lock_guard lock(mutex_);
  return limit_ > 0 ? std::clamp<Bytes>(limit_ - held_.all.bytes.current, 0, device) : device;
}

Bytes CudaMemory::total() const {
  if (total_.load(std::memory_order_relaxed) == 0) total_.store(info().total);
  return total_.load(std::memory_order_relaxed);
}

}  // namespace stalloc::device
