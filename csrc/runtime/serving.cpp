#include "runtime/serving.h"

#include <algorithm>
#include <utility>

namespace stalloc::runtime {
namespace {

// An evaluation needs at most so many times what the run does.
constexpr Bytes kMostLoads = 4;

// A request of an evaluation of less than one part in so many of the pool is small, and so is one
// of less than a page.
constexpr Bytes kSmallPart = 1000;
constexpr Bytes kPage = Bytes{4} << 10;

// A small request without a known lifetime lies beside the pool if it is smaller than this.
constexpr Bytes kTiny = Bytes{1} << 20;

constexpr Bytes kNumber = Evaluations::kNumber;

// A pool has to serve this share of its requests, averaged over about so many iterations.
constexpr double kLeastShare = 0.6;
constexpr double kLastIterations = 4;

// True if a forward begins before the backward of the one before it.
bool has_overlapping_microbatches(const plan::Plan& plan) {
  bool open = false;
  for (const profile::ProfiledPhase& phase : plan.phases) {
    const trace::PhaseKind kind = phase.key.kind;
    if (kind == trace::PhaseKind::kForward && std::exchange(open, true)) return true;
    if (kind == trace::PhaseKind::kBackward) open = false;
  }
  return false;
}

}  // namespace

Serving::Serving(const plan::Plan& plan, Scope scope, Pools& pools, Streams streams,
                 Accounting& accounting)
    : pools_(pools),
      delayed_(streams.delayed),
      hand_back_(scope.hand_back ? streams.hand_back : nullptr),
      accounting_(accounting),
      counts_(accounting.counts()),
      layouts_(plan),
      profiled_load_(plan.recorded_load > 0 ? plan.recorded_load : plan.load),
      overlaps_(has_overlapping_microbatches(plan)),
      most_addresses_(plan.pool),
      microbatches_(plan),
      matcher_(plan),
      departures_(plan),
      late_blocks_(plan),
      evaluations_(plan.alignment),
      moves_before_(pools.moves()),
      reuse_(scope.reuse),
      fills_(!scope.filled),
      other_threads_(scope.other_threads),
      ahead_(scope.ahead) {
  if (scope.startup && !plan.startup.empty()) startup_.emplace(plan);
  for (const plan::StartupRequest& r : plan.startup) {
    if (r.stays() && plan[r.phase].key.kind == trace::PhaseKind::kBackward) ++first_kept_[r.size];
  }
}

Serving::Place Serving::allocate(Bytes size, StreamId stream, bool tagged) {
  if (makes_states_) {
    ++counts_.persistent_requests;
    return {};
  }
  if (unplanned_depth_ > 0) {
    ++counts_.unplanned_requests;
    return {allocate_evaluation(size, stream)};
  }
  const auto [decision, group, startup, persistent, by_place, outgrows] =
      matcher().match(size, stream, tagged);
  if (matcher().is_first() && is_kept_gradient(size)) {
    ++counts_.persistent_requests;
    return {};
  }
  if (outgrows) {
    awaiting_ = decision;
    if (decision != kNone && !upcoming_refused_ && !startup_) return {.awaits_layout = true};
    return {allocate_outgrown(size, stream)};
  }
  if (decision != kNone) {
    if (leaves_out(layouts_.current()[decision])) return {};
    if (late_blocks_.contains(decision)) return {};
    return {allocate_planned(decision, size, stream)};
  }
  if (startup != kNone) return {allocate_startup(startup, size, stream)};
  if (persistent) {
    if (by_place && is_brief(size)) return {allocate_departed(size, stream, {origin()}, is_wary())};
    ++counts_.persistent_requests;
    return {};
  }
  if (group != kNone && leaves_out(layouts_.current()[group])) return {};
  if (tagged || group != kNone) return {allocate_dynamic(group, size, stream), true};
  if (is_setup() || makes_tables() || (keeps_pauses_clear_ && is_pause())) return {};
  return {allocate_departed(size, stream, {origin()}, is_wary())};
}

// True if the request is too large for one of a group of kept requests: between the phases where
// samples are kept, they may be scored, too. If such a block outlives an iteration, the next ones
// are kept.
bool Serving::is_brief(Bytes size) {
  const StaticPool& space = pools_.active()->space;
  if (!is_pause() || keeps_pauses_clear_) return false;
  if (size < std::max(space.memory() / kLargeParts, kTiny)) return false;
  const auto stays = [&](const StaticPool::Departed& d) {
    return d.origin == origin() && d.iterations > 0 && d.size >= size / 2;
  };
  return !departures_.keeps(origin(), size) && std::ranges::none_of(space.departed(), stays);
}

// The first backward pass makes the gradients that later ones add to, unless the loop drops them.
// As temporaries of later passes their like have places in the plan, where they would stay.
bool Serving::is_kept_gradient(Bytes size) {
  if (first_kept_.empty() || matcher().kind() != trace::PhaseKind::kBackward) return false;
  const auto left = first_kept_.find(size);
  return left != first_kept_.end() && left->second-- > 0;
}

// Before its first phase a run makes its model, which is permanent.
bool Serving::is_setup() {
  return counts_.iterations == 0 && matcher().phase() == kNone &&
         matcher().kind() == trace::PhaseKind::kOther;
}

// The first forward of a run whose plan is an earlier one's makes more than the plan has: masks and
// other tables that the model keeps. In the pool they would displace decisions for good.
bool Serving::makes_tables() {
  return matcher().is_first() && matcher().kind() == trace::PhaseKind::kForward;
}

// A smaller block that stays, such as the next batch, may be in the way of a large decision. Beside
// the pool it costs little.
Bytes Serving::small() const {
  return std::max(pools_.active()->space.memory() / kSmallPart, kPage);
}

PhaseIndex Serving::origin() {
  const PhaseIndex phase = matcher().phase();
  return phase == kNone ? Departures::kUnplanned : phase;
}

// True if new states or copies of weights are expected: from an optimizer that departs from the
// plan, between the planned phases, and in a run that has not followed the plan yet.
bool Serving::is_wary() {
  const Matcher& m = matcher();
  switch (m.kind()) {
    case trace::PhaseKind::kOther:
      return true;
    case trace::PhaseKind::kOptimizer:
      return !m.in_step() || m.wary();
    case trace::PhaseKind::kForward:
      return startup_.has_value();
    default:
      return startup_.has_value() || (m.phase() != kNone && !m.in_step());
  }
}

void* Serving::allocate_planned(plan::DecisionIndex decision, Bytes size, StreamId stream) {
  Pool& pool = *pools_.active();
  Offset offset = pool.space.place(decision, size);
  if (offset == kUnplaced && hand_back_ && hand_back_->possible() &&
      hand_back_->free(pool.space.in_the_way(decision, size), stream)) {
    offset = pool.space.place(decision, size);
  }
  const Range lacking = offset == kUnplaced ? pool.space.lacking_memory(decision, size) : Range{};
  if (lacking.size() > 0) {
    review_structure();
    if (void* p =
            place_in_memory(lacking, size, stream, {.origin = origin(), .lifetime = decision})) {
      ++counts_.conflicts;
      return p;
    }
    provide_memory(lacking, {}, means(size));
  }
  if (offset == kUnplaced) offset = pool.space.place(decision, size);
  if (offset != kUnplaced && pool.hand_over(offset, capturing())) {
    ++hits_;
    return pool.address(offset);
  }
  ++counts_.conflicts;
  return allocate_departed(size, stream, {.origin = origin(), .lifetime = decision},
                           /*wary=*/false);
}

// Places a request whose addresses lack memory in idle ones that have it, if the device should not
// give more, and no memory may move there or has moved often.
void* Serving::place_in_memory(Range lacking, Bytes size, StreamId stream,
                               StaticPool::Departure departure) {
  const MovingMemory::Means means = this->means(size);
  if (lacking.size() <= means.spare || shuts_out_departed() || in_evaluation_) return nullptr;
  if (!means.idle && !moves_often()) return nullptr;
  departure.harmless = !means.idle;
  // One that stays would be in the way of those that have the addresses.
  const bool is_dynamic = departure.kind == StaticPool::Kind::kIdleDynamic;
  departure.displaces = !is_dynamic && saves_moves();
  if (!departure.displaces &&
      !departures_.admits(departure.origin, size, is_dynamic && is_wary())) {
    return nullptr;
  }
  Pool& pool = *pools_.active();
  const Offset offset = pool.space.place_idle(size, stream, departure);
  if (offset == kUnplaced || !pool.hand_over(offset, capturing())) return nullptr;
  ++counts_.idle_requests;
  return pool.address(offset);
}

void* Serving::allocate_departed(Bytes size, StreamId stream, StaticPool::Departure departure,
                                 bool wary) {
  // A layout can leave what stays outside of the anchors alone.
  const bool may_stay =
      departure.stays_outside && pools_.can_grow() && failed_leftovers_ < kMostFailures;
  if (shuts_out_departed() || size <= kNumber) return nullptr;
  // A small block may be a state, which would be in the way of start-up's temporaries for good.
  if (startup_ && size < profile::kSmallRequest) return nullptr;
  departure.displaces = departure.kind == StaticPool::Kind::kIdle && saves_moves();
  if (!departure.displaces && !may_stay && !departures_.admits(departure.origin, size, wary)) {
    // Results of evaluations and copies of weights that stay cost their own size where no decision
    // lies.
    const bool is_copy = is_pause() && !keeps_clear_;
    const bool of_training = departure.origin != Departures::kUnplanned && !is_copy;
    if (of_training || !pools_.can_grow() || size < small()) return nullptr;
    departure.stays_outside = &pools_.active()->space.planned();
    departure.only_outside = true;
  }
  return place_idle(size, stream, departure);
}

void* Serving::place_idle(Bytes size, StreamId stream, StaticPool::Departure departure) {
  Pool& pool = *pools_.active();
  Offset offset = pool.space.place_idle(size, stream, departure);
  if (offset == kUnplaced && pool.space.has_zone()) {
    // The evaluation does without its layout rather than use memory beside the pool.
    pool.space.close_zone();
    offset = pool.space.place_idle(size, stream, departure);
  }
  if (offset == kUnplaced && hand_back_ && hand_back_->free_one(size, stream)) {
    offset = pool.space.place_idle(size, stream, departure);
  }
  // The first room may lie where a large decision comes soon. Then the second lies elsewhere.
  for (int i = 0; i < 2 && offset == kUnplaced && make_room_for(size, stream, departure); ++i) {
    offset = pool.space.place_idle(size, stream, departure);
  }
  if (offset == kUnplaced || !pool.hand_over(offset, capturing())) return nullptr;
  if (departure.only_outside) outside_ += size;
  ++counts_.idle_requests;
  return pool.address(offset);
}

void* Serving::allocate_evaluation(Bytes size, StreamId stream) {
  if (evaluations_.enlarge(size, stream)) {
    pools_.active()->space.close_zone();
    open_zone(/*more=*/true);
  }
  const Offset offset = evaluations_.next(size, stream);
  const Bytes small = this->small();
  // A pool that cannot grow has no end to be kept clear.
  const bool is_new = !evaluations_.is_known() && pools_.can_grow();
  if (size <= kNumber && offset == kUnplaced) return nullptr;
  if (size < small && (evaluations_.outlives(small) || (is_new && size < kTiny))) return nullptr;
  void* planned = offset == kUnplaced ? nullptr : place_evaluation(offset, size, stream);
  // A forward that departs from those before it tells nothing about a small block.
  if (!planned && size < std::min(small, kTiny) && pools_.can_grow()) return nullptr;
  StaticPool::Departure departure{.origin = Departures::kUnplanned};
  departure.is_brief = is_new || evaluations_.is_brief();
  // The next iteration gets a layout around it. Within an iteration it is to be least in the way.
  if (!began_ && evaluations_.outlives()) {
    // A plan without laws has no layout around it. No memory moves for a small block.
    departure.only_outside =
        layouts_.current().extents.empty() && pools_.can_grow() && size >= kTiny;
    departure.stays_outside =
        departure.only_outside ? &pools_.active()->space.planned() : &layouts_.anchored();
    departure.last = !departure.only_outside && evaluations_.leaves_last();
  }
  // After a forward, a program copies its weights or makes a new model. These stay.
  const bool may_copy = is_new && evaluations_.has_returned() && departures_.may_be_weight(size);
  void* p = planned ? planned : allocate_departed(size, stream, departure, may_copy);
  if (p) evaluations_.serve(p);
  return p;
}

void* Serving::place_evaluation(Offset offset, Bytes size, StreamId stream) {
  Pool& pool = *pools_.active();
  if (shuts_out_departed() || !pool.space.has_zone()) return nullptr;
  offset = pool.space.place_in_zone(offset, size, stream, {Departures::kUnplanned});
  if (offset == kUnplaced || !pool.hand_over(offset, capturing())) return nullptr;
  ++counts_.evaluation_requests;
  return pool.address(offset);
}

void Serving::enter_unplanned() {
  in_evaluation_ = true;
  if (unplanned_depth_++ == 0) begin_part(Evaluations::Part::kBeginning);
}

void Serving::begin_evaluation() {
  if (unplanned_depth_ > 0) begin_part(Evaluations::Part::kForward);
}

void Serving::leave_unplanned() {
  if (unplanned_depth_ > 0 && --unplanned_depth_ == 0) end_evaluation();
}

void Serving::begin_part(Evaluations::Part part) {
  refused_room_.fill({});
  end_evaluation();
  evaluations_.begin(part);
  open_zone(/*more=*/false);
}

// Opens a zone for the layout of the part, if need be in memory that moves. `more`: and in more
// memory than the pool has.
void Serving::open_zone(bool more) {
  if (evaluations_.height() == 0 || pools_.is_away() || shuts_out_departed()) return;
  const auto open = [this] {
    return pools_.active()->space.open_zone(evaluations_.height(), evaluations_.stream(),
                                            evaluations_.room(), !evaluations_.leaves_last());
  };
  if (open() || !evaluations_.has_forward()) return;
  const Bytes wanted = evaluations_.height() + evaluations_.room();
  // A wrong layout must not take the device: its requests then get memory one by one.
  const Bytes load = std::max(profiled_load_, accounting_.most_live());
  if (more && wanted / kMostLoads > load) return;
  const MovingMemory::Means means{.more = more, .boxes = true};
  if (make_room({wanted, evaluations_.stream(), /*stays=*/false}, means)) open();
}

void Serving::end_evaluation() {
  if (!evaluations_.active()) return;
  pools_.active()->space.close_zone();
  evaluations_.end();
}

void* Serving::allocate_startup(plan::StartupIndex i, Bytes size, StreamId stream) {
  StaticPool& space = pools_.active()->space;
  const auto find = [&] { return startup_->place(i, size, space, pools_.resident()->space); };
  StartupGuide::Place place = find();
  if (place.offset == kUnplaced && provide_resident(i, size)) place = find();
  if (place.offset == kUnplaced) {
    // Nothing waits for the device now: the first iteration would soon need the memory again.
    MovingMemory::Means means = this->means();
    means = {.spare = means.rest, .rest = means.rest, .waits = false};
    const Range r = startup_->range_in_pool(i, space.round_up(size));
    if (provide_memory(space.lacking_memory(r), {}, means)) place = find();
  }
  if (place.offset == kUnplaced && startup_->is_temporary(i)) {
    return allocate_departed(size, stream, {origin()}, is_wary());
  }
  Pool& pool = place.in_region ? *pools_.resident() : *pools_.active();
  if (place.offset == kUnplaced || !pool.hand_over(place.offset, capturing())) return nullptr;
  ++counts_.startup_requests;
  return pool.address(place.offset);
}

void* Serving::allocate_dynamic(plan::GroupIndex group, Bytes size, StreamId stream) {
  ++counts_.dynamic_requests;
  void* p = reuse_ && group != kNone ? place_dynamic(group, size, stream) : nullptr;
  if (!p && reuse_) {
    StaticPool::Departure departure{origin(), StaticPool::Kind::kIdleDynamic};
    if (group != kNone) departure.lifetime = pools_.active()->space.region_of(group);
    departure.yields = !pools_.can_grow();
    p = allocate_departed(size, stream, departure, is_wary());
  }
  if (p) {
    counts_.dynamic.add(size);
  } else {
    ++counts_.dynamic_fallback_requests;
  }
  return p;
}

void* Serving::place_dynamic(plan::GroupIndex group, Bytes size, StreamId stream) {
  Pool& pool = *pools_.active();
  const Range lacking = pool.space.lacking_memory(group, size);
  if (lacking.size() > 0) {
    const StaticPool::Departure departure{origin(), StaticPool::Kind::kIdleDynamic,
                                          pool.space.region_of(group)};
    if (void* p = place_in_memory(lacking, size, stream, departure)) return p;
    provide_memory(lacking, pool.space.region_range(group), means(size));
  }
  const Offset offset = pool.space.place_dynamic(group, size);
  if (offset == kUnplaced || !pool.hand_over(offset, capturing())) return nullptr;
  if (pool.space.at(offset).kind == StaticPool::Kind::kRegion) {
    ++counts_.dynamic_region_requests;
    counts_.dynamic_region.add(size);
  } else {
    ++counts_.dynamic_reused_requests;
    counts_.dynamic_reused.add(size);
  }
  return pool.address(offset);
}

void Serving::enter_phase(trace::PhaseKind kind, std::int32_t microbatch, std::int32_t chunk) {
  if (kind != trace::PhaseKind::kOther) in_evaluation_ = false;
  if (kind != trace::PhaseKind::kOptimizer) makes_states_ = false;  // a step has failed
  refused_room_.fill({});
  outside_ = 0;
  if (kind == trace::PhaseKind::kBackward) note_structure();
  matcher().enter_phase(kind, microbatch, chunk);
  if (matcher().phase() != kNone) pools_.active()->space.begin_phase(matcher().phase());
  microbatches_.enter_phase(kind, microbatch, chunk);
  use_extents();
}

// Served outside the pool until the batch's extents are known: its data would be in the way. A
// large request is rather a result that is soon freed.
void* Serving::allocate_outgrown(Bytes size, StreamId stream) {
  const Bytes large = std::max(kTiny, pools_.active()->space.memory() / kLargeParts);
  if (size < large || !pools_.can_grow() || !is_pause()) return nullptr;
  return allocate_departed(size, stream, {origin()}, is_wary());
}

void* Serving::allocate_upcoming(Bytes size, StreamId stream) {
  return allocate_planned(awaiting_, size, stream);
}

void Serving::count_hits(std::int64_t planned) {
  if (planned > 0) {
    const double share = static_cast<double>(hits_) / static_cast<double>(planned);
    share_ += (share - share_) / kLastIterations;
  }
  counts_.hits += hits_;
  counts_.misses += std::max<std::int64_t>(0, planned - hits_);
}

bool Serving::end_iteration() {
  const std::int64_t absent = startup_ ? startup_->absent() : 0;
  matcher().end_iteration();
  microbatches_.end_iteration();
  begin_moves();
  refused_ = upcoming_refused_ = began_ = lacked_ = is_enlarged_ = false;
  leaves_out_ = left_out_before_ && is_beyond_profile_;
  reviewed_at_ = 0;
  pools_.active()->space.end_iteration();
  learn_from_departed();
  ++counts_.iterations;
  if (!std::exchange(ahead_, false)) count_hits(counts_.planned - absent);
  hits_ = 0;
  if (!startup_) return false;
  matcher_.trust_like(startup_->matcher());
  startup_.reset();
  return true;
}

bool Serving::loses() const {
  return (runs_out_of_moves_ || (share_ < kLeastShare && saves_moves())) && can_leave_pool();
}

void Serving::learn_from_kept() {
  const StaticPool& space = pools_.active()->space;
  for (const StaticPool::Departed& d : space.departed()) {
    if (d.size < space.memory() / kSmallPart) departures_.record_stayed(d.origin, d.size);
  }
  for (const Offset offset : space.live()) {
    const StaticPool::Block block = space.at(offset);
    if (block.decision != kNone) late_blocks_.note(block.decision, block.size);
  }
}

// A block that outlives a whole iteration marks its kind as permanent. A block that only waits for
// streams does not count.
void Serving::learn_from_departed() {
  for (const StaticPool::Departed& d : pools_.active()->space.departed()) {
    const bool waits = delayed_ && delayed_->is_waiting(pools_.active()->address(d.offset));
    if (d.iterations > 1 && !waits) departures_.record_stayed(d.origin, d.size);
  }
}

}  // namespace stalloc::runtime
