#include "torch/cuda/graph_loans.h"

#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGraphsC10Utils.h>
#include <c10/cuda/CUDAGuard.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <string>

#include "base/error.h"
#include "torch/cuda/shortage.h"

namespace stalloc::torch_adapters {
namespace {

using device::GraphMemory;

constexpr std::size_t kMostArenas = 4;           // of a device: one for each stream
constexpr Bytes kLeastMemory = Bytes{16} << 20;  // torch requests at least as much for a segment
constexpr std::uint64_t kFirstPool = std::uint64_t{1} << 62;  // torch counts from 1

thread_local bool to_arena = false;

// Torch's allocator takes this for the device's memory in these pools.
class Segments final : public Delegate {
 public:
  Segments(allocator_api::CUDAAllocator& torchs, GraphMemory& memory)
      : Delegate(torchs), memory_(memory) {}

  void* raw_alloc(size_t n) override {
    const auto size = static_cast<Bytes>(n);
    return makes_arena ? memory_.lend(size) : memory_.allocate(size);
  }
  void raw_delete(void* p) override { memory_.release(p); }

  static thread_local bool makes_arena;

 private:
  GraphMemory& memory_;
};

thread_local bool Segments::makes_arena = false;

class Set {  // a flag, for the lifetime of this
 public:
  explicit Set(bool& flag) : flag_(flag) { flag_ = true; }
  ~Set() { flag_ = false; }
  Set(const Set&) = delete;
  Set& operator=(const Set&) = delete;

 private:
  bool& flag_;
};

bool succeeds(cudaError_t error) {
  if (error == cudaSuccess) return true;
  static_cast<void>(cudaGetLastError());  // else the next kernel reports it
  return false;
}

// An event after the work of a stream of the current device; null if there can be none.
cudaEvent_t event_on(cudaStream_t stream) {
  cudaEvent_t event = nullptr;
  if (!succeeds(cudaEventCreateWithFlags(&event, cudaEventDisableTiming))) return nullptr;
  if (succeeds(cudaEventRecord(event, stream))) return event;
  succeeds(cudaEventDestroy(event));
  return nullptr;
}

// The same of a stream of any device. Throws nothing: blocks are freed while a process ends, too.
cudaEvent_t event_on(c10::cuda::CUDAStream stream) {
  int current = 0;
  if (!succeeds(cudaGetDevice(&current)) || !succeeds(cudaSetDevice(stream.device_index()))) {
    return nullptr;
  }
  const cudaEvent_t event = event_on(stream.stream());
  succeeds(cudaSetDevice(current));
  return event;
}

// Lets `stream` wait for the event, which goes.
bool wait_for(cudaStream_t stream, cudaEvent_t event) {
  const bool waits = event && succeeds(cudaStreamWaitEvent(stream, event, 0));
  if (event) succeeds(cudaEventDestroy(event));
  return waits;
}

std::uintptr_t address(const void* p) { return reinterpret_cast<std::uintptr_t>(p); }

}  // namespace

// A request that is underway: the only one of its device.
class GraphLoans::Request {
 public:
  Request(GraphLoans& loans, State& state) : loans_(loans), state_(state) {}
  ~Request() {
    {
      const std::lock_guard lock(loans_.mutex_);
      state_.is_requesting = false;
    }
    loans_.requested_.notify_all();
  }
  Request(const Request&) = delete;
  Request& operator=(const Request&) = delete;

 private:
  GraphLoans& loans_;
  State& state_;
};

void GraphLoans::start(c10::DeviceIndex device, bool may_run) {
  State& s = state(device);
  const std::lock_guard lock(mutex_);
  s.device = device;
  if (!s.segments) {
    s.memory = &GraphMemory::of(device);
    s.segments = std::make_shared<Segments>(torchs_, *s.memory);
    s.waits_for_replay = may_run;
  }
  if (!s.lends.exchange(true)) lending_.fetch_add(1);
}

void GraphLoans::stop(c10::DeviceIndex device) {
  State& s = state(device);
  refuse(s);
  drop(s, unused_arenas(s, /*stale_only=*/false));
}

void GraphLoans::refuse(State& s) {
  if (s.lends.exchange(false)) lending_.fetch_sub(1);
}

template <typename Call>
auto GraphLoans::in_pool(c10::DeviceIndex device, Pool id, Call call) {
  // If several pools take a stream, torch asks the one that was opened last.
  torchs_.beginAllocateToPool(device, id, [](cudaStream_t) { return to_arena; });
  struct Closed {
    allocator_api::CUDAAllocator& torchs;
    c10::DeviceIndex device;
    Pool id;
    ~Closed() {
      torchs.endAllocateToPool(device, id);
      torchs.releasePool(device, id);
    }
  };
  const Closed closed{torchs_, device, id};
  const Set route(to_arena);
  return call();
}

c10::DataPtr GraphLoans::lend(c10::DeviceIndex device, Bytes size, c10::cuda::CUDAStream stream,
                              const std::function<c10::DataPtr()>& request) {
  State& s = state(device);
  const cudaStream_t handle = stream.stream();
  bool has_arena = false;
  {
    const std::lock_guard lock(mutex_);
    if (!s.lends.load() || s.is_requesting || s.frees > 0 || s.is_replaying || s.captures > 0 ||
        s.waits_for_replay || (s.user && *s.user != handle) || !s.book.suits(size)) {
      return {};
    }
    const std::uint64_t changes = s.memory->changes();
    const auto arena = s.arenas.find(handle);
    has_arena = arena != s.arenas.end() && arena->second.changes == changes;
    if (has_arena ? !s.book.fits(arena->second.memory, size)
                  : !s.book.is_idle() || s.refused == changes) {
      return {};
    }
    s.is_requesting = true;
  }
  const Request underway(*this, s);
  // Nobody else changes the arenas, the user or the last replay now.
  if (c10::cuda::currentStreamCaptureStatusMayInitCtx() != c10::cuda::CaptureStatus::None) {
    return {};  // of a library: torch's captures are known
  }
  if (!has_arena && !make_arena(s, stream)) return {};
  const Arena arena = s.arenas.at(handle);
  if (!has_arena) {
    const std::lock_guard lock(mutex_);
    if (!s.book.fits(arena.memory, size)) return {};
  }
  if (!s.user && s.replay && *s.replay != handle && !wait_for(handle, event_on(*s.replay))) {
    return {};
  }
  c10::DataPtr block;
  try {
    const Shortage withheld;
    block = in_pool(device, arena.id, request);
  } catch (const c10::OutOfMemoryError&) {
    refuse(s);  // torch does not place blocks as expected
    return {};
  }
  const std::uintptr_t begin = address(block.get());
  if (begin < arena.memory.begin || begin >= arena.memory.end) {
    refuse(s);
    return block;
  }
  const std::lock_guard lock(mutex_);
  s.user = handle;
  s.book.lend(begin, size);
  loans_.fetch_add(1);
  return block;
}

bool GraphLoans::make_arena(State& s, c10::cuda::CUDAStream stream) {
  const std::uint64_t changes = s.memory->changes();
  std::map<cudaStream_t, Arena> old;
  {
    const std::lock_guard lock(mutex_);
    const bool is_stale = std::ranges::any_of(
        s.arenas, [&](const auto& entry) { return entry.second.changes != changes; });
    if (is_stale || s.arenas.size() >= kMostArenas) old.swap(s.arenas);
  }
  drop(s, std::move(old));
  const auto cannot = [&] {
    const std::lock_guard lock(mutex_);
    s.refused = changes;
    return false;
  };
  const Bytes size = s.memory->lendable();
  if (size < kLeastMemory || torchs_.getMemoryFraction(s.device) < 1.0) return cannot();
  const Pool id{0, kFirstPool + pools_.fetch_add(1)};
  torchs_.createOrIncrefPool(s.device, id, s.segments);
  Arena arena{id, {}, changes};
  const HiddenRequests::DeviceStats before = torchs_.getDeviceStats(s.device);
  try {
    const Shortage withheld;
    const Set made(Segments::makes_arena);
    void* p = in_pool(s.device, id, [&] {
      return torchs_.raw_alloc_with_stream(static_cast<std::size_t>(size), stream.stream());
    });
    arena.memory = {address(p), address(p) + static_cast<std::uintptr_t>(size)};
    const bool is_lent = s.memory->lends(p);
    torchs_.raw_delete(p);
    hidden_.hide(torchs_, s.device, before, size);
    if (!is_lent) {
      drop(s, {{stream.stream(), arena}});
      return cannot();
    }
  } catch (const c10::OutOfMemoryError&) {
    drop(s, {{stream.stream(), arena}});
    return cannot();
  }
  const std::lock_guard lock(mutex_);
  s.arenas[stream.stream()] = arena;
  return true;
}

void GraphLoans::drop(State& s, std::map<cudaStream_t, Arena> arenas) {
  for (const auto& [stream, arena] : arenas) {
    torchs_.releasePool(s.device, arena.id);
    // Gives back what no block has. torch refuses while a private pool is open; then this memory
    // goes when the program asks for that.
    try {
      torchs_.emptyCache(arena.id);
    } catch (const c10::Error&) {
    }
  }
}

GraphLoans::State* GraphLoans::begin_free(void* p) {
  if (loans_.load(std::memory_order_relaxed) == 0) [[likely]] {
    return nullptr;
  }
  const std::lock_guard lock(mutex_);
  const auto found =
      std::ranges::find_if(states_, [&](const State& s) { return s.book.knows(address(p)); });
  if (found == states_.end()) return nullptr;
  State& s = *found;
  if (const auto recorded = s.recorded.extract(p)) {
    for (const c10::cuda::CUDAStream& stream : recorded.mapped()) {
      const cudaEvent_t event = s.captures > 0 ? nullptr : event_on(stream);
      if (event) {
        s.uses.push_back(event);
      } else {
        s.has_unknown_use = true;
      }
    }
  }
  s.book.take_back(address(p));
  loans_.fetch_sub(1);
  ++s.frees;
  return &s;
}

void GraphLoans::end_free(State& s) {
  const std::lock_guard lock(mutex_);
  --s.frees;
}

void GraphLoans::record_stream(void* p, c10::cuda::CUDAStream stream) {
  if (loans_.load(std::memory_order_relaxed) == 0) return;
  const std::lock_guard lock(mutex_);
  for (State& s : states_) {
    if (!s.book.knows(address(p))) continue;
    if (stream.device_index() == s.device && stream.stream() == s.user) continue;  // the block's
    s.book.record(address(p));
    s.recorded[p].push_back(stream);
  }
}

bool GraphLoans::lent(const void* p) const {
  const std::lock_guard lock(mutex_);
  return std::ranges::any_of(states_,
                             [&](const State& s) { return s.memory && s.memory->lends(p); });
}

void GraphLoans::wait_for_request(State& s, std::unique_lock<std::mutex>& lock) {
  requested_.wait(lock, [&] { return !s.is_requesting; });
}

void GraphLoans::keep_live(State& s, std::unique_lock<std::mutex>& lock, bool is_replay) {
  const auto live = s.book.live();
  std::map<cudaStream_t, Arena> old;
  std::vector<Pool> left;
  if (!live.empty()) {
    lock.unlock();
    s.memory->keep(live);
    lock.lock();
    old.swap(s.arenas);
  }
  const std::size_t still_live = s.book.live().size();
  if (is_replay) {
    s.book.end_round();
  } else {
    s.book.interrupt_round();
  }
  loans_.fetch_sub(still_live);
  s.recorded.clear();
  if (is_replay && s.captures == 0 && !s.book.is_idle()) {
    // Freed blocks that record_stream() was called for: the replay waits for their uses on the
    // device, and torch gets them back some time. To empty the pool would wait with the host.
    for (const auto& [stream, arena] : std::exchange(s.arenas, {})) left.push_back(arena.id);
    s.book.clear();
  }
  if (!s.lends.load() && s.captures == 0) old.merge(s.arenas);
  if (old.empty() && left.empty()) return;
  lock.unlock();
  for (const Pool& pool : left) torchs_.releasePool(s.device, pool);
  drop(s, std::move(old));
  lock.lock();
}

void GraphLoans::wait_for_uses(State& s, cudaStream_t stream) {
  const c10::cuda::CUDAGuard guard(s.device);
  bool is_ordered = !std::exchange(s.has_unknown_use, false);
  for (const cudaEvent_t event : std::exchange(s.uses, {})) {
    is_ordered = wait_for(stream, event) && is_ordered;
  }
  if (s.user && *s.user != stream) is_ordered = wait_for(stream, event_on(*s.user)) && is_ordered;
  if (!is_ordered) {
    s.has_unknown_use = true;
    C10_CUDA_CHECK(cudaDeviceSynchronize());
    s.has_unknown_use = false;
  }
  s.user.reset();
}

void GraphLoans::begin_replay(c10::DeviceIndex device, cudaStream_t stream, bool stays) {
  State& s = state(device);
  std::unique_lock lock(mutex_);
  s.is_replaying = true;
  try {
    wait_for_request(s, lock);
    keep_live(s, lock, /*is_replay=*/true);
    wait_for_uses(s, stream);
  } catch (...) {
    s.is_replaying = false;
    throw;
  }
  s.replay = stream;
  s.waits_for_replay = !stays;
}

void GraphLoans::end_replay(c10::DeviceIndex device) {
  const std::lock_guard lock(mutex_);
  state(device).is_replaying = false;
}

void GraphLoans::begin_capture(c10::DeviceIndex device) {
  State& s = state(device);
  std::unique_lock lock(mutex_);
  ++s.captures;
  try {
    wait_for_request(s, lock);
    keep_live(s, lock, /*is_replay=*/false);
  } catch (...) {
    --s.captures;
    throw;
  }
}

void GraphLoans::end_capture(c10::DeviceIndex device) {
  const std::lock_guard lock(mutex_);
  --state(device).captures;
}

void GraphLoans::end(c10::DeviceIndex device) {
  stop(device);
  begin_capture(device);
  end_capture(device);
  const c10::cuda::CUDAGuard guard(device);
  C10_CUDA_CHECK(cudaDeviceSynchronize());
}

std::map<cudaStream_t, GraphLoans::Arena> GraphLoans::unused_arenas(State& s, bool stale_only) {
  const std::lock_guard lock(mutex_);
  if (s.arenas.empty() || s.is_requesting || s.captures > 0 || !s.book.is_idle()) return {};
  const std::uint64_t changes = s.memory->changes();
  const auto is_stale = [&](const auto& entry) { return entry.second.changes != changes; };
  if (stale_only && std::ranges::none_of(s.arenas, is_stale)) return {};
  return std::exchange(s.arenas, {});
}

bool GraphLoans::give_back() {
  bool any = false;
  for (State& s : states_) {
    std::map<cudaStream_t, Arena> unused = unused_arenas(s, /*stale_only=*/true);
    any = any || !unused.empty();
    drop(s, std::move(unused));
  }
  return any;
}

}  // namespace stalloc::torch_adapters
