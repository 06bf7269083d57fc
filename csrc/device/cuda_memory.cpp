// Before memory is unmapped, the whole device is synchronized: unlike cudaFree, unmapping does not
// wait for work that uses it.
#include "device/cuda_memory.h"

#include <algorithm>
#include <utility>

#include "base/align.h"
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

void CudaMemory::fail(const std::string& what, CudaRuntime::Error error) const {
  throw Error(what + " on " + name_ + " failed: " + runtime_.explain(error) +
              ". The device reports this for any call after a kernel has crashed; if one has, the "
              "process must be started anew.");
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

void CudaMemory::tell_that_parts_go(std::uintptr_t begin,
                                    const std::vector<Bytes>& parts) const noexcept {
  std::uintptr_t at = begin;
  for (const Bytes part : parts) at += static_cast<std::uintptr_t>(part);
  for (std::size_t i = parts.size(); i-- > 0;) {
    at -= static_cast<std::uintptr_t>(parts[i]);
    tell(i > 0 ? Step::kPartGoes : Step::kGoes, reinterpret_cast<void*>(at), parts[i]);
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
  if (!set_aside(size)) return nullptr;
  void* piece = nullptr;
  try {
    piece = allocate_virtual(size, grows);
  } catch (...) {
    settle(size, /*taken=*/false);
    if (must) throw;
    return allocate(size);  // some devices and containers have no virtual memory
  }
  settle(size, /*taken=*/piece != nullptr);
  if (piece) tell(Step::kTaken, piece, size);
  return piece;
}

// `size` in whole chunks of virtual memory.
std::size_t CudaMemory::whole_chunks(Bytes size) const {
  std::size_t granularity = 0;
  const auto wanted = properties();
  if (const auto error = runtime_.memory_granularity(&granularity, &wanted, /*minimum=*/0)) {
    fail("asking for the granularity of virtual memory", error);
  }
  return static_cast<std::size_t>(align_up(size, static_cast<Bytes>(granularity)));
}

void* CudaMemory::allocate_virtual(Bytes size, bool grows) {
  const DeviceGuard device(runtime_, device_);
  if (device.error()) fail("allocating " + format_bytes(size), device.error());
  // Memory needs a context. The driver's calls make none; the runtime makes one on any call.
  if (const auto error = runtime_.free(nullptr)) fail("using the device", error);
  const std::size_t mapped = whole_chunks(size);
  const std::size_t room = grows ? std::max(mapped, whole_chunks(total())) : mapped;
  std::uintptr_t begin = 0;
  if (const auto error = runtime_.address_reserve(&begin, room, 0, 0, 0)) {
    fail("reserving " + format_bytes(static_cast<Bytes>(room)) + " of addresses", error);
  }
  bool done = false;
  try {
    done = map(begin, mapped);
  } catch (...) {
    runtime_.address_free(begin, room);
    throw;
  }
  if (!done) {
    runtime_.address_free(begin, room);
    return nullptr;
  }
  const std::lock_guard lock(mutex_);
  ranges_[begin] = {room, mapped, {mapped}, {size}};
  return reinterpret_cast<void*>(begin);
}

bool CudaMemory::can_grow(const void* pool) const {
  const std::lock_guard lock(mutex_);
  const auto it = ranges_.find(reinterpret_cast<std::uintptr_t>(pool));
  return it != ranges_.end() && it->second.end < it->second.size;
}

bool CudaMemory::grow(void* pool, Bytes before, Bytes size) {
  const DeviceGuard device(runtime_, device_);
  std::unique_lock lock(mutex_);
  const auto it = ranges_.find(reinterpret_cast<std::uintptr_t>(pool));
  if (it == ranges_.end() || it->second.mappings.empty()) return false;
  Range& range = it->second;
  const std::size_t end = whole_chunks(size);
  if (end > range.size || !has_space(size - before)) return false;
  range.parts.reserve(range.parts.size() + 1);
  if (end > range.end) {
    range.mappings.reserve(range.mappings.size() + 1);
    if (!map(it->first + range.end, end - range.end)) return false;
    range.mappings.push_back(end - range.end);
    range.end = end;
  }
  range.parts.push_back(size - before);
  note(before, /*taken=*/false);
  note(size, /*taken=*/true);
  lock.unlock();
  tell(Step::kPartAdded, static_cast<std::byte*>(pool) + before, size - before);
  return true;
}

void CudaMemory::release(void* piece, Bytes size) noexcept {
  const DeviceGuard device(runtime_, device_);
  const RelaxedCapture relaxed(runtime_);
  const auto begin = reinterpret_cast<std::uintptr_t>(piece);
  Range range;
  {
    const std::lock_guard lock(mutex_);
    if (const auto it = ranges_.find(begin); it != ranges_.end()) {
      range = std::move(it->second);
      ranges_.erase(it);
    }
  }
  if (range.size > 0) {
    const bool mapped = !range.mappings.empty();
    tell_that_parts_go(begin, range.parts);
    unmap(begin, range);
    runtime_.address_free(begin, range.size);
    if (mapped) give_back(size);
    return;
  }
  tell(Step::kGoes, piece, size);
  // Errors go unreported: at the end of the process, or after a crash, the memory goes by itself.
  if (runtime_.free(piece) != CudaRuntime::kSuccess) runtime_.get_last_error();
  give_back(size);
}

bool CudaMemory::suspend(void* piece, Bytes size) {
  const DeviceGuard device(runtime_, device_);
  std::vector<Bytes> parts;
  {
    const std::lock_guard lock(mutex_);
    const auto it = ranges_.find(reinterpret_cast<std::uintptr_t>(piece));
    if (it == ranges_.end()) return false;
    if (it->second.mappings.empty()) return true;
    parts.swap(it->second.parts);
  }
  tell_that_parts_go(reinterpret_cast<std::uintptr_t>(piece), parts);
  const std::lock_guard lock(mutex_);
  const auto it = ranges_.find(reinterpret_cast<std::uintptr_t>(piece));
  unmap(it->first, it->second);
  note(size, /*taken=*/false);
  return true;
}

bool CudaMemory::resume(void* piece, Bytes size) {
  const DeviceGuard device(runtime_, device_);
  std::unique_lock lock(mutex_);
  const auto it = ranges_.find(reinterpret_cast<std::uintptr_t>(piece));
  if (it == ranges_.end()) return false;
  Range& range = it->second;
  if (!range.mappings.empty()) return true;
  if (!has_space(size)) return false;
  range.mappings.reserve(1);
  range.parts.reserve(1);
  if (!map(it->first, range.end)) return false;
  range.mappings.push_back(range.end);
  range.parts.push_back(size);
  note(size, /*taken=*/true);
  lock.unlock();
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

CudaRuntime::AllocationProperties CudaMemory::properties() const {
  CudaRuntime::AllocationProperties result;
  result.location.device = device_;
  return result;
}

// Grants access to this device and those that can reach it: torch lets them copy from each other.
std::vector<CudaRuntime::Access> CudaMemory::accesses() const {
  int count = 0;
  if (!runtime_.can_access_peer || runtime_.get_device_count(&count)) {
    runtime_.get_last_error();
    count = 0;
  }
  std::vector<CudaRuntime::Access> result(1);
  result.front().location.device = device_;
  for (int peer = 0; peer < count; ++peer) {
    int can = 0;
    if (peer == device_ || runtime_.can_access_peer(&can, peer, device_) || can == 0) continue;
    result.emplace_back().location.device = peer;
  }
  return result;
}

// Maps memory to reserved addresses. Returns false if the device has not enough left.
bool CudaMemory::map(std::uintptr_t begin, std::size_t size) {
  const auto what = [&] { return "mapping " + format_bytes(static_cast<Bytes>(size)); };
  std::uint64_t handle = 0;
  const auto wanted = properties();
  if (const auto error = runtime_.memory_create(&handle, size, &wanted, 0)) {
    if (error != CudaRuntime::kOutOfMemory) fail(what(), error);
    runtime_.get_last_error();
    return false;
  }
  const auto mapped = runtime_.memory_map(begin, size, 0, handle, 0);
  runtime_.memory_release(handle);  // the mapping keeps it
  if (mapped) fail(what(), mapped);
  const auto allowed = accesses();
  if (const auto error = runtime_.memory_set_access(begin, size, allowed.data(), allowed.size())) {
    runtime_.memory_unmap(begin, size);
    fail(what(), error);
  }
  return true;
}

void CudaMemory::unmap(std::uintptr_t begin, Range& range) noexcept {
  if (range.mappings.empty()) return;
  bool failed = runtime_.device_synchronize() != CudaRuntime::kSuccess;
  for (const std::size_t size : range.mappings) {
    failed = runtime_.memory_unmap(begin, size) != CudaRuntime::kSuccess || failed;
    begin += size;
  }
  if (failed) runtime_.get_last_error();
  range.mappings.clear();
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
