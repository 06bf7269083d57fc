#include "torch/cuda/allocator.h"

#include <c10/core/impl/GPUTrace.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>

#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <limits>
#include <thread>

#include "base/error.h"
#include "base/format.h"
#include "runtime/callers_growth.h"
#include "torch/autograd.h"
#include "torch/cuda/runtimes.h"

namespace stalloc::torch_adapters {
namespace {

// Rounding up a size of at most this does not overflow. torch refuses larger requests itself.
constexpr auto kLargest = static_cast<std::size_t>(std::numeric_limits<Bytes>::max() / 2);

c10::Device device_of(c10::DeviceIndex index) { return {c10::DeviceType::CUDA, index}; }

// True if a profiler may be active. Updated when one starts or stops in Python, and when a phase
// begins: asking torch at every request would cost a sixth of the request's time.
std::atomic<bool> profiling{false};
std::atomic<int> profilers_of_python{0};

bool is_profiled() {
  return profiling.load(std::memory_order_relaxed) && c10::memoryProfilingEnabled();
}

// Reports a live block to torch.profiler, as torch's allocator does. Called before a free, after
// which another thread may get the address.
void report(runtime::DeviceRuntime& runtime, void* p, bool allocated) {
  if (!is_profiled()) [[likely]] {
    return;
  }
  c10::DeviceIndex device = 0;
  while (runtime::DeviceRuntime::find_gpu(device) != &runtime) ++device;
  const auto block = runtime.allocator().inspect().block_of(p);
  if (!block) return;
  const Bytes size = block->rounded;
  const runtime::JointGauges gauges = runtime.allocator().figures().joint_gauges();
  const auto total = [&](runtime::JointGauges::Quantity q) {
    return static_cast<size_t>(gauges.ours()[q] + gauges.other()[q]);
  };
  c10::reportMemoryUsageToProfiler(p, allocated ? size : -size,
                                   total(runtime::JointGauges::kRounded),
                                   total(runtime::JointGauges::kReserved), device_of(device));
}

// Reports to torch.cuda's race detector, as torch's allocator does.
void trace(void* p, bool allocated) {
  const c10::impl::PyInterpreter* interpreter = c10::impl::GPUTrace::get_trace();
  if (!interpreter) [[likely]] {
    return;
  }
  const auto address = reinterpret_cast<std::uintptr_t>(p);
  if (allocated) {
    (*interpreter)->trace_gpu_memory_allocation(c10::DeviceType::CUDA, address);
  } else {
    (*interpreter)->trace_gpu_memory_deallocation(c10::DeviceType::CUDA, address);
  }
}

// torch's own streams stay. The number of any other one is its handle.
runtime::StreamTable::Lifetime lifetime_of(c10::cuda::CUDAStream stream) {
  using enum runtime::StreamTable::Lifetime;
  const bool is_own = stream.id() != reinterpret_cast<c10::StreamId>(stream.stream());
  return is_own ? kStays : kMayVanish;
}

// Counts a new block that is a piece of its own.
void add_direct(runtime::JointGauges::Values& values, Bytes size) {
  for (const auto q : {runtime::JointGauges::kBlocks, runtime::JointGauges::kActiveBlocks,
                       runtime::JointGauges::kSegments}) {
    values[q] += 1;
  }
  for (const auto q : {runtime::JointGauges::kRequested, runtime::JointGauges::kRounded,
                       runtime::JointGauges::kActiveBytes, runtime::JointGauges::kReserved}) {
    values[q] += size;
  }
}

// Returns the runtime whose pool may hold `p`, or null.
runtime::DeviceRuntime* owner_of(const void* p) {
  for (runtime::DeviceRuntime* runtime : gpu_runtimes()) {
    if (runtime->allocator().may_own(p)) return runtime;
  }
  return nullptr;
}

}  // namespace

CudaAllocator::CudaAllocator(allocator_api::CUDAAllocator& native)
    : Delegate(native),
      native_deleter_(native.raw_deleter()),
      history_([this] { return to().getUserMetadata(); }) {
  instance_ = this;
  // torch reads this variable once, too.
  if (std::getenv("PYTORCH_NO_CUDA_MEMORY_CACHING") || !native.isEnabled()) {
    caches_.store(false);
    detours_.fetch_add(1);
  }
}

void CudaAllocator::catch_up(c10::DeviceIndex device, bool hidden) {
  if (hidden) hidden_.store(true);
  history_.catch_up(to().isHistoryEnabled());
  const auto private_pools = to().snapshot({0, 0}, /*include_traces=*/false).segments;
  is_standard_.store(std::ranges::none_of(private_pools, [](const auto& segment) {
    return segment.owner_private_pool_id != c10::MempoolId_t{0, 0};
  }));
  // Nothing tells which pool is open, except where a block comes to lie.
  const c10::cuda::CUDAGuard guard(device);
  Probe probe;
  try {
    probe = make_probe();
  } catch (const c10::OutOfMemoryError&) {
    return;
  }
  const allocator_api::SnapshotInfo info = to().snapshot({0, 0}, /*include_traces=*/false);
  const auto address = reinterpret_cast<std::size_t>(probe.get());
  probe.reset();
  for (const auto& segment : info.segments) {
    if (address < segment.address || address >= segment.address + segment.total_size) continue;
    const c10::MempoolId_t pool = segment.owner_private_pool_id;
    if (pool == c10::MempoolId_t{0, 0}) return;
    const std::lock_guard lock(mutex_);
    const bool known = std::ranges::any_of(open_pools_, [&](const PrivatePool& open) {
      return open.device == device && open.id == pool;
    });
    if (known) return;
    const auto thread = std::this_thread::get_id();
    open_pools_.push_back(
        {device, pool, [thread](cudaStream_t) { return std::this_thread::get_id() == thread; }});
    detours_.fetch_add(1, std::memory_order_release);
    return;
  }
}

void CudaAllocator::give_back_cached(runtime::DeviceRuntime& runtime) {
  to().emptyCache();
  for (c10::DeviceIndex i = 0; i < runtime::DeviceRuntime::kGpus; ++i) {
    if (runtime::DeviceRuntime::find_gpu(i) == &runtime) note(i);
  }
}

void CudaAllocator::look_for_profiler() {
  profiling.store(profilers_of_python.load() > 0 || c10::memoryProfilingEnabled(),
                  std::memory_order_relaxed);
}

void CudaAllocator::note_profiler(bool starts) {
  profilers_of_python.fetch_add(starts ? 1 : -1);
  look_for_profiler();
}

void CudaAllocator::delete_block(void* p) {
  if (p) instance().free_block(p, instance().native_deleter_);
}

c10::DeleterFnPtr CudaAllocator::raw_deleter() const {
  return is_standard_.load() ? &delete_block : native_deleter_;
}

void CudaAllocator::free_block(void* p, c10::DeleterFnPtr native_free) {
  if (runtime::DeviceRuntime* runtime = owner_of(p)) {
    report(*runtime, p, /*allocated=*/false);
    if (history_.follows()) [[unlikely]] {
      bool waits = false;
      const History::Block block = block_at(p, &waits);
      if (block.begin) history_.frees(block, waits);
    }
    if (runtime->recorder().active()) runtime->recorder().on_free(p, running_node());
    if (runtime->allocator().deallocate(p, in_backward())) {
      trace(p, /*allocated=*/false);
      return;
    }
  }
  for (runtime::DeviceRuntime* runtime : gpu_runtimes()) {
    if (runtime->recorder().active()) runtime->recorder().on_free(p, running_node());
  }
  if (directs_.load(std::memory_order_relaxed) > 0 && free_directly(p)) return;
  const GraphLoans::Free loan(loans_, p);
  forget(p);
  native_free(p);
}

void CudaAllocator::forget(void* p) {
  if (adopted_count_.load(std::memory_order_relaxed) == 0) return;
  const std::lock_guard lock(mutex_);
  adopted_.erase(p);
  adopted_count_.store(adopted_.size(), std::memory_order_relaxed);
}

// Leaves blocks that torch allocated without its cache (torch.cuda.caching_allocator_enable).
void CudaAllocator::adopt(c10::DataPtr& block) {
  if (!block.get() || !block.compare_exchange_deleter(native_deleter_, &delete_block)) return;
  const std::lock_guard lock(mutex_);
  adopted_.insert(block.get());
  adopted_count_.store(adopted_.size(), std::memory_order_relaxed);
}

bool CudaAllocator::is_needed() const {
  if (adopted_count_.load() > 0 || directs_.load() > 0 || history_.has_entries() ||
      loans_.lends_anywhere()) {
    return true;
  }
  {
    const std::lock_guard lock(mutex_);
    if (!open_pools_.empty()) return true;
  }
  return std::ranges::any_of(gpu_runtimes(), [](runtime::DeviceRuntime* runtime) {
    return runtime->allocator()
               .figures()
               .joint_gauges()
               .ours()[runtime::JointGauges::kActiveBlocks] > 0;
  });
}

// See Note [Captures].
CudaAllocator::Detour CudaAllocator::detour_of(const Request& request) {
  if (detours_.load(std::memory_order_acquire) == 0) [[likely]] {
    return Detour::kNone;
  }
  std::vector<std::function<bool(cudaStream_t)>> filters;
  {
    const std::lock_guard lock(mutex_);
    for (const PrivatePool& pool : open_pools_) {
      if (pool.device == request.device) filters.push_back(pool.takes);
    }
  }
  for (const auto& takes : filters) {
    if (takes(request.stream)) return Detour::kPrivatePool;
  }
  return caches_.load() ? Detour::kNone : Detour::kUncached;
}

void CudaAllocator::enable(bool value) {
  to().enable(value);
  const bool caches = value && !std::getenv("PYTORCH_NO_CUDA_MEMORY_CACHING");
  if (caches_.exchange(caches) != caches) detours_.fetch_add(caches ? -1 : 1);
}

StreamId CudaAllocator::stream_of(runtime::DeviceRuntime& runtime, const Request& request) {
  return runtime.streams().id_of(request.stream, [&] {
    const c10::cuda::CUDAStream current = c10::cuda::getCurrentCUDAStream(request.device);
    return current.stream() == request.stream ? lifetime_of(current)
                                              : runtime::StreamTable::Lifetime::kUnknown;
  });
}

void* CudaAllocator::serve(runtime::DeviceRuntime& runtime, const Request& request) {
  runtime::PlannedAllocator& allocator = runtime.allocator();
  const StreamId stream = stream_of(runtime, request);
  if (stream == kNone) return nullptr;
  if (allocator.fills_to_new_peak(request.size)) [[unlikely]] {
    note(request.device);
  }
  if (allocator.wants_callers_cache(request.size)) [[unlikely]] {
    give_back_cached(runtime);
  }
  void* p = allocator.allocate(request.size, stream, in_backward(),
                               allocator.loop().follows_nodes() ? running_node() : std::nullopt);
  if (p) {
    trace(p, /*allocated=*/true);
    report(runtime, p, /*allocated=*/true);
    if (history_.follows()) [[unlikely]] {
      history_.took(block_at(p));
    }
    if (allocator.figures().are_behind()) note(request.device);
  }
  return p;
}

template <typename Native>
void* CudaAllocator::fall_back(runtime::DeviceRuntime& runtime, const Request& request,
                               Native native) {
  follow_share(request.device);
  bool seems_to_fit = false;
  if (runtime.allocator().moves_memory()) {
    note(request.device);
    runtime.allocator().make_way_for_caller(
        runtime::callers_growth(request.size, thrift_.is_on()),
        [&] { return seems_to_fit = cached_.fit(request.size, request.device, request.stream); });
  }
  const Bytes before = seems_to_fit ? cached_.reserved(request.device) : 0;
  Shortage shortage;
  const auto attempt = [&] {
    return native(runtime.recorder().active() ? Record::kNoticed : Record::kLeft);
  };
  void* p = nullptr;
  try {
    p = attempt();
  } catch (const c10::OutOfMemoryError& e) {
    note(request.device);  // torch has given back its cache
    // Last resort: idle pool space, including memory just freed. If it lies in pieces, torch gets
    // the memory.
    const StreamId stream = stream_of(runtime, request);
    const bool may_lie_in_pool = stream != kNone && caches_.load();
    void* rescued = may_lie_in_pool ? runtime.allocator().rescue(request.size, stream) : nullptr;
    if (!rescued && caches_.load() && runtime.allocator().give_idle(request.size) > 0) {
      history_.forgive(request.device, shortage.begun());
      p = attempt_again(request.device, attempt);
    }
    if (!rescued && !p) {
      shortage.tell(observers());
      throw_out_of_memory(runtime, request, e.what_without_backtrace());
    }
    rescued_[static_cast<std::size_t>(request.device)].fetch_add(1);
    history_.forgive(request.device, shortage.begun());
    if (rescued) {
      trace(rescued, /*allocated=*/true);
      report(runtime, rescued, /*allocated=*/true);
      if (history_.follows()) history_.took(block_at(rescued));
      return rescued;
    }
  }
  if (seems_to_fit && cached_.reserved(request.device) > before) cached_.forget(request.device);
  note(request.device);
  return p;
}

// Asks torch's allocator once more; null if it refuses again. The shortage counts once.
template <typename Attempt>
void* CudaAllocator::attempt_again(c10::DeviceIndex device, Attempt attempt) {
  note(device);
  follow_share(device);
  try {
    return attempt();
  } catch (const c10::OutOfMemoryError&) {
    rescued_[static_cast<std::size_t>(device)].fetch_add(1);
    return nullptr;
  }
}

// If the device has no memory left, torch's allocator is asked, too: it calls what is registered to
// give memory back, and else reports the shortage to all who follow it.
template <typename Native>
void* CudaAllocator::allocate_exactly(runtime::DeviceRuntime& runtime, const Request& request,
                                      Native native) {
  // The share of torch's allocator may have grown.
  if (has_fractions_.load(std::memory_order_relaxed)) note(request.device);
  if (void* p = allocate_directly(runtime, request)) return p;
  follow_share(request.device);
  try {
    return native(Record::kNoticed);
  } catch (const c10::OutOfMemoryError& e) {
    TORCH_CHECK_WITH(OutOfMemoryError, false, e.what_without_backtrace(),
                     "\nstalloc tried to allocate ", format_bytes(request.size), " on ",
                     std::string(runtime.memory().name()), " while profiling, and ",
                     format_bytes(runtime.memory().available()),
                     " are free. Nothing was cached, so this configuration needs more memory than "
                     "the device has: use a smaller microbatch or more recomputation.");
  }
}

// A plan has its own memory for such requests, and a profile is to have them.
c10::DataPtr CudaAllocator::lend(const Request& request) {
  runtime::DeviceRuntime* runtime = runtime::DeviceRuntime::find_gpu(request.device);
  if (runtime && (runtime->allocator().enabled() || runtime->recorder().active())) return {};
  if (request.size < device::LoanBook::kLeast || detour_of(request) != Detour::kNone) return {};
  const c10::cuda::CUDAStream stream = c10::cuda::getCurrentCUDAStream(request.device);
  if (stream.stream() && lifetime_of(stream) != runtime::StreamTable::Lifetime::kStays) return {};
  c10::DataPtr block = loans_.lend(request.device, request.size, stream, [&] {
    return to().allocate(static_cast<size_t>(request.size));
  });
  adopt(block);
  return block;
}

template <typename Native>
void* CudaAllocator::ask_torch(Native native) {
  if (!loans_.lends_anywhere()) [[likely]] {
    return native(Record::kLeft);
  }
  {
    const Shortage shortage;
    try {
      return native(Record::kLeft);
    } catch (const c10::OutOfMemoryError&) {
      if (!loans_.give_back()) {
        shortage.tell(observers());
        throw;
      }
    }
  }
  return native(Record::kLeft);
}

void CudaAllocator::emptyCache(c10::MempoolId_t pool) {
  to().emptyCache(pool);
  if (loans_.lends_anywhere() && pool == c10::MempoolId_t{0, 0}) loans_.give_back();
}

template <typename Native>
void* CudaAllocator::provide(const Request& request, Native native) {
  thrift_.note_request(request.device, request.size);
  runtime::DeviceRuntime* runtime = runtime::DeviceRuntime::find_gpu(request.device);
  const Detour detour = detour_of(request);
  if (detour == Detour::kPrivatePool) {
    void* p = native(of_private_pool());
    if (runtime && runtime->allocator().enabled()) note(request.device);
    return p;
  }
  if (!runtime) return native(Record::kLeft);
  runtime::PlannedAllocator& allocator = runtime->allocator();
  runtime::Recorder& recorder = runtime->recorder();
  void* p = nullptr;
  if (allocator.enabled()) {
    if (detour == Detour::kNone) p = serve(*runtime, request);
    if (!p) p = fall_back(*runtime, request, native);
    if (!recorder.active()) return p;
  } else {
    if (!recorder.active()) {
      follow_share(request.device);  // memory of a profile that has ended may have gone
      return ask_torch(native);
    }
    if (caches_.load() && exact_.load(std::memory_order_relaxed)) {
      p = allocate_exactly(*runtime, request, native);
    } else {
      follow_share(request.device);
      p = native(Record::kNoticed);
    }
  }
  recorder.on_allocate(p, request.size, stream_of(*runtime, request), in_backward(),
                       running_node());
  return p;
}

c10::DataPtr CudaAllocator::allocate(size_t n) {
  if (n == 0 || n > kLargest) return to().allocate(n);
  c10::DeviceIndex device = 0;
  C10_CUDA_CHECK(c10::cuda::GetDevice(&device));
  const Request request{static_cast<Bytes>(n), device,
                        c10::cuda::getCurrentCUDAStream(device).stream()};
  c10::DataPtr theirs;
  if (loans_.lends(device)) [[unlikely]] {
    if (theirs = lend(request); theirs) return theirs;
  }
  void* p = provide(request, [&](Record record) {
    theirs = to().allocate(n);
    if (record == Record::kNoticed) adopt(theirs);
    return theirs.get();
  });
  if (theirs) return theirs;
  return {p, p, &delete_block, device_of(device)};
}

void* CudaAllocator::raw_alloc(size_t n) {
  c10::DeviceIndex device = 0;
  C10_CUDA_CHECK(c10::cuda::GetDevice(&device));
  return raw_alloc_with_stream(n, c10::cuda::getCurrentCUDAStream(device).stream());
}

void* CudaAllocator::raw_alloc_with_stream(size_t n, cudaStream_t stream) {
  if (n == 0 || n > kLargest) return to().raw_alloc_with_stream(n, stream);
  c10::DeviceIndex device = 0;
  C10_CUDA_CHECK(c10::cuda::GetDevice(&device));
  return provide({static_cast<Bytes>(n), device, stream},
                 [&](Record) { return to().raw_alloc_with_stream(n, stream); });
}

void CudaAllocator::raw_delete(void* p) {
  if (p) free_block(p, [](void* native) { instance().to().raw_delete(native); });
}

void* CudaAllocator::allocate_directly(runtime::DeviceRuntime& runtime, const Request& request) {
  const Bytes size = request.size;
  void* p = runtime.memory().allocate(size);
  if (!p) {
    to().emptyCache();
    p = runtime.memory().allocate(size);
  }
  if (!p) return nullptr;
  {
    const std::lock_guard lock(mutex_);
    direct_[p] = {size, request.device, request.stream, &runtime};
    directs_.fetch_add(1, std::memory_order_relaxed);
    add_direct(direct_totals_[request.device], size);
  }
  trace(p, /*allocated=*/true);
  report_direct(request.device, p, size);
  if (history_.follows()) history_.took({request.device, p, size, size, request.stream});
  return p;
}

void CudaAllocator::report_direct(c10::DeviceIndex device, void* p, Bytes change) {
  if (!is_profiled()) [[likely]] {
    return;
  }
  const auto stats = getDeviceStats(device);
  constexpr auto kAll = static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE);
  c10::reportMemoryUsageToProfiler(
      p, change, static_cast<std::size_t>(stats.allocated_bytes[kAll].current),
      static_cast<std::size_t>(stats.reserved_bytes[kAll].current), device_of(device));
}

// Freeing waits for all work that uses the block, on any stream.
bool CudaAllocator::free_directly(void* p) {
  Direct block;
  {
    const std::lock_guard lock(mutex_);
    const auto it = direct_.find(p);
    if (it == direct_.end()) return false;
    block = it->second;
    direct_.erase(it);
    directs_.fetch_sub(1, std::memory_order_relaxed);
  }
  trace(p, /*allocated=*/false);
  report_direct(block.device, p, -block.size);
  if (history_.follows()) {
    history_.frees({block.device, p, block.size, block.size, block.stream}, /*waits=*/false);
  }
  block.runtime->memory().release(p, block.size);
  return true;
}

void CudaAllocator::throw_out_of_memory(runtime::DeviceRuntime& runtime, const Request& request,
                                        const std::string& why) {
  TORCH_CHECK_WITH(OutOfMemoryError, false, why, "\n",
                   runtime.allocator().figures().out_of_memory_message(request.size));
}

void CudaAllocator::recordStream(const c10::DataPtr& block, c10::cuda::CUDAStream stream) {
  void* p = block.get();
  if (!p || block.get_deleter() != &delete_block) {
    to().recordStream(block, stream);
    return;
  }
  if (runtime::DeviceRuntime* runtime = owner_of(p)) {
    // A stream of another device has no number here: all default streams have the same handle.
    const bool is_own = stream.device_index() == block.device().index();
    const StreamId id =
        is_own ? runtime->streams().user_of(stream.stream(), [&] { return lifetime_of(stream); })
               : kNone;
    if (runtime->allocator().record_stream(p, id)) return;
  }
  if (directs_.load(std::memory_order_relaxed) > 0) {
    const std::lock_guard lock(mutex_);
    if (direct_.contains(p)) return;  // freeing the block waits anyway
  }
  loans_.record_stream(p, stream);
  c10::DataPtr alias(p, p, native_deleter_, block.device());
  to().recordStream(alias, stream);
  alias.release_context();
}

#if TORCH_VERSION_MINOR >= 13
void CudaAllocator::markCaptureBegin(c10::DeviceIndex device) {
  to().markCaptureBegin(device);
  begin_capture(device);
}

void CudaAllocator::markCaptureEnd(c10::DeviceIndex device) {
  to().markCaptureEnd(device);
  end_capture(device);
}
#endif

void CudaAllocator::begin_capture(c10::DeviceIndex device) {
  thrift_.begin_capture();
  if (runtime::DeviceRuntime* runtime = runtime::DeviceRuntime::find_gpu(device)) {
    runtime->allocator().begin_capture();
  }
}

void CudaAllocator::end_capture(c10::DeviceIndex device) {
  thrift_.end_capture();
  if (runtime::DeviceRuntime* runtime = runtime::DeviceRuntime::find_gpu(device)) {
    runtime->allocator().end_capture();
  }
}

// torch may refuse: nothing has changed then.
void CudaAllocator::beginAllocateToPool(c10::DeviceIndex device, c10::MempoolId_t pool,
                                        std::function<bool(cudaStream_t)> filter) {
  to().beginAllocateToPool(device, pool, filter);
  {
    const std::lock_guard lock(mutex_);
    open_pools_.push_back({device, pool, std::move(filter)});
  }
  detours_.fetch_add(1, std::memory_order_release);
#if TORCH_VERSION_MINOR < 13
  begin_capture(device);
#endif
}

void CudaAllocator::endAllocateToPool(c10::DeviceIndex device, c10::MempoolId_t pool) {
  to().endAllocateToPool(device, pool);
  {
    const std::lock_guard lock(mutex_);
    const auto it = std::ranges::find_if(open_pools_, [&](const PrivatePool& open) {
      return open.device == device && open.id == pool;
    });
    if (it == open_pools_.end()) return;  // begun before this was installed
    open_pools_.erase(it);
  }
  detours_.fetch_sub(1, std::memory_order_release);
#if TORCH_VERSION_MINOR < 13
  end_capture(device);
#endif
}

allocator_api::CheckpointDelta CudaAllocator::setCheckpointPoolState(
    c10::DeviceIndex device, std::shared_ptr<allocator_api::AllocatorState> state) {
  allocator_api::CheckpointDelta delta = to().setCheckpointPoolState(device, std::move(state));
  for (void* p : delta.ptrs_freed) forget(p);
  if (of_private_pool() == Record::kNoticed) {
    for (c10::DataPtr& block : delta.dataptrs_allocd) adopt(block);
  }
  return delta;
}

}  // namespace stalloc::torch_adapters
