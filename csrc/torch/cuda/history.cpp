#include "torch/cuda/history.h"

#include <torch/csrc/profiler/combined_traceback.h>
#include <torch/headeronly/version.h>

#include <algorithm>
#include <iterator>
#include <limits>
#include <utility>

namespace stalloc::torch_adapters {
namespace {

// The scopes of torch.compile on this thread, innermost last.
thread_local std::vector<std::string> compile_contexts;

// torch's names of actions, for those that are never to be recorded.
int action_of(const std::string& name) {
  using Entry = History::Entry;
  static const std::unordered_map<std::string, int> actions = {
      {"alloc", Entry::ALLOC},
      {"free_requested", Entry::FREE_REQUESTED},
      {"free_completed", Entry::FREE_COMPLETED},
      {"segment_alloc", Entry::SEGMENT_ALLOC},
      {"segment_free", Entry::SEGMENT_FREE},
      {"segment_map", Entry::SEGMENT_MAP},
      {"segment_unmap", Entry::SEGMENT_UNMAP},
#if TORCH_VERSION_MINOR >= 14
      {"annotate", Entry::ANNOTATE},
#endif
  };
  const auto it = actions.find(name);
  return it == actions.end() ? -1 : it->second;
}

}  // namespace

void History::update() { follows_.store(enabled_ || !trackers_->empty()); }

bool History::has_entries() const {
  const std::lock_guard lock(mutex_);
  return std::ranges::any_of(entries_, [](const auto& entries) { return !entries.empty(); });
}

void History::configure(const Settings& settings, bool clear,
                        const std::vector<std::string>& skip) {
  const std::lock_guard lock(mutex_);
  enabled_ = settings.enabled;
  recorder_.store(enabled_ ? settings.recorder : nullptr);
  when_.store(enabled_ ? settings.when : Level::NEVER);
  most_ = std::max<std::size_t>(settings.entries, 1);
  skipped_.clear();
  for (const std::string& name : skip) skipped_.insert(action_of(name));
  if (!enabled_ || clear) {
    for (auto& entries : entries_) entries.clear();
    pardons_.clear();
  }
  if (!enabled_) contexts_.clear();
  for (auto& entries : entries_) {
    while (entries.size() > most_) entries.pop_front();
  }
  update();
}

void History::catch_up(bool enabled) {
  {
    const std::lock_guard lock(mutex_);
    if (enabled == enabled_) return;
  }
  Settings settings;
  settings.enabled = enabled;
  settings.recorder = []() -> Context {
    return torch::CapturedTraceback::gather(/*python=*/true, /*script=*/true, /*cpp=*/false);
  };
  settings.entries = std::numeric_limits<std::size_t>::max();
  settings.when = Level::ALL;
  configure(settings, /*clear=*/true, {});
}

void History::attach(Tracker tracker) {
  const std::lock_guard lock(mutex_);
  auto trackers = std::make_shared<std::vector<Tracker>>(*trackers_);
  trackers->push_back(std::move(tracker));
  trackers_ = std::move(trackers);
  update();
}

History::Context History::gather(Level level) const {
  if (when_.load() < level) return nullptr;
  const auto recorder = recorder_.load();
  return recorder ? recorder() : nullptr;
}

History::Entry History::keep(Entry::Action action, const Block& block, const Context& context,
                             const std::string& metadata) {
  Entry entry(action, block.device, reinterpret_cast<std::size_t>(block.begin),
              static_cast<std::size_t>(block.size), block.stream, c10::MempoolId_t{0, 0},
              c10::getApproximateTime(), when_.load() >= Level::ALLOC ? context : nullptr,
              compile_contexts.empty() ? std::string() : compile_contexts.back(), metadata);
  if (enabled_ && !skipped_.contains(action)) {
    auto& entries = entries_[static_cast<std::size_t>(block.device)];
    if (entries.size() == most_) entries.pop_front();
    entries.push_back(entry);
  }
  return entry;
}

void History::tell(const std::vector<Entry>& entries) const {
  std::shared_ptr<const std::vector<Tracker>> trackers;
  {
    const std::lock_guard lock(mutex_);
    trackers = trackers_;
  }
  for (const Entry& entry : entries) {
    for (const Tracker& tracker : *trackers) tracker(entry);
  }
}

// Blocks whose addresses a new block has got are free. The lock is held.
void History::finish_frees_at(const Block& block, std::vector<Entry>& entries) {
  if (waiting_.empty()) return;
  auto it = waiting_.lower_bound(block.begin);
  if (it != waiting_.begin()) {
    const Block& before = std::prev(it)->second;
    if (static_cast<std::byte*>(before.begin) + before.rounded > block.begin) --it;
  }
  const void* end = static_cast<std::byte*>(block.begin) + block.rounded;
  while (it != waiting_.end() && it->first < end) {
    entries.push_back(keep(Entry::FREE_COMPLETED, it->second, nullptr, {}));
    it = waiting_.erase(it);
  }
}

void History::took(const Block& block) {
  const Context context = gather(Level::STATE);
  const std::string metadata = metadata_();
  std::vector<Entry> entries;
  {
    const std::lock_guard lock(mutex_);
    finish_frees_at(block, entries);
    if (context && enabled_) contexts_[block.begin] = context;
    entries.push_back(keep(Entry::ALLOC, block, context, metadata));
  }
  tell(entries);
}

void History::frees(const Block& block, bool waits) {
  Context context = gather(Level::ALL);
  const std::string metadata = metadata_();
  std::vector<Entry> entries;
  {
    const std::lock_guard lock(mutex_);
    if (const auto it = contexts_.find(block.begin); it != contexts_.end()) {
      if (!context) context = it->second;
      contexts_.erase(it);
    }
    entries.push_back(keep(Entry::FREE_REQUESTED, block, context, metadata));
    if (waits) {
      waiting_[block.begin] = block;
    } else {
      entries.push_back(keep(Entry::FREE_COMPLETED, block, context, metadata));
    }
  }
  tell(entries);
}

void History::annotated([[maybe_unused]] const Block& block,
                        [[maybe_unused]] const std::string& metadata) {
#if TORCH_VERSION_MINOR >= 14
  const Context context = gather(Level::ALLOC);
  std::vector<Entry> entries;
  {
    const std::lock_guard lock(mutex_);
    entries.push_back(keep(Entry::ANNOTATE, block, context, metadata));
  }
  tell(entries);
#endif
}

// A tracker that throws must not keep memory from coming or going: NCCL's throws for memory that it
// has not registered.
void History::piece(Entry::Action action, c10::DeviceIndex device, void* begin,
                    Bytes size) noexcept {
  if (!follows()) return;
  try {
    std::shared_ptr<const std::vector<Tracker>> trackers;
    std::vector<Entry> entries;
    {
      const std::lock_guard lock(mutex_);
      trackers = trackers_;
      const Block block{device, begin, size, size, nullptr};
      if (action == Entry::SEGMENT_FREE || action == Entry::SEGMENT_UNMAP) {
        finish_frees_at(block, entries);  // memory that goes has no block
      }
      entries.push_back(keep(action, block, nullptr, {}));
    }
    for (const Entry& entry : entries) {
      for (const Tracker& tracker : *trackers) {
        try {
          tracker(entry);
        } catch (...) {
        }
      }
    }
  } catch (...) {
  }
}

void History::forgive(c10::DeviceIndex device, c10::approx_time_t from) {
  const std::lock_guard lock(mutex_);
  if (enabled_) pardons_.push_back({device, from, c10::getApproximateTime()});
}

History::Context History::context_of(const void* begin) const {
  const std::lock_guard lock(mutex_);
  const auto it = contexts_.find(begin);
  return it == contexts_.end() ? nullptr : it->second;
}

void History::finish_frees() {
  std::vector<Block> blocks;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [begin, block] : waiting_) blocks.push_back(block);
  }
  std::vector<Entry> entries;
  for (const Block& block : blocks) {
    const runtime::DeviceRuntime* runtime = runtime::DeviceRuntime::find_gpu(block.device);
    const auto live =
        const_cast<runtime::DeviceRuntime*>(runtime)->allocator().inspect().block_of(block.begin);
    if (live && live->waiting) continue;
    const std::lock_guard lock(mutex_);
    if (waiting_.erase(block.begin) == 0) continue;
    entries.push_back(keep(Entry::FREE_COMPLETED, block, nullptr, {}));
  }
  tell(entries);
}

void History::add_to(std::vector<std::vector<Entry>>& traces) {
  const auto nanoseconds = clock_.makeConverter();
  const auto microseconds = [&](c10::approx_time_t t) {
    return static_cast<std::time_t>(nanoseconds(t) / 1000);
  };
  const auto earlier = [](const Entry& a, const Entry& b) { return a.time_.t_ < b.time_.t_; };
  const std::lock_guard lock(mutex_);
  if (!enabled_) return;
  for (std::size_t device = 0; device < traces.size() && device < entries_.size(); ++device) {
    std::vector<Entry>& theirs = traces[device];
    for (const Pardon& pardon : pardons_) {
      if (static_cast<std::size_t>(pardon.device) != device) continue;
      std::erase_if(theirs, [&](const Entry& entry) {
        return entry.action_ == Entry::OOM && entry.time_.t_ >= microseconds(pardon.from) &&
               entry.time_.t_ <= microseconds(pardon.to);
      });
    }
    std::vector<Entry> ours(entries_[device].begin(), entries_[device].end());
    for (Entry& entry : ours) entry.time_.t_ = microseconds(entry.time_.approx_t_);
    std::vector<Entry> both;
    both.reserve(ours.size() + theirs.size());
    std::ranges::merge(theirs, ours, std::back_inserter(both), earlier);
    // As many as each part may have: no entry of the last ones is missing in its part.
    if (both.size() > most_) {
      both.erase(both.begin(), both.end() - static_cast<std::ptrdiff_t>(most_));
    }
    theirs = std::move(both);
  }
}

void History::push_compile_context(const std::string& name) { compile_contexts.push_back(name); }

void History::pop_compile_context() {
  if (!compile_contexts.empty()) compile_contexts.pop_back();
}

}  // namespace stalloc::torch_adapters
