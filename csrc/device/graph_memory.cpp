#include "device/graph_memory.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <utility>

#include "base/error.h"
#include "base/format.h"
#include "device/cuda_virtual.h"

namespace stalloc::device {
namespace {

std::array<std::atomic<GraphMemory*>, CudaRuntime::kDevices> instances{};

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
  unit_ = static_cast<std::size_t>(CudaVirtualRange::whole_units(runtime, device, 1));
  accesses_ = accesses_of(runtime, device);
}

GraphMemory::~GraphMemory() {
  while (!segments_.empty()) drop(segments_.begin());
}

void GraphMemory::begin(Pool pool) {
  const std::lock_guard lock(mutex_);
  if (pool != Pool{}) {
    if (current_ != Pool{}) {
      throw Error("another graph that shares memory is being captured on GPU " +
                  std::to_string(device_));
    }
    current_ = pool;
  }
  ++captures_;
}

void GraphMemory::end(Pool pool) noexcept {
  const std::lock_guard lock(mutex_);
  if (pool == current_) current_ = {};
  if (captures_ > 0) --captures_;
  drop_retired();
}

std::uint64_t GraphMemory::create() noexcept {
  std::uint64_t handle = 0;
  const auto wanted = memory_of(device_);
  if (runtime_.memory_create(&handle, unit_, &wanted, /*flags=*/0)) {
    runtime_.get_last_error();
    return 0;
  }
  return handle;
}

std::uint64_t GraphMemory::create_or_throw() {
  if (const std::uint64_t handle = create()) return handle;
  throw OutOfMemory("a captured graph needs " + format_bytes(static_cast<Bytes>(unit_)) +
                    " more, and GPU " + std::to_string(device_) + " has no memory left");
}

void GraphMemory::leave(const Chunk& chunk) noexcept {
  if (chunk.shared == kOwn) {
    const auto own = own_.find(chunk.handle);
    if (--own->second > 0) return;
    runtime_.memory_release(chunk.handle);
    own_.erase(own);
    return;
  }
  if (chunk.shared == kBlank) {
    if (--blanks_ > 0) return;
    runtime_.memory_release(blank_);
    blank_ = 0;
    return;
  }
  Shared& shared = shared_[chunk.shared];
  if (--shared.users > 0) return;
  if (shared.handle) runtime_.memory_release(shared.handle);
  shared.handle = 0;
  while (!shared_.empty() && shared_.back().users == 0) shared_.pop_back();
}

void GraphMemory::leave_lent(const Chunk& chunk) noexcept {
  if (chunk.shared != kOwn) --shared_[chunk.shared].lent;
  leave(chunk);
}

bool GraphMemory::map(std::uintptr_t at, std::uint64_t handle) noexcept {
  if (runtime_.memory_map(at, unit_, /*offset=*/0, handle, /*flags=*/0)) {
    runtime_.get_last_error();
    return false;
  }
  if (runtime_.memory_set_access(at, unit_, accesses_.data(), accesses_.size())) {
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
  // Outside of a capture nothing will tell what lives on.
  const bool is_blank = current_ != Pool{};
  const auto segment = segments_.emplace(begin, Segment{current_, in_bytes(count), {}}).first;
  segment->second.chunks.reserve(count);
  for (std::size_t i = 0; i < count; ++i) {
    Chunk chunk;
    if (!map_new(begin + in_bytes(i), is_blank, &chunk)) {
      drop(segment);
      return nullptr;
    }
    segment->second.chunks.push_back(chunk);
  }
  return reinterpret_cast<void*>(begin);
}

bool GraphMemory::map_new(std::uintptr_t at, bool is_blank, Chunk* chunk) noexcept {
  if (is_blank) {
    if (!blank_) blank_ = create();
    if (!blank_ || !map(at, blank_)) {
      if (blank_ && blanks_ == 0) {
        runtime_.memory_release(blank_);
        blank_ = 0;
      }
      return false;
    }
    ++blanks_;
    return true;
  }
  *chunk = {kOwn, create()};
  if (!chunk->handle) return false;
  if (!map(at, chunk->handle)) {
    runtime_.memory_release(chunk->handle);
    return false;
  }
  own_[chunk->handle] = 1;
  return true;
}

void GraphMemory::drop(Segments::iterator segment) noexcept {
  const auto& [begin, s] = *segment;
  for (std::size_t i = 0; i < s.chunks.size(); ++i) {
    runtime_.memory_unmap(begin + in_bytes(i), unit_);
    if (s.pool == kEager) {
      leave_lent(s.chunks[i]);
    } else {
      leave(s.chunks[i]);
    }
  }
  runtime_.address_free(begin, s.room);
  const Pool pool = s.pool;
  if (pool != kEager) ++changes_;
  segments_.erase(segment);
  const bool left =
      std::ranges::any_of(segments_, [&](const auto& entry) { return entry.second.pool == pool; });
  if (!left) records_.erase(pool);
}

void GraphMemory::release(void* p) noexcept {
  const std::lock_guard lock(mutex_);
  retired_.push_back(reinterpret_cast<std::uintptr_t>(p));
  drop_retired();
}

void GraphMemory::drop_retired() noexcept {
  if (retired_.empty() || captures_ > 0) return;  // to wait for the device would spoil a capture
  const RelaxedCapture relaxed(runtime_);         // on another device
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

void GraphMemory::join(Chunk& chunk) {
  if (chunk.shared == kOwn) {
    if (!chunk.handle) chunk.handle = create_or_throw();
    ++own_[chunk.handle];
    return;
  }
  if (chunk.shared >= shared_.size()) shared_.resize(chunk.shared + 1);
  Shared& shared = shared_[chunk.shared];
  if (shared.users == 0) shared.handle = create_or_throw();
  ++shared.users;
}

template <typename Visit>
void GraphMemory::for_each_chunk(Pool pool, Addresses addresses, Visit visit) {
  auto segment = segments_.upper_bound(addresses.begin);
  if (segment == segments_.begin()) return;
  --segment;
  auto& [begin, s] = *segment;
  const std::uintptr_t end = begin + in_bytes(s.chunks.size());
  if (s.pool != pool || addresses.begin >= end || addresses.end <= addresses.begin) return;
  const std::size_t last = (std::min(addresses.end, end) - begin + unit_ - 1) / unit_;
  for (std::size_t i = (addresses.begin - begin) / unit_; i < last; ++i) {
    visit(begin + in_bytes(i), s.chunks[i]);
  }
}

// Chunks that a pool's addresses may have: each at one time for one of them.
class GraphMemory::Colors {
 public:
  bool fits(std::size_t index, const Page& page) const {
    if (index >= pages_.size() || !pages_[index].chunk) return true;
    const Page& other = pages_[index];
    if (page.alone || other.alone || page.stream != other.stream) return false;
    auto mine = page.times.begin();
    auto theirs = other.times.begin();
    while (mine != page.times.end() && theirs != other.times.end()) {
      if (mine->second <= theirs->first) {
        ++mine;
      } else if (theirs->second <= mine->first) {
        ++theirs;
      } else {
        return false;
      }
    }
    return true;
  }

  // The first chunk from `index` on that fits.
  std::size_t first_from(std::size_t index, const Page& page) const {
    while (!fits(index, page)) ++index;
    return index;
  }

  void add(std::size_t index, const Page& page) {
    if (index >= pages_.size()) pages_.resize(index + 1);
    Page& all = pages_[index];
    if (!all.chunk) {
      all = page;
      return;
    }
    all.times.insert(all.times.end(), page.times.begin(), page.times.end());
    join(all.times);
  }

  // Sorts periods and joins those that touch.
  static void join(std::vector<std::pair<std::int64_t, std::int64_t>>& times) {
    std::ranges::sort(times);
    std::size_t last = 0;
    for (std::size_t i = 1; i < times.size(); ++i) {
      if (times[i].first <= times[last].second) {
        times[last].second = std::max(times[last].second, times[i].second);
      } else {
        times[++last] = times[i];
      }
    }
    if (!times.empty()) times.resize(last + 1);
  }

 private:
  std::vector<Page> pages_;  // by index; without a chunk where no address has it
};

// Pages that no block of a graph had stay blank, if the blocks are known.
std::vector<GraphMemory::Page> GraphMemory::pages_of(Pool pool, const Record& record,
                                                     std::span<const Addresses> kept) {
  std::map<std::uintptr_t, Page> pages;
  if (record.is_complete) {
    for (const Use& use : record.uses) {
      for_each_chunk(pool, use.block, [&](std::uintptr_t at, Chunk& chunk) {
        Page& page = pages.try_emplace(at, Page{at, &chunk, false, use.stream}).first->second;
        page.alone = page.alone || page.stream != use.stream;
        page.times.emplace_back(use.from, use.to);
      });
    }
  } else {
    for (auto& [begin, segment] : segments_) {
      if (segment.pool != pool) continue;
      for (std::size_t i = 0; i < segment.chunks.size(); ++i) {
        const std::uintptr_t at = begin + in_bytes(i);
        pages.try_emplace(at, Page{at, &segment.chunks[i]});
      }
    }
  }
  const std::int64_t end = record.captures * Use::kAlways;  // of the last capture
  for (const Addresses& block : kept) {
    for_each_chunk(pool, block, [&](std::uintptr_t at, Chunk& chunk) {
      Page& page = pages.try_emplace(at, Page{at, &chunk}).first->second;
      page.lives = true;
      page.times.emplace_back(end - 1, end);
    });
  }
  std::vector<Page> result;
  for (auto& [at, page] : pages) {
    Colors::join(page.times);
    result.push_back(std::move(page));
  }
  std::ranges::stable_sort(result, {}, [](const Page& page) {
    return page.times.empty() ? 0 : page.times.front().first;
  });
  return result;
}

void GraphMemory::note(Record& record, std::span<const Use> uses) {
  const std::int64_t start = record.captures * Use::kAlways;  // no two graphs of a pool at once
  std::map<std::uintptr_t, std::size_t> open;
  for (Use use : uses) {
    const bool lasts = use.to == Use::kAlways;
    const auto before = record.open.find(use.block.begin);
    const bool goes_on = use.from == 0 && before != record.open.end();
    use.from += start;
    use.to += start;
    if (goes_on) {
      Use& known = record.uses[before->second];
      known.to = use.to;
      known.block.end = std::max(known.block.end, use.block.end);
    } else {
      record.uses.push_back(use);
    }
    if (lasts) open[use.block.begin] = goes_on ? before->second : record.uses.size() - 1;
  }
  record.open = std::move(open);
}

void GraphMemory::wait_for_graphs() {
  if (captures_ > 0) {  // which the wait would spoil
    throw Error("a graph that shares memory with earlier ones of its pool has to wait for GPU " +
                std::to_string(device_) + ", where another graph is being captured");
  }
  if (const auto error = runtime_.device_synchronize()) {
    runtime_.fail("waiting for the device", device_, error);
  }
}

void GraphMemory::settle(Pool pool, std::span<const Addresses> kept,
                         std::optional<std::span<const Use>> uses) {
  const std::lock_guard lock(mutex_);
  const RelaxedCapture relaxed(runtime_);
  const DeviceGuard guard(runtime_, device_);
  Record& record = records_[pool];
  if (record.captures > 0) wait_for_graphs();
  record.is_complete = record.is_complete && uses;
  if (uses) {
    note(record, *uses);
  }
  ++record.captures;
  const std::vector<Page> pages = pages_of(pool, record, kept);
  apply(chunks_for(pages));
  for (const Page& page : pages) page.chunk->lives = page.lives;
}

// The chunks of a pool: what a chunk holds in turn.
class GraphMemory::OwnChunks {
 public:
  // Adds the page to those that have the chunk; false if it does not fit them.
  bool add(std::uint64_t handle, const Page& page) {
    const std::size_t index = indices_.try_emplace(handle, handles_.size()).first->second;
    if (index == handles_.size()) handles_.push_back(handle);
    if (!colors_.fits(index, page)) return false;
    colors_.add(index, page);
    return true;
  }
  bool knows(std::uint64_t handle) const { return indices_.contains(handle); }
  void close(std::uint64_t handle) { closed_.insert(handle); }
  bool is_closed(std::uint64_t handle) const { return closed_.contains(handle); }

  // The first chunk from the index-th on that takes the page and is not closed, to which it is
  // added; 0 if there is none. Moves `index` there.
  std::uint64_t add_from(std::size_t& index, const Page& page) {
    for (; index < handles_.size(); ++index) {
      if (is_closed(handles_[index]) || !colors_.fits(index, page)) continue;
      colors_.add(index, page);
      return handles_[index];
    }
    return 0;
  }

 private:
  Colors colors_;
  std::vector<std::uint64_t> handles_;
  std::map<std::uint64_t, std::size_t> indices_;
  std::set<std::uint64_t> closed_;
};

// A live block keeps its chunk. One that has begun to live gets a chunk in which nothing lives
// then, and temporaries get one in which nothing lives in the end.
std::vector<GraphMemory::Move> GraphMemory::chunks_for(std::span<const Page> pages) {
  OwnChunks own;
  std::vector<const Page*> to_own;
  std::vector<const Page*> to_share;
  for (const Page& page : pages) {
    if (!is_owner(*page.chunk) || !page.lives || !page.chunk->lives) continue;
    own.add(page.chunk->handle, page);
    own.close(page.chunk->handle);
  }
  for (const Page& page : pages) {
    const Chunk& chunk = *page.chunk;
    if (page.lives) {
      if (!is_owner(chunk) || !chunk.lives) to_own.push_back(&page);
    } else if (!is_owner(chunk)) {
      to_share.push_back(&page);
    } else if (!own.add(chunk.handle, page)) {
      to_own.push_back(&page);  // what lived here did so between two graphs
    }
  }
  std::vector<Move> moves;
  Search search;
  for (const Page* page : to_own) {
    const Chunk& chunk = *page->chunk;
    std::uint64_t handle = 0;
    if (is_owner(chunk) && own.add(chunk.handle, *page)) {
      handle = chunk.handle;
    } else {
      search.start(*page);
      handle = own.add_from(search.own, *page);
      moves.push_back({page->at, page->chunk, {kOwn, handle}});
    }
    if (page->lives && handle) own.close(handle);
  }
  Colors shared;
  search = {};
  for (const Page* page : to_share) {
    const Chunk& chunk = *page->chunk;
    if (chunk.shared == kOwn && own.knows(chunk.handle) && !own.is_closed(chunk.handle) &&
        own.add(chunk.handle, *page)) {  // stays where it is lent to
      continue;
    }
    search.start(*page);
    if (const std::uint64_t handle = own.add_from(search.own, *page)) {
      moves.push_back({page->at, page->chunk, {kOwn, handle, true}});
      continue;
    }
    std::size_t index = chunk.shared;
    if (index >= shared_.size() || !shared.fits(index, *page)) {
      index = search.shared = shared.first_from(search.shared, *page);
    }
    shared.add(index, *page);
    if (index != chunk.shared) moves.push_back({page->at, page->chunk, {index}});
  }
  return moves;
}

void GraphMemory::apply(std::vector<Move> moves) {
  // All memory first: if there is too little, no page may have a chunk that another has yet to
  // leave.
  for (std::size_t i = 0; i < moves.size(); ++i) {
    try {
      join(moves[i].to);
    } catch (...) {
      while (i > 0) leave(moves[--i].to);
      throw;
    }
  }
  for (const Move& move : moves) {
    const Chunk before = std::exchange(*move.chunk, move.to);
    replace(move.at, move.to.shared == kOwn ? move.to.handle : shared_[move.to.shared].handle);
    leave(before);
  }
  ++changes_;
}

std::vector<std::size_t> GraphMemory::lendable_chunks() const {
  std::vector<std::size_t> result;
  for (std::size_t i = 0; i < shared_.size(); ++i) {
    if (shared_[i].users > shared_[i].lent) result.push_back(i);
  }
  return result;
}

Bytes GraphMemory::lendable() const {
  const std::lock_guard lock(mutex_);
  return static_cast<Bytes>(in_bytes(lendable_chunks().size()));
}

void* GraphMemory::lend(Bytes size) noexcept {
  const std::lock_guard lock(mutex_);
  const RelaxedCapture relaxed(runtime_);
  const DeviceGuard guard(runtime_, device_);
  const std::size_t count = (static_cast<std::size_t>(size) + unit_ - 1) / unit_;
  const std::vector<std::size_t> chunks = lendable_chunks();
  std::uintptr_t begin = 0;
  if (guard.error() || size <= 0 || count > chunks.size()) return nullptr;
  if (runtime_.address_reserve(&begin, in_bytes(count), 0, 0, 0)) {
    runtime_.get_last_error();
    return nullptr;
  }
  const auto segment = segments_.emplace(begin, Segment{kEager, in_bytes(count), {}}).first;
  segment->second.chunks.reserve(count);
  for (std::size_t i = 0; i < count; ++i) {
    Shared& shared = shared_[chunks[i]];
    if (!map(begin + in_bytes(i), shared.handle)) {
      drop(segment);
      return nullptr;
    }
    ++shared.users;
    ++shared.lent;
    segment->second.chunks.push_back({chunks[i]});
  }
  return reinterpret_cast<void*>(begin);
}

bool GraphMemory::lends(const void* p) const {
  const std::lock_guard lock(mutex_);
  const auto address = reinterpret_cast<std::uintptr_t>(p);
  auto segment = segments_.upper_bound(address);
  if (segment == segments_.begin()) return false;
  --segment;
  return segment->second.pool == kEager && address < segment->first + segment->second.room;
}

void GraphMemory::keep(std::span<const Addresses> blocks) {
  const std::lock_guard lock(mutex_);
  const RelaxedCapture relaxed(runtime_);
  const DeviceGuard guard(runtime_, device_);
  std::map<std::size_t, std::uint64_t> fresh;  // by the index of a shared chunk
  std::set<std::uintptr_t> kept;               // addresses of chunks
  for (const Addresses& block : blocks) {
    for_each_chunk(kEager, block, [&](std::uintptr_t at, Chunk& chunk) {
      if (chunk.shared == kOwn) return;
      fresh[chunk.shared] = 0;
      kept.insert(at);
    });
  }
  if (kept.empty()) return;
  if (captures_ > 0) {  // which the wait would spoil
    throw Error("eager tensors are in the memory of graphs on GPU " + std::to_string(device_) +
                ", where a graph is being captured");
  }
  if (const auto error = runtime_.device_synchronize()) {
    runtime_.fail("waiting for the device", device_, error);
  }
  for (auto& [index, handle] : fresh) {
    handle = create();
    if (handle) continue;
    for (const auto& [other, made] : fresh) {
      if (made) runtime_.memory_release(made);
    }
    throw OutOfMemory("eager tensors are in " +
                      format_bytes(static_cast<Bytes>(in_bytes(kept.size()))) +
                      " of the memory of captured graphs, and GPU " + std::to_string(device_) +
                      " has not as much left for the graphs");
  }
  std::map<std::size_t, std::uint64_t> before;
  for (const auto& [index, handle] : fresh) {
    before[index] = std::exchange(shared_[index].handle, handle);
  }
  for (auto& [begin, segment] : segments_) {
    for (std::size_t i = 0; i < segment.chunks.size(); ++i) {
      Chunk& chunk = segment.chunks[i];
      const std::uintptr_t at = begin + in_bytes(i);
      const auto changed = fresh.find(chunk.shared);
      if (changed == fresh.end()) continue;
      if (kept.contains(at)) {
        const Chunk left = std::exchange(chunk, {kOwn, before[chunk.shared]});
        ++own_[chunk.handle];
        leave_lent(left);
      } else {
        replace(at, changed->second);
      }
    }
  }
}

GraphMemory::Figures GraphMemory::figures() const {
  const std::lock_guard lock(mutex_);
  Figures result;
  for (const auto& [begin, segment] : segments_) {
    result.addresses += static_cast<Bytes>(in_bytes(segment.chunks.size()));
  }
  const auto held =
      std::ranges::count_if(shared_, [](const Shared& shared) { return shared.users > 0; });
  result.shared = static_cast<Bytes>(in_bytes(static_cast<std::size_t>(held) + (blank_ ? 1 : 0)));
  std::set<Pool> pools;
  std::size_t eager = 0;
  for (const auto& [begin, segment] : segments_) {
    if (segment.pool == kEager) {
      eager += static_cast<std::size_t>(std::ranges::count(segment.chunks, kOwn, &Chunk::shared));
    } else if (segment.pool != Pool{}) {
      pools.insert(segment.pool);
    }
  }
  result.eager = static_cast<Bytes>(in_bytes(eager));
  result.own = static_cast<Bytes>(in_bytes(own_.size() - eager));
  result.pools = pools.size();
  return result;
}

}  // namespace stalloc::device
