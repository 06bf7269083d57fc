#include "runtime/pools.h"

#include <algorithm>
#include <utility>

#include "base/align.h"
#include "base/error.h"
#include "base/format.h"
#include "plan/layout.h"
#include "runtime/startup_guide.h"

namespace stalloc::runtime {
namespace {

// Torch guarantees this alignment for every tensor in the host's memory, and its kernels rely on
// it. On other devices torch guarantees kDefaultAlignment.
constexpr Bytes kHostAlignment = 64;

// Memory that is freed in retired pools goes to the device once it is so much, and one part in so
// many of theirs: each time waits for the device.
constexpr Bytes kLeastFreed = Bytes{32} << 20;
constexpr Bytes kFreedParts = 64;

}  // namespace

Pools::~Pools() {
  visit([this](Pool& pool) { free_pool(pool); });
}

void Pools::check_alignment(const plan::Plan& plan) const {
  const Bytes needed = streams_ ? kDefaultAlignment : kHostAlignment;
  if (plan.alignment % needed != 0) {
    throw PlanError("the plan's addresses are aligned to " + std::to_string(plan.alignment) +
                    " bytes, and tensors need a multiple of " + std::to_string(needed) +
                    "; plan again with the default alignment");
  }
  if (device_.alignment() % plan.alignment != 0) {
    throw PlanError("the plan's addresses are aligned to " + std::to_string(plan.alignment) +
                    " bytes, and the device (" + name() + ") can place a pool at multiples of " +
                    std::to_string(device_.alignment()) +
                    " only; plan again with an alignment that divides that");
  }
}

void Pools::enable(const plan::Plan& plan, bool with_resident, bool filled) {
  std::unique_ptr<Pool> pool = make_pool(plan, /*grows=*/true, filled);
  std::unique_ptr<Pool> resident;
  if (with_resident) {
    try {
      resident = make_resident(resident_region(plan));
    } catch (...) {
      free_pool(*pool);
      throw;
    }
  }
  disable();
  active_ = std::move(pool);
  resident_ = std::move(resident);
}

void Pools::disable() {
  retire(std::move(active_));
  retire(std::move(resident_));
  away_ = is_left_ = false;
  partial_.forget();
}

// A run may hold most of its memory before it makes all that stays, as when a model is checked
// before its first step. After start-up, parts that no block has got give their memory back. All in
// some chunks that other processes can still share.
std::unique_ptr<Pool> Pools::make_resident(const plan::Plan& region) {
  constexpr Bytes kChunks = 128;
  if (region.pool == 0) return make_pool(region, /*grows=*/false, /*filled=*/true);
  const Bytes chunk = align_up(region.pool / kChunks + 1, device_.unit());
  const Bytes first = std::min(chunk, region.pool);
  void* const piece =
      has_memory(region.pool) ? device_.allocate_movable(region.pool, first, chunk) : nullptr;
  if (!piece) return make_pool(region, /*grows=*/false, /*filled=*/true);
  auto* const memory = static_cast<std::byte*>(piece);
  try {
    auto pool = std::make_unique<Pool>(region, memory);
    pool->chunk = chunk;
    if (first < region.pool) pool->space.remove_memory({first, region.pool});
    return pool;
  } catch (...) {
    device_.release(memory, region.pool);
    throw;
  }
}

std::unique_ptr<Pool> Pools::make_pool(const plan::Plan& plan, bool grows, bool filled) {
  const Bytes chunk = device::chunk_of(plan.pool, device_.unit());
  // An iteration seldom has all dynamic requests of the others, and may never have all extents of
  // the others. Addresses get memory later, unless that costs so little that memory need never
  // move for them.
  const bool may_lack = grows && chunk < plan.pool && (!filled || plan::has_idle(plan));
  std::byte* memory = nullptr;
  if (may_lack && (!filled || has_memory(plan.pool))) {
    memory = static_cast<std::byte*>(device_.allocate_addresses(plan.pool, chunk));
    if (!memory && !filled && fallback_.release_cached() > 0) {
      memory = static_cast<std::byte*>(device_.allocate_addresses(plan.pool, chunk));
    }
  }
  const bool lacks = memory != nullptr;
  if (!lacks) memory = reserve(plan.pool, grows);
  try {
    auto pool = std::make_unique<Pool>(plan, memory);
    pool->chunk = chunk;
    if (lacks) pool->space.remove_memory({chunk, plan.pool});
    if (lacks && filled) {
      const RangeSet addresses = plan::static_addresses_of(plan);
      Bytes bytes = 0;
      for (const Range& r : addresses.ranges()) bytes += r.size();
      if (plan.recorded_load == 0 || !plan::exceeds_load(plan, bytes)) {
        // If the device lacks memory, the rest gets it with its requests.
        for (const Range& r : addresses.ranges()) {
          if (!attach(*pool, r)) break;
        }
      }
    }
    if (streams_ && plan.streams == solve::Streams::kOrdered) {
      pool->order.emplace(plan, *streams_, *table_);
    }
    return pool;
  } catch (...) {
    if (memory) device_.release(memory, plan.pool);
    throw;
  }
}

// True if the device can give so much, at the cost of what the fallback caches.
bool Pools::has_memory(Bytes size) {
  const auto has = [&] { return size <= device_.available(); };
  return has() || (fallback_.release_cached() > 0 && has());
}

// Gives memory to the chunks that hold `r`. False if the device lacks it.
bool Pools::attach(Pool& pool, Range r) {
  const Range chunks{r.begin / pool.chunk * pool.chunk,
                     std::min(pool.first_size, align_up(r.end, pool.chunk))};
  std::vector<Range> lacking;
  pool.space.absent().intersect(chunks, [&](Range part) { lacking.push_back(part); });
  for (const Range& part : lacking) {
    if (!device_.attach(pool.base, part)) return false;
    pool.space.return_memory(part);
  }
  return true;
}

bool Pools::provide_resident(Range r) {
  const auto attach_region = [&] {
    try {
      return attach(*resident_, r);
    } catch (const Error&) {
      return false;  // a later call tells if the device is lost
    }
  };
  if (resident_->space.absent().empty() || r.size() <= 0) return false;
  return attach_region() || (fallback_.release_cached() > 0 && attach_region());
}

std::byte* Pools::try_reserve(Bytes size, bool grows) {
  void* memory = device_.allocate_pool(size, grows);
  if (!memory && fallback_.release_cached() > 0) memory = device_.allocate_pool(size, grows);
  return static_cast<std::byte*>(memory);
}

std::byte* Pools::reserve(Bytes size, bool grows) {
  if (size == 0) return nullptr;
  std::byte* memory = try_reserve(size, grows);
  if (!memory) throw_out_of_memory(size);
  return memory;
}

void Pools::relayout(const plan::Plan& layout) { adopt(layout, active_->space.size()); }

// Work of one stream may be under way at addresses that another stream gets. It goes on in blocks
// that are live, and the next layout may give their addresses to other streams.
void Pools::adopt(const plan::Plan& layout, Bytes memory) {
  const auto of_other_stream = [&](const auto& r) { return r.stream != 0; };
  const bool several = std::ranges::any_of(layout.decisions, of_other_stream) ||
                       std::ranges::any_of(layout.groups, of_other_stream);
  if (streams_ && several) streams_->synchronize(/*everywhere=*/false);
  active_->space.relayout(layout, memory);
  if (!streams_) return;
  const std::vector<Range> unplanned = several ? active_->space.unplanned() : std::vector<Range>{};
  const bool is_ordered = layout.streams == solve::Streams::kOrdered;
  active_->earlier_waits = active_->waits();
  active_->order.reset();
  if (is_ordered || !unplanned.empty()) {
    active_->order.emplace(layout, *streams_, *table_, unplanned);
  }
}

bool Pools::exchange(const plan::Plan& layout) {
  const Bytes before = active_->space.size();
  free_pool(*active_);
  active_->base = nullptr;
  active_->more.clear();
  for (const Range& r : active_->space.absent().ranges()) active_->space.return_memory(r);
  std::byte* memory = try_reserve(layout.pool, /*grows=*/true);
  const bool exchanged = memory || layout.pool == 0;
  if (!memory && before > 0) memory = try_reserve(before, /*grows=*/true);
  active_->base = memory;
  active_->first_size = exchanged ? layout.pool : before;
  active_->chunk = device::chunk_of(active_->first_size, device_.unit());
  away_ = !memory && active_->first_size > 0;
  if (exchanged) adopt(layout, layout.pool);
  return exchanged;
}

bool Pools::can_grow() const {
  return active_->base && active_->more.empty() && device_.can_grow(active_->base);
}

// Makes the memory of `before` bytes `size` bytes large.
bool Pools::add_behind(std::byte* memory, Bytes& before, Bytes size) {
  // A driver that fails here has no memory to add. A later call tells if the device is lost.
  const auto grow = [&] {
    try {
      return device_.grow(memory, before, size);
    } catch (const Error&) {
      return false;
    }
  };
  if (!grow() && !(fallback_.release_cached() > 0 && grow())) return false;
  before = size;
  return true;
}

bool Pools::grow(const plan::Plan& layout) {
  if (layout.pool > device_.room(active_->base)) return false;
  if (!has_memory(memory_with(layout) - active_->space.memory())) return false;
  Bytes& size = active_->first_size;
  // The rest of a unit that has memory.
  const Bytes solid = std::min(layout.pool, align_up(size, device_.unit()));
  if (solid > size && !add_behind(active_->base, size, solid)) return false;
  const Bytes before = size;
  if (layout.pool > size) {
    if (!device_.extend(active_->base, size, layout.pool)) return false;
    size = layout.pool;
  }
  adopt(layout, size);
  if (size > before) active_->space.remove_memory({before, size});
  return true;
}

Bytes Pools::memory_with(const plan::Plan& layout) const {
  const StaticPool& space = active_->space;
  Bytes memory = space.memory() + std::max<Bytes>(0, layout.pool - space.size());
  if (space.absent().empty()) return memory;
  const RangeSet needed = plan::addresses_of(layout);
  for (const Range& r : space.absent().ranges()) {
    needed.intersect(r, [&](Range part) { memory += part.size(); });
  }
  return memory;
}

bool Pools::make_room(MovingMemory::Room room, MovingMemory::Means means) {
  if (means.more) fallback_.release_cached();  // its memory would come on top
  return move([&](MovingMemory& memory) { return memory.make_room(room, means); });
}

Bytes Pools::give_back(Bytes size) {
  Bytes gone = 0;
  move([&](MovingMemory& memory) {
    gone = memory.give_back(size);
    return gone > 0;
  });
  return gone;
}

bool Pools::provide(Range r, Range wish, MovingMemory::Means means, bool release_cached) {
  const auto provide = [&] {
    return move([&](MovingMemory& memory) {
      return memory.provide(r, wish, active_->space.planned(), means);
    });
  };
  return provide() || (release_cached && fallback_.release_cached() > 0 && provide());
}

bool Pools::extend(const plan::Plan& layout) {
  const Offset begin = layout.walls.back() + layout.alignment;
  if (layout.pool > begin) {
    std::byte* memory = try_reserve(layout.pool - begin, /*grows=*/false);
    if (!memory) return false;
    active_->more.push_back({memory, layout.pool - begin, begin});
  }
  adopt(layout, std::max(layout.pool, begin));
  return true;
}

void Pools::throw_out_of_memory(Bytes pool) const {
  throw OutOfMemory("the plan's pool of " + format_bytes(pool) +
                    " cannot be reserved: the device (" + name() + ") has " +
                    format_bytes(device_.available()) +
                    " left. Nothing was changed; free memory, or plan a smaller configuration.");
}

void Pools::release(bool partly) {
  if (active_->space.live_blocks() > 0) {
    if (partly && partial_.release(*active_)) {
      away_ = true;
      blocks_left_ = active_->space.live_blocks();
      return;
    }
    throw Error("the pool cannot be released: " + std::to_string(active_->space.live_blocks()) +
                " tensors lie in it, of " + format_bytes(live_bytes()) +
                "; delete them, or move them to the CPU, first");
  }
  // One piece replaces several.
  const bool keeps = active_->more.empty();
  if (active_->base && !(keeps && device_.suspend(active_->base, active_->first_size))) {
    free_pool(*active_);
    active_->base = nullptr;
    active_->more.clear();
  }
  if (!active_->space.absent().empty()) active_->space.make_solid();
  active_->first_size = active_->space.size();
  if (active_->base) device_.shrink(active_->base, active_->first_size);
  away_ = true;
}

bool Pools::release_more() {
  const std::size_t blocks = active_->space.live_blocks();
  if (!partial_.is_partial() || blocks >= blocks_left_) return false;
  blocks_left_ = blocks;
  return partial_.release_more(*active_);
}

void Pools::acquire() {
  if (is_left_) return;
  if (partial_.is_partial()) {
    const auto acquire = [&] { return partial_.acquire(*active_); };
    if (!acquire() && !(fallback_.release_cached() > 0 && acquire())) {
      throw_out_of_memory(partial_.size());
    }
  } else if (!active_->base) {
    active_->base = reserve(active_->space.size(), /*grows=*/true);
  } else {
    const auto resume = [&] { return device_.resume(active_->base, active_->space.size()); };
    if (!resume() && !(fallback_.release_cached() > 0 && resume())) {
      throw_out_of_memory(active_->space.size());
    }
  }
  away_ = false;
}

void Pools::abandon() {
  abandoned_ = true;
  if (active_ && active_->order) active_->order->abandon();
}

void Pools::retire(std::unique_ptr<Pool> pool) {
  if (!pool) return;
  pool->order.reset();  // no stream gets its addresses any more
  untrimmed_ = true;
  retired_.push_back(std::move(pool));
}

Bytes Pools::worth_a_wait() const {
  Bytes memory = 0;
  for (const auto& pool : retired_) memory += pool->space.memory();
  if (is_left_) memory += left();
  return std::max(kLeastFreed, memory / kFreedParts);
}

void Pools::review_retired(Bytes least) { untrimmed_ = untrimmed_ || freed_ >= least; }

bool Pools::trim() {
  if (!std::exchange(untrimmed_, false) || abandoned_) return false;
  freed_ = 0;
  bool trimmed = is_left_ && partial_.is_partial() && partial_.release_more(*active_);
  for (const auto& pool : retired_) {
    if (pool->space.live_blocks() == 0) continue;
    trimmed = PartialRelease(device_).release(*pool) || trimmed;
  }
  return trimmed;
}

bool Pools::drop_empty() {
  return std::erase_if(retired_, [&](const auto& pool) {
           if (pool->space.live_blocks() > 0) return false;
           free_pool(*pool);
           return true;
         }) > 0;
}

void Pools::free_pool(Pool& pool) noexcept {
  if (abandoned_) return;
  for (const Pool::Piece& piece : pool.pieces()) device_.release(piece.memory, piece.size);
}

Pool* Pools::find_other(const void* p) const {
  if (resident_ && resident_->contains(p)) return resident_.get();
  for (const auto& pool : retired_) {
    if (pool->contains(p)) return pool.get();
  }
  return nullptr;
}

Pools::Held Pools::held() const {
  Held held;
  visit([&](const Pool& pool) {
    for (const Pool::Piece& piece : pool.mapped()) {
      if (!is_gone(pool)) {
        held.reserved += piece.size;
        ++held.segments;
      }
      const auto begin = reinterpret_cast<std::uintptr_t>(piece.memory);
      held.low = std::min(held.low, begin);
      held.high = std::max(held.high, begin + static_cast<std::uintptr_t>(piece.size));
    }
  });
  return held;
}

Bytes Pools::live_bytes() const {
  Bytes bytes = 0;
  if (!active_) return bytes;
  for (const Offset offset : active_->space.live()) bytes += active_->space.at(offset).size;
  return bytes;
}

void Pools::check() const {
  visit([](const Pool& pool) { pool.space.check(); });
}

}  // namespace stalloc::runtime
