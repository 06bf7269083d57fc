#include "device/graph_memory.h"

#include <algorithm>
#include <array>
#include <atomic>

#include "base/error.h"
#include "base/format.h"

namespace stalloc::device {
namespace {

std::array<std::atomic<GraphMemory*>, CudaRuntime::kDevices> instances{};

CudaRuntime::AllocationProperties properties(int device) {
  CudaRuntime::AllocationProperties result;
  result.location.device = device;
  return result;
}

}  // namespace

GraphMemory& GraphMemory::of(int device) {
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  if (device < 0 || device >= CudaRuntime::kDevices) {
    throw Error("there is no GPU " + std::to_string(device));
  }
  auto& instance = instances[static_cast<std::size_t>(device)];
  if (GraphMemory* known = instance.load()) return *known;
  instance.store(new GraphMemory(CudaRuntime::get(), device));
  return *instance.load();
}

GraphMemory* GraphMemory::known(int device) noexcept {
  if (device < 0 || device >= CudaRuntime::kDevices) return nullptr;
  return instances[static_cast<std::size_t>(device)].load(std::memory_order_acquire);
}

GraphMemory::GraphMemory(const CudaRuntime& runtime, int device)
    : runtime_(runtime), device_(device) {
  if (!runtime.has_virtual_memory()) {
    throw Error(std::string(runtime.name) +
                " has no virtual memory here, by which graphs share memory");
  }
  const DeviceGuard guard(runtime, device);
  const auto wanted = properties(device);
  if (const auto error = runtime.memory_granularity(&unit_, &wanted, /*minimum=*/0)) {
    runtime.fail("asking for the granularity of virtual memory", device, error);
  }
}

GraphMemory::~GraphMemory() {
  while (!segments_.empty()) drop(segments_.begin());
}

void GraphMemory::begin(Pool pool) {
  const std::lock_guard lock(mutex_);
  current_ = pool;
  captures_ = true;
}

void GraphMemory::end() noexcept {
  const std::lock_guard lock(mutex_);
  captures_ = false;
  drop_retired();
}

std::uint64_t GraphMemory::create() noexcept {
  std::uint64_t handle = 0;
  const auto wanted = properties(device_);
  if (runtime_.memory_create(&handle, unit_, &wanted, /*flags=*/0)) {
    runtime_.get_last_error();
    return 0;
  }
  return handle;
}

std::size_t GraphMemory::unused_from(std::size_t index, const std::set<std::size_t>& used) const {
  for (auto next = used.lower_bound(index); next != used.end() && *next == index; ++next) ++index;
  return index;
}

// False if the device lacks the memory.
bool GraphMemory::use(std::size_t index, std::set<std::size_t>& used) noexcept {
  if (index >= shared_.size()) shared_.resize(index + 1);
  Shared& shared = shared_[index];
  if (shared.users == 0) shared.handle = create();
  if (!shared.handle) {
    trim();
    return false;
  }
  ++shared.users;
  used.insert(index);
  return true;
}

void GraphMemory::trim() noexcept {
  while (!shared_.empty() && shared_.back().users == 0) shared_.pop_back();
}

void GraphMemory::leave(std::size_t index, std::set<std::size_t>& used) noexcept {
  used.erase(index);
  Shared& shared = shared_[index];
  if (--shared.users > 0) return;
  if (shared.handle) runtime_.memory_release(shared.handle);
  shared.handle = 0;
  trim();
}

bool GraphMemory::map(std::uintptr_t at, std::uint64_t handle) noexcept {
  if (runtime_.memory_map(at, unit_, /*offset=*/0, handle, /*flags=*/0)) {
    runtime_.get_last_error();
    return false;
  }
  CudaRuntime::Access access;
  access.location.device = device_;
  if (runtime_.memory_set_access(at, unit_, &access, 1)) {
    runtime_.get_last_error();
    runtime_.memory_unmap(at, unit_);
    return false;
  }
  return true;
}

void GraphMemory::replace(std::uintptr_t at, std::uint64_t handle) {
  if (const auto error = runtime_.memory_unmap(at, unit_)) {
    runtime_.fail("unmapping memory of a graph", device_, error);
  }
  if (!map(at, handle)) throw Error("mapping memory of a graph has failed");
}

void* GraphMemory::allocate(Bytes size) noexcept {
  const std::lock_guard lock(mutex_);
  const RelaxedCapture relaxed(runtime_);
  const DeviceGuard guard(runtime_, device_);
  if (guard.error() || size <= 0) return nullptr;
  const std::size_t count = (static_cast<std::size_t>(size) + unit_ - 1) / unit_;
  std::uintptr_t begin = 0;
  if (runtime_.address_reserve(&begin, in_bytes(count), 0, 0, 0)) {
    runtime_.get_last_error();
    return nullptr;
  }
  const bool is_followed = captures_ && current_ != Pool{};
  const Pool pool = is_followed ? current_ : Pool{};
  const auto segment = segments_.emplace(begin, Segment{pool, in_bytes(count), {}}).first;
  segment->second.chunks.reserve(count);
  std::set<std::size_t>& used = used_[pool];
  std::size_t index = 0;
  for (std::size_t i = 0; i < count; ++i) {
    if (!is_followed) {  // nothing will tell what lives on
      const std::uint64_t handle = create();
      if (!handle || !map(begin + in_bytes(i), handle)) {
        if (handle) runtime_.memory_release(handle);
        drop(segment);
        return nullptr;
      }
      segment->second.chunks.push_back({kOwn, handle});
      ++own_;
      continue;
    }
    index = unused_from(index, used);
    if (!use(index, used)) {
      drop(segment);
      return nullptr;
    }
    if (!map(begin + in_bytes(i), shared_[index].handle)) {
      leave(index, used);
      drop(segment);
      return nullptr;
    }
    segment->second.chunks.push_back({index, 0});
  }
  return reinterpret_cast<void*>(begin);
}

void GraphMemory::drop(Segments::iterator segment) noexcept {
  const auto& [begin, s] = *segment;
  const auto used = used_.find(s.pool);
  for (std::size_t i = 0; i < s.chunks.size(); ++i) {
    const Chunk& chunk = s.chunks[i];
    runtime_.memory_unmap(begin + in_bytes(i), unit_);
    if (chunk.shared != kOwn) {
      leave(chunk.shared, used->second);
    } else {
      runtime_.memory_release(chunk.handle);
      --own_;
    }
  }
  runtime_.address_free(begin, s.room);
  const Pool pool = s.pool;
  segments_.erase(segment);
  const bool left =
      std::ranges::any_of(segments_, [&](const auto& entry) { return entry.second.pool == pool; });
  if (!left) used_.erase(pool);
}

void GraphMemory::release(void* p) noexcept {
  const std::lock_guard lock(mutex_);
  retired_.push_back(reinterpret_cast<std::uintptr_t>(p));
  drop_retired();
}

void GraphMemory::drop_retired() noexcept {
  if (retired_.empty() || captures_) return;  // to wait for the device would spoil the capture
  const DeviceGuard guard(runtime_, device_);
  if (guard.error() || runtime_.device_synchronize()) {
    runtime_.get_last_error();
    return;
  }
  for (const std::uintptr_t begin : retired_) {
    if (const auto segment = segments_.find(begin); segment != segments_.end()) drop(segment);
  }
  retired_.clear();
}

void GraphMemory::make_own(std::uintptr_t at, Chunk& chunk, std::set<std::size_t>& used) {
  const std::size_t index = chunk.shared;
  Shared& shared = shared_[index];
  if (shared.users == 1) {  // nobody else has it
    chunk.handle = shared.handle;
    shared.handle = 0;
  } else {
    const std::uint64_t handle = create();
    if (!handle) {
      throw OutOfMemory("a captured graph needs " + format_bytes(static_cast<Bytes>(unit_)) +
                        " more for what lives on after its capture, and GPU " +
                        std::to_string(device_) + " has no memory left");
    }
    try {
      replace(at, handle);
    } catch (...) {
      runtime_.memory_release(handle);
      throw;
    }
    chunk.handle = handle;
  }
  chunk.shared = kOwn;
  ++own_;
  leave(index, used);
}

// Takes shared chunks of other pools in the place of those that the pool alone has.
void GraphMemory::compact(Pool pool, std::set<std::size_t>& used) {
  struct Place {
    std::uintptr_t at;
    Chunk* chunk;
  };
  std::vector<Place> alone;
  for (auto& [begin, segment] : segments_) {
    if (segment.pool != pool) continue;
    for (std::size_t i = 0; i < segment.chunks.size(); ++i) {
      Chunk& chunk = segment.chunks[i];
      if (chunk.shared != kOwn && shared_[chunk.shared].users == 1) {
        alone.push_back({begin + in_bytes(i), &chunk});
      }
    }
  }
  std::ranges::sort(alone, {}, [](const Place& place) { return place.chunk->shared; });
  std::size_t index = 0;
  while (!alone.empty()) {
    index = unused_from(index, used);
    while (index < shared_.size() && shared_[index].users == 0) {
      index = unused_from(index + 1, used);
    }
    if (index >= shared_.size()) return;
    const auto [at, chunk] = alone.back();
    alone.pop_back();
    const std::size_t before = chunk->shared;
    replace(at, shared_[index].handle);
    ++shared_[index].users;
    used.insert(index);
    chunk->shared = index;
    leave(before, used);
  }
}

void GraphMemory::settle(Pool pool, std::span<const Addresses> kept) {
  const std::lock_guard lock(mutex_);
  const DeviceGuard guard(runtime_, device_);
  const auto found = used_.find(pool);
  if (found == used_.end()) return;
  // Earlier graphs of the pool may run.
  if (const auto error = runtime_.device_synchronize()) {
    runtime_.fail("waiting for the device", device_, error);
  }
  for (const Addresses& block : kept) {
    auto segment = segments_.upper_bound(block.begin);
    if (segment == segments_.begin()) continue;
    --segment;
    auto& [begin, s] = *segment;
    const std::uintptr_t end = begin + in_bytes(s.chunks.size());
    if (s.pool != pool || block.begin >= end || block.end <= block.begin) continue;
    const std::size_t last = (std::min(block.end, end) - begin + unit_ - 1) / unit_;
    for (std::size_t i = (block.begin - begin) / unit_; i < last; ++i) {
      if (s.chunks[i].shared != kOwn) make_own(begin + in_bytes(i), s.chunks[i], found->second);
    }
  }
  compact(pool, found->second);
}

GraphMemory::Figures GraphMemory::figures() const {
  const std::lock_guard lock(mutex_);
  Figures result;
  for (const auto& [begin, segment] : segments_) {
    result.addresses += static_cast<Bytes>(in_bytes(segment.chunks.size()));
  }
  const auto held =
      std::ranges::count_if(shared_, [](const Shared& shared) { return shared.users > 0; });
  result.shared = static_cast<Bytes>(in_bytes(static_cast<std::size_t>(held)));
  result.own = static_cast<Bytes>(in_bytes(own_));
  result.pools = used_.size();
  return result;
}

}  // namespace stalloc::device
