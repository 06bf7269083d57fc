// The memory that requests get where the pool has none, see MovingMemory.
#include <algorithm>
#include <utility>

#include "runtime/serving.h"

namespace stalloc::runtime {
namespace {

// Memory of the pool may move so often while the model trains, and once more for so many requests:
// some 50 ms of a GPU's work for a wait. The same holds for memory beside the pool.
constexpr std::int64_t kFirstMoves = 512;
constexpr std::int64_t kRequestsForMove = 500;

// The last of these moves are a reserve: requests use idle memory where they can. A pool that needs
// half of them all the same is left if the run, with memory for all of the pool's addresses, would
// need more than the load and one part in so many: without moves, they would get it one day.
constexpr std::int64_t kReserve = 96;
constexpr Bytes kWorthMoves = 3;

// No pool is left where the device has less than the load and one part in so many: the fallback
// could run out of memory there, whereas the memory of a pool moves before a request fails.
constexpr Bytes kRoomyParts = 2;

// The pool may have the bound of its layout and one part in so many before memory moves for it.
constexpr Bytes kSpareParts = 200;

// The structure of an iteration is looked at again after its pool has got one part in so many of
// its layout.
constexpr Bytes kReviewParts = 256;

// A run whose structure varies may hold its load and one part in so many before memory moves for
// it; a small one more, up to kLeastLacking.
constexpr Bytes kUnusedParts = 100;
constexpr Bytes kUnusedPartsOfSmall = 30;

// It gives extra memory back for a request of at least one part in so many of it.
constexpr Bytes kExtraParts = 16;

// The run may hold one part in so many more than what it could not do without, before idle memory
// of the pool gives way to the fallback, and kLeastLacking; a small one less than that, but the
// least memory that a GPU gives.
constexpr Bytes kToleratedParts = 128;
constexpr Bytes kToleratedPartsOfSmall = 16;
constexpr Bytes kLeastTolerated = Bytes{2} << 20;

// The fallback gives back what it caches if that is more than one part in so many of the load, and
// more than a segment of torch's allocator: for less, no program should wait.
constexpr Bytes kCachedParts = 64;
constexpr Bytes kLeastCached = Bytes{20} << 20;

// A wait makes room for one part in so many of the load at most.
constexpr Bytes kCushionParts = 8;

// Memory moves often if it has done so one part in so many of the times that it may, and so many
// times in this iteration.
constexpr std::int64_t kOftenParts = 3;
constexpr std::int64_t kOftenNow = 4;

// If memory moves for a request, room is made for so many of its size.
constexpr Bytes kRooms = 4;

}  // namespace

// The memory that a run of such a load may leave unused.
Bytes Serving::unused(Bytes load) {
  return std::max(load / kUnusedParts, std::min(load / kUnusedPartsOfSmall, kLeastLacking));
}

// Makes room for a request of an evaluation, and for one whose lifetime the plan tells: a decision
// whose addresses are taken, or a dynamic request that its region does not hold. A request between
// the planned phases that is large or keeps out of the layout gets memory of idle addresses. Any
// other request of training may stay for good, and memory beside the pool is as good for it.
bool Serving::make_room_for(Bytes size, StreamId stream, StaticPool::Departure& departure) {
  const bool of_evaluation =
      in_evaluation_ && departure.origin != kNone && departure.origin != Departures::kOtherThread;
  const bool is_known = departure.lifetime != kNone;
  const StaticPool& space = pools_.active()->space;
  const bool is_large = size >= space.memory() / kLargeParts;
  const bool of_pause = !of_evaluation && !is_known && departure.kind == StaticPool::Kind::kIdle &&
                        departure.origin != Departures::kOtherThread && is_pause() &&
                        (is_large || departure.only_outside);
  MovingMemory::Means means = this->means();
  if (!of_evaluation && !is_known && !of_pause) {
    // A pool with dynamic groups begins without their memory, which others could use.
    const bool has_spare = !layouts_.current().groups.empty();
    means = {.rest = has_spare ? means.rest : 0, .waits = means.waits};
  }
  // Beside the pool it would need as much memory, which nothing else of the plan could use.
  const bool is_dynamic = departure.kind == StaticPool::Kind::kIdleDynamic;
  if (is_known) means.more = is_dynamic || is_large;
  if (of_pause) {
    // Memory would move back and forth if each iteration asked for it.
    pauses_often_ = pauses_often_ || counts_.iterations == paused_in_ + 1;
    if (pauses_often_) return false;
    paused_in_ = counts_.iterations;
    means.rest = 0;
  }
  if (refuses_room(size, means)) return false;
  // The idle addresses that remain would displace a large decision.
  if (of_pause || (is_known && space.largest_hole() >= size)) {
    departure.stays_outside = &space.planned();
    departure.only_outside = true;
  }
  const Bytes needed = size + (departure.stays_outside ? 2 * space.gap() : 0);
  const bool only_outside = departure.only_outside;
  // One wait may serve the next requests, too. Copies of a model's weights are many.
  const Bytes next = std::max(kRooms * size, of_pause ? outside_ : 0);
  const MovingMemory::Means one_wait{.spare = means.spare, .cushion = means.cushion};
  if (!in_evaluation_ && means.waits && make_room({next, stream, only_outside}, one_wait)) {
    return true;
  }
  return make_room({needed, stream, only_outside}, means);
}

// True between the planned phases, once the run has followed the plan: a checkpoint, scores of a
// model that is not trained.
bool Serving::is_pause() {
  return matcher().kind() == trace::PhaseKind::kOther && counts_.iterations > 0;
}

// True if a request of this phase that is no larger was refused. O(1). A capture must not wait for
// the driver.
bool Serving::refuses_room(Bytes size, MovingMemory::Means means) const {
  if (capturing() || !pools_.can_grow()) return true;
  const Refused& refused = refused_room_[means.gives() ? 1 : 0];
  if (size >= refused.size && counts_.allocated.current > refused.live - size) return true;
  return !means.waits && !means.gives();
}

// Makes room in the pool. Memory beside the pool serves these requests alone, whereas training may
// use this one afterwards.
bool Serving::make_room(MovingMemory::Room room, MovingMemory::Means means) {
  if (refuses_room(room.size, means)) return false;
  const StaticPool& space = pools_.active()->space;
  const Bytes before = space.memory();
  if (means.waits) {
    give_back_beside(accounting_.reserved() + room.size - accounting_.most_reserved(), 0, 0);
  }
  const bool made = pools_.make_room(room, means);
  note_memory();
  if (!made) {
    refused_room_[means.gives() ? 1 : 0] = {room.size, counts_.allocated.current};
    return false;
  }
  extra_ += std::max<Bytes>(0, space.memory() - before);
  return true;
}

void* Serving::allocate_idle(Bytes size, StreamId stream) {
  if (void* p = place_idle(size, stream, {})) return p;
  if (capturing() || pools_.is_away() || !pools_.can_grow()) return nullptr;
  const bool made = pools_.make_room({size, stream, /*stays=*/false}, {});
  note_memory();
  if (!made) return nullptr;
  return place_idle(size, stream, {});
}

Bytes Serving::give_idle(Bytes size) {
  if (capturing() || pools_.is_away() || !pools_.can_grow()) return 0;
  Bytes idle = 0;
  for (const Range& r : pools_.active()->space.idle_ranges()) idle += r.size();
  if (size > pools_.available() + idle) return 0;
  const Bytes gone = pools_.give_back(idle);
  note_memory();
  return gone;
}

// Gives memory to addresses of the layout that have none, and then to those of `wish`. False if
// there are none, or if the device lacks it. The first time in an iteration the fallback
// gives what it caches.
bool Serving::provide_memory(Range r, Range wish, MovingMemory::Means means) {
  if (r.size() <= 0 || capturing() || pools_.is_away()) return false;
  if (means.waits) {
    Bytes lacking = 0;
    pools_.active()->space.absent().intersect(r, [&](Range part) { lacking += part.size(); });
    if (lacking > means.spare) release_cached();
    give_back_beside(accounting_.reserved() + lacking - accounting_.most_reserved(), 0, 0);
  }
  const bool provided = pools_.provide(r, wish, means, !lacked_);
  lacked_ = lacked_ || !provided;
  note_memory();
  return provided;
}

// The same for the addresses of a start-up request in the resident region.
bool Serving::provide_resident(plan::StartupIndex i, Bytes size) {
  const StaticPool& region = pools_.resident()->space;
  const Range lacking = startup_->lacking_in_region(i, size, region);
  if (lacking.size() <= 0 || capturing()) return false;
  give_back_beside(accounting_.reserved() + lacking.size() - accounting_.most_reserved(), 0, 0);
  const Bytes before = region.memory();
  const bool provided = pools_.provide_resident(lacking);
  took_memory_ = true;
  is_resized_ = true;
  unnoted_ += region.memory() - before;
  return provided;
}

// The ways in which a request of `size` bytes gets memory where the pool has none. Memory that
// moves waits for the device: training must not do so all the time, nor while a stream lags behind.
MovingMemory::Means Serving::means(Bytes size) const {
  // Work without a forward, such as a checkpoint, gets what the pool has.
  if (in_evaluation_) return {.more = evaluations_.has_forward(), .boxes = true};
  const bool lags = delayed_ && delayed_->any_waiting();
  const bool waits = !lags && training_moves_ < most_moves();
  const Bytes bound = layouts_.current().bound;
  const Bytes all = fills_ ? std::max(bound, most_addresses_) : bound;
  const Bytes rest = std::max<Bytes>(0, all + all / kSpareParts - pools_.active()->space.memory());
  const plan::Plan& layout = layouts_.current();
  const bool is_tight = !plan::has_idle(layout) || is_beyond_profile_;
  const bool is_static = layout.groups.empty() && is_tight && !leaves_out_ &&
                         pools_.active()->space.strays() == 0 && !has_given_way_;
  if (is_static) return {.spare = rest, .rest = rest, .waits = waits};
  // A layout with dynamic requests has more addresses than the run ever uses at once.
  const Bytes load = std::max({profiled_load_, accounting_.most_live(), accounting_.live() + size});
  const Bytes most = std::max(load + unused(load), accounting_.most_reserved());
  const Bytes reserved = accounting_.reserved() + std::max<Bytes>(0, unnoted_) + pools_.promised();
  // The run has held so much before.
  const Bytes known = std::max<Bytes>(0, accounting_.most_reserved() - reserved);
  const Bytes spare = std::max(known, std::clamp<Bytes>(most - reserved, 0, rest));
  const bool idle = !waits || saves_moves();
  return {.spare = spare, .rest = rest, .waits = waits, .idle = idle, .cushion = cushion_};
}

// Finds whether this iteration has the structure of a layout beyond the profile, which needs its
// bound then: before it gets more memory, and after each part of it. Longer batches than the
// profile had may be those whose activations are recomputed. The decision that is about to be
// placed counts as left out: a large one makes memory move, too.
void Serving::review_structure() {
  if (!is_beyond_profile_) return;
  const StaticPool& space = pools_.active()->space;
  const Bytes bound = layouts_.current().bound;
  if (reviewed_at_ > 0 && space.memory() < reviewed_at_ + bound / kReviewParts) return;
  reviewed_at_ = space.memory();
  leaves_out_ = left_out_before_ || space.left_out() > unused(bound);
}

// Finds the same where a forward has ended, for the batches to come: early in theirs, nothing is
// left out yet, and each would get a part of what it never needs.
void Serving::note_structure() {
  if (!is_beyond_profile_ || layouts_.was_profiled(microbatches_.now().extents)) return;
  left_out_before_ = pools_.active()->space.left_out() > unused(layouts_.current().bound);
}

std::int64_t Serving::most_moves() const {
  return kFirstMoves + (counts_.requests() + hits_) / kRequestsForMove;
}

bool Serving::moves_often() const {
  return training_moves_ >= moves_at_begin_ + kOftenNow &&
         training_moves_ >= most_moves() / kOftenParts;
}

bool Serving::saves_moves() const {
  return !in_evaluation_ && pools_.can_grow() && training_moves_ >= most_moves() - reserve_;
}

void Serving::note_memory() {
  const std::int64_t moves = pools_.moves() - moves_before_;
  if (!in_evaluation_) training_moves_ += moves - counts_.moves;
  if (!in_evaluation_ && moves > counts_.moves) widen_cushion();
  counts_.moves = moves;
  const Bytes memory = pools_.active()->space.memory();
  took_memory_ = took_memory_ || memory > counts_.pool;
  unnoted_ += memory - counts_.pool;
  counts_.pool = memory;
  is_resized_ = true;
}

bool Serving::would_give_way(Bytes size) {
  if (capturing() || pools_.is_away() || !pools_.can_grow()) return false;
  // A peak that was only tolerated is not accepted: else each would let the other rise.
  const Bytes most = accounting_.most_reserved();
  const bool is_small = most / kToleratedPartsOfSmall < kLeastLacking;
  const Bytes tolerated = most / ((is_small ? kToleratedPartsOfSmall : kToleratedParts) + 1);
  // The fallback may have taken less of the device than foreseen.
  accepted_ = accepted_ == 0 ? most : std::clamp(accepted_, most - tolerated, most);
  const Bytes least =
      std::clamp(accepted_ / kToleratedPartsOfSmall, kLeastTolerated, kLeastLacking);
  const Bytes lacking = accounting_.reserved() + size - accepted_;
  if (lacking <= std::max(accepted_ / kToleratedParts, least) || !means().waits) return false;
  return pools_.could_make_way(size);
}

void Serving::give_way(Bytes size, Bytes request, StreamId stream) {
  if (!would_give_way(size)) return;
  const auto lacking = [&] { return accounting_.reserved() + size - accepted_; };
  has_given_way_ = true;
  release_cached();
  give_back_beside(lacking(), request, stream);
  Bytes left = lacking();
  if (left <= 0) return;
  left -= pools_.give_back(std::max(left, cushion_));
  accepted_ += std::max<Bytes>(0, left);
  note_memory();
}

void Serving::give_back_beside(Bytes size, Bytes request, StreamId stream) {
  if (size <= 0 || moves_beside_ >= most_moves()) return;
  const Bytes released = pools_.give_back_beside(std::max(size, cushion_), request, stream);
  note_released(released);
  if (released == 0 || in_evaluation_) return;
  ++moves_beside_;
  widen_cushion();
}

// Each wait of an iteration makes room for twice as much as the one before: requests get memory
// that the device has without another one. Iterations are much alike, so the next begins with half.
void Serving::widen_cushion() {
  const Bytes load = std::max(profiled_load_, accounting_.most_live());
  cushion_ = std::max(kLeastLacking, std::min(2 * cushion_, load / kCushionParts));
}

void Serving::begin_moves() {
  const bool is_near = training_moves_ >= most_moves() - 2 * kReserve;
  reserve_ = is_near && can_leave_pool() ? kReserve : 0;
  const bool moved = training_moves_ > moves_at_begin_;
  const Bytes load = std::max(profiled_load_, accounting_.most_live());
  const StaticPool& space = pools_.active()->space;
  // If all addresses of the pool had memory.
  const Bytes reserved = accounting_.reserved() + space.size() - space.memory();
  runs_out_of_moves_ = moved && pools_.can_grow() &&
                       training_moves_ >= most_moves() - reserve_ / 2 &&
                       reserved > load + load / kWorthMoves;
  cushion_ = std::max(kLeastLacking, cushion_ / 2);
  moves_at_begin_ = training_moves_;
}

bool Serving::can_leave_pool() const {
  const Bytes load = std::max(profiled_load_, accounting_.most_live());
  return pools_.available() > load + load / kRoomyParts - accounting_.reserved();
}

void Serving::release_cached() { note_released(pools_.release_cached()); }

void Serving::note_released(Bytes released) {
  if (released == 0) return;
  counts_.reserved.add(-released);
  is_resized_ = true;
}

// Memory that the fallback caches and the pool's would add up, and what lies idle between its
// blocks does so for good. What it caches while neither of them grows, it will use again.
bool Serving::wants_cached() {
  if (capturing() || pools_.is_away() || accounting_.caller_waits()) return false;
  const Bytes load = std::max(profiled_load_, accounting_.most_live());
  const Bytes reserved = accounting_.reserved();
  const bool has_grown = reserved > std::max(load + unused(load), most_reserved_);
  if (!took_memory_ && !has_grown) return false;
  const Bytes little = std::max(load / kCachedParts, kLeastCached);
  if (accounting_.cached_by_caller() <= little || !means().waits) return false;
  took_memory_ = false;
  most_reserved_ = std::max(most_reserved_, reserved);
  if (!in_evaluation_) ++training_moves_;
  return true;
}

// A pool that is being filled takes whole chunks, at both ends.
bool Serving::exceeds_most(Bytes size) const {
  const Bytes wanted = size + (fills_ ? 2 * pools_.active()->chunk : 0);
  return accounting_.reserved() + wanted > accounting_.most_reserved();
}

bool Serving::wants_cached_for(Bytes size) {
  if (capturing() || pools_.is_away() || !pools_.can_grow() || accounting_.caller_waits()) {
    return false;
  }
  if (pools_.active()->space.absent().empty()) return false;
  const Bytes load = std::max(profiled_load_, accounting_.most_live());
  const Bytes cached = accounting_.cached_by_caller();
  // Between live blocks, some stays. Each request would wait for it in vain.
  stuck_cached_ = std::exchange(asked_cached_, false) ? cached : std::min(stuck_cached_, cached);
  if (cached - stuck_cached_ <= std::max(load / kCachedParts, kLeastCached)) return false;
  if (!exceeds_most(size) || !means().waits) return false;
  if (!in_evaluation_) ++training_moves_;
  asked_cached_ = true;
  return true;
}

// A departure adds it again. Meanwhile a request of `size` bytes has the memory beside the pool.
bool Serving::return_extra(Bytes size) {
  if (unplanned_depth_ > 0 || capturing() || pools_.is_away()) return false;
  if (size < extra() / kExtraParts) return false;
  extra_ = 0;
  if (!pools_.can_grow() || !means().waits) return false;
  pools_.return_end();
  note_memory();
  return true;
}

}  // namespace stalloc::runtime
