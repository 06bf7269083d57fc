#include "compat/gpu.h"

#include <algorithm>
#include <iterator>

#include "base/align.h"
#include "base/error.h"
#include "base/format.h"
#include "device/cuda_runtime.h"
#include "device/cuda_streams.h"

namespace stalloc::compat {
namespace {

std::array<std::atomic<CompatGpu*>, runtime::DeviceRuntime::kGpus>& gpus() {
  static auto& all = *new std::array<std::atomic<CompatGpu*>, runtime::DeviceRuntime::kGpus>{};
  return all;
}

runtime::DeviceRuntime& runtime_of(int device) {
  return runtime::DeviceRuntime::gpu(device, runtime::Fallback::kAlways);
}

}  // namespace

CompatGpu::CompatGpu(int device)
    : runtime_(runtime_of(device)),
      memory_(dynamic_cast<device::CudaMemory&>(runtime_.memory())),
      graphs_(memory_) {}

CompatGpu* CompatGpu::known(int device) noexcept {
  if (device < 0 || device >= runtime::DeviceRuntime::kGpus) return nullptr;
  return gpus()[static_cast<std::size_t>(device)].load(std::memory_order_acquire);
}

CompatGpu& CompatGpu::of(int device) {
  if (CompatGpu* gpu = known(device)) return *gpu;
  runtime_of(device);  // throws if there is no such device
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  auto& slot = gpus()[static_cast<std::size_t>(device)];
  if (!slot.load(std::memory_order_relaxed)) {
    slot.store(new CompatGpu(device), std::memory_order_release);
  }
  return *slot.load(std::memory_order_relaxed);
}

// If torch cannot be asked, every thread that requests memory of a GPU counts as training.
bool CompatGpu::for_training() const { return !torch_.in_backward || torch_.in_backward(); }

runtime::NodeSequence CompatGpu::node() const {
  std::uint64_t sequence = 0;
  if (!torch_.running_node || !torch_.running_node(&sequence)) return std::nullopt;
  return sequence;
}

void* CompatGpu::allocate(Bytes size, device::StreamHandle stream) {
  runtime::PlannedAllocator& allocator = runtime_.allocator();
  const StreamId id = runtime_.streams().id_of(stream, [&] {
    using enum runtime::StreamTable::Lifetime;
    const bool is_own = torch_.is_foreign && !torch_.is_foreign(memory_.device(), stream);
    return is_own ? kStays : kMayVanish;
  });
  void* p = nullptr;
  bool planned = true;
  if (graphs_.any_open()) {
    auto served = graphs_.allocate(size, stream, id);
    if (served.taken && !served.block && allocator.release_cached() > 0) {
      served = graphs_.allocate(size, stream, id);
    }
    if (served.taken && !served.block) {
      run_out("stalloc tried to allocate " + format_bytes(size) + " on " +
              std::string(memory_.name()) + " for a CUDA graph, which needs memory of its own; " +
              format_bytes(memory_.available()) +
              " are free after all cached memory was given back");
    }
    p = served.block;
    planned = !served.taken;
  }
  runtime::Recorder& recorder = runtime_.recorder();
  // A stream without a number shares no addresses with others and caches none.
  const bool exactly = recorder.active() && exact_.load(std::memory_order_relaxed);
  if (planned && (exactly || id == kNone)) {
    p = allocate_directly(size);
    planned = false;
  }
  if (planned) {
    try {
      p = allocator.allocate(size, id, for_training(),
                             allocator.loop().follows_nodes() ? node() : std::nullopt);
    } catch (const OutOfMemory& e) {
      run_out(e.what());
    }
    if (!p) {
      throw Error("a forked process cannot allocate on " + std::string(memory_.name()) +
                  ", which the parent has used; start it with the spawn or forkserver method");
    }
  }
  if (recorder.active()) recorder.on_allocate(p, size, id, for_training(), node());
  count(size, /*is_new=*/true);
  return p;
}

void* CompatGpu::allocate_directly(Bytes size) {
  const Bytes rounded = align_up(size, kDefaultAlignment);
  void* p = memory_.allocate(rounded);
  if (!p && runtime_.allocator().release_cached() > 0) p = memory_.allocate(rounded);
  if (!p) {
    run_out("stalloc tried to allocate " + format_bytes(size) + " on " +
            std::string(memory_.name()) + " while profiling, and " +
            format_bytes(memory_.available()) +
            " are free. Nothing was cached, so this configuration needs more memory than the "
            "device has: use a smaller microbatch or more recomputation.");
  }
  const std::lock_guard lock(mutex_);
  direct_[p] = size;
  directs_.fetch_add(1, std::memory_order_relaxed);
  return p;
}

// Freeing waits for all work that uses the block, on any stream.
bool CompatGpu::free_directly(void* p) noexcept {
  Bytes size = 0;
  {
    const std::lock_guard lock(mutex_);
    const auto it = direct_.find(p);
    if (it == direct_.end()) return false;
    size = it->second;
    direct_.erase(it);
    directs_.fetch_sub(1, std::memory_order_relaxed);
  }
  memory_.release(p, align_up(size, kDefaultAlignment));
  return true;
}

void CompatGpu::run_out(const std::string& message) {
  {
    const std::lock_guard lock(mutex_);
    ++figures_.out_of_memory;
  }
  // Programs that look for a batch size look for torch's words.
  throw OutOfMemory(std::string(device::CudaRuntime::get().name) + " out of memory. " + message);
}

void CompatGpu::deallocate(void* p, Bytes size) noexcept {
  runtime::Recorder& recorder = runtime_.recorder();
  if (recorder.active()) recorder.on_free(p, node());
  const bool freed = (graphs_.any() && graphs_.deallocate(p)) ||
                     (directs_.load(std::memory_order_relaxed) > 0 && free_directly(p)) ||
                     runtime_.allocator().deallocate(p, for_training());
  if (!freed) return;
  count(size, /*is_new=*/false);
}

bool CompatGpu::record_stream(void* p, device::StreamHandle stream) {
  if (graphs_.any() && graphs_.record_stream(p)) return true;
  if (directs_.load(std::memory_order_relaxed) > 0) {
    const std::lock_guard lock(mutex_);
    if (direct_.contains(p)) return true;  // freeing the block waits anyway
  }
  // Only the owner numbers the stream.
  if (!runtime_.allocator().inspect().pool_of(p).begin) return false;
  const int device = device::device_of_stream(stream);
  const bool is_own = device < 0 || memory_.device() == device;
  // Requests on the stream tell later if it is torch's own.
  const auto unknown = torch_.is_foreign ? runtime::StreamTable::Lifetime::kUnknown
                                         : runtime::StreamTable::Lifetime::kMayVanish;
  return runtime_.allocator().record_stream(
      p, is_own ? runtime_.streams().user_of(stream, unknown) : kNone);
}

runtime::Inspection::Piece CompatGpu::piece_of(const void* p) const {
  if (graphs_.any()) {
    const auto [begin, size] = graphs_.segment_of(p);
    if (begin) return {begin, size};
  }
  if (directs_.load(std::memory_order_relaxed) > 0) {
    const std::lock_guard lock(mutex_);
    const auto after = direct_.upper_bound(const_cast<void*>(p));
    if (after != direct_.begin()) {
      const auto [begin, size] = *std::prev(after);
      const Bytes rounded = align_up(size, kDefaultAlignment);
      if (p < static_cast<std::byte*>(begin) + rounded) return {begin, rounded};
    }
  }
  return runtime_.allocator().inspect().pool_of(p);
}

void CompatGpu::begin_graph_pool(GraphPools::Id id, GraphPools::Filter filter) {
  graphs_.open(id, std::move(filter));
  runtime_.allocator().begin_capture();
}

void CompatGpu::end_graph_pool(GraphPools::Id id) {
  runtime_.allocator().end_capture();
  graphs_.close(id);
}

void CompatGpu::set_fraction(double fraction) {
  fraction_.store(fraction, std::memory_order_relaxed);
  memory_.set_limit(
      fraction >= 1 ? 0 : static_cast<Bytes>(fraction * static_cast<double>(memory_.total())));
}

void CompatGpu::count(Bytes size, bool is_new) {
  const auto note = [&](Counts& counts) {
    const auto change = is_new ? &device::Tally::add : &device::Tally::remove;
    (counts.blocks.*change)(1);
    (counts.requested.*change)(size);
    (counts.rounded.*change)(align_up(size, kDefaultAlignment));
  };
  const std::lock_guard lock(mutex_);
  note(figures_.all);
  note(size <= kSmall ? figures_.small : figures_.large);
}

CompatGpu::Figures CompatGpu::figures() const {
  const device::CudaMemory::HeldBySize held = memory_.held();
  const std::lock_guard lock(mutex_);
  Figures result = figures_;
  result.held = held;
  return result;
}

void CompatGpu::reset_peaks() {
  memory_.reset_peaks();
  runtime_.allocator().figures().reset_peaks();
  const std::lock_guard lock(mutex_);
  for (Counts* counts : {&figures_.all, &figures_.small, &figures_.large}) {
    for (device::Tally* t : {&counts->blocks, &counts->requested, &counts->rounded})
      t->reset_peak();
  }
}

void CompatGpu::reset_totals() {
  memory_.reset_totals();
  const std::lock_guard lock(mutex_);
  figures_.out_of_memory = 0;
  for (Counts* counts : {&figures_.all, &figures_.small, &figures_.large}) {
    for (device::Tally* t : {&counts->blocks, &counts->requested, &counts->rounded})
      t->reset_totals();
  }
}

std::vector<CompatGpu::Segment> CompatGpu::segments() const {
  std::vector<Segment> result;
  for (auto& content : runtime_.allocator().inspect().pools())
    result.push_back({std::move(content), {0, 0}});
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [p, size] : direct_) {
      const Bytes rounded = align_up(size, kDefaultAlignment);
      result.push_back({{{p, rounded}, {{p, size, rounded, 0, false}}}, {0, 0}});
    }
  }
  const void* segment = nullptr;
  for (const auto& [id, block] : graphs_.blocks()) {
    if (block.segment != segment) {
      segment = block.segment;
      result.push_back({{{block.segment, graphs_.segment_of(segment).size}, {}}, id});
    }
    if (block.requested == 0) continue;
    result.back().content.blocks.push_back(
        {block.begin, block.requested, block.size, block.stream, false});
  }
  return result;
}

}  // namespace stalloc::compat
