// The pool of a plan: serves requests at planned addresses, and proves each address idle without a
// search.
//
// Note [Why a planned address is safe]
// The plan's validator has shown that the decisions whose lifetimes hold a given moment are
// disjoint in address. Call them P(clock), where the clock is a position in the plan's own sequence
// of allocations and frees. Two kinds of blocks lie in the pool:
//
//   regular  a live decision that belongs to P(clock)
//   stray    any other block: a decision that outlives its planned free, and a block that the plan
//            does not know, put into idle space
//
// At every position of the clock, in any order of positions:
//
//   (1)  a live decision is regular if and only if it is in P(clock)
//   (2)  no two live blocks overlap
//
// Before decision d is placed, the clock is at a position where d is in P(clock). So d cannot
// overlap a regular block, and only the strays need a check; in a run that follows its plan there
// are none. This needs (1) at this position only. The clock's path to it does not matter.
//
// The clock moves by single events, and each keeps (1). No block moves, so each keeps (2).
//
//                          forwards             backwards
//   allocation of d        stray -> regular     regular -> stray
//   planned free of d      regular -> stray     stray -> regular
//
// The clock moves forwards to the allocation of the decision to be placed, past all events that the
// run omits. It moves back to the beginning of a phase that is repeated, or that comes later than
// planned. Live decisions that are allocated after this beginning are strays from then on, until
// the clock passes their allocation again. A block that is freed early causes no transition. The
// pool refuses a decision whose whole lifetime has passed on the clock.
//
// Note [Dynamic requests in the pool]
// The first request of a group opens the group's region. The region holds the group's blocks in its
// addresses without a stray. It is in P(clock) until the clock passes its end. Then it closes, and
// each block left in it becomes a stray. A region may also serve a later group: an expert without a
// token in the first microbatch gets its weight gradient in a later one, and a size that a region
// holds in every iteration may lie there if it is missing in this one. Groups that share a region
// (plan/hosts.h) open that of their host, whose window holds theirs. Beyond its region a group
// may use its reusable space, which the plan leaves idle through the group's whole window. Inside
// the window no regular block lies there and none will come before the window ends, so a request
// only has to avoid strays. Elsewhere it might displace a decision with a long lifetime.
//
// Note [Least in the way]
// A block that the plan does not know goes to addresses that the plan needs as late as possible:
// never again in this iteration, else not in this phase and the next, else not in this phase, else
// any idle addresses; best fit among these. The pool keeps the idle ranges of each of these levels,
// from the first such request of a phase until the next phase begins. The addresses that a phase
// needs follow from the plan alone and are found once.
//
// A displaced decision, and a block of a group whose region is full, live as planned: until a known
// event. Each allocation before this event removes its addresses from the idle ranges, until no
// idle range holds the block; the block then goes to the last remaining range. So a displaced
// decision displaces no other unless it must.
//
// Note [Slots]
// No other request ever has the addresses of a class of slots, as the validator has shown, and they
// are never idle space. The class's list of free slots is the only record, so a request of the
// class needs neither the clock nor the strays. It gets any free slot; the choice does not matter.
// A late free costs one slot, never an overlap.
//
// A box (plan/boxes.h) takes a free slot with its first request and frees it with its last. Its
// requests lie at fixed offsets from the start of this slot, and each is checked against the live
// ones there. A box of state (plan/generations.h) takes another slot in each iteration, and holds
// two during a hand-over. If a late free keeps a slot, the next generation lies around it.
//
// Note [Turns]
// A decision that takes turns (plan/turns.h) belongs to P(clock) from its allocation to the end of
// the iteration. From then on its block is a stray, at the place that the next layout leaves free
// for it. The layouts of two iterations in a row have the decision at different places.
//
// Note [Zone]
// An evaluation has a layout of its own (evaluations.h). While one of its forwards runs, it has the
// zone to itself, at one end of a range of idle addresses. Blocks that are likely to stay go to the
// other end of the pool. The plan's clock stands still meanwhile, so every block in the zone is a
// stray, and a request at an offset of the zone needs only a check against the strays. Blocks that
// are left in the zone when it closes stay strays.
//
// Note [Absent memory]
// Memory can move within a pool of virtual memory: whole chunks of idle addresses give theirs to
// the pool's end, where a request gets one range that the idle addresses do not have. A range
// without memory is a stray without a block, so no request gets its addresses. A slot that lacks
// memory is not free, and what it has of it may move. A box may lack the memory of addresses
// without a block: a request that lies there finds them taken. A region may be open without all of
// its memory: its idle addresses are those with memory. A pool with dynamic groups begins without
// the memory of their regions.
//
// Note [Streams]
// Idle addresses are divided among the streams permanently: nothing would order another stream's
// work after the earlier work there. Decisions and regions of different streams share no address,
// as the validator has shown. If the plan's streams are ordered, they may share addresses: then the
// stream of the first decision there owns them as idle space, and a stream that gets a block waits
// (StreamOrder). The remaining addresses go to the first stream whose groups may reuse them,
// otherwise to the plan's first stream.
//
// The clock passes each event once an iteration, so all this costs O(1) amortised per request; a
// stray costs O(log strays), and a request in a box O(log live requests there). Planned service
// allocates nothing once the lists of strays and of boxes have grown to their working size. Not
// thread-safe: PlannedAllocator locks.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <iterator>
#include <memory_resource>
#include <optional>
#include <unordered_map>
#include <vector>

#include "base/align.h"
#include "base/range_set.h"
#include "base/types.h"
#include "plan/plan.h"

namespace stalloc::runtime {

class StaticPool {
 public:
  using DecisionIndex = plan::DecisionIndex;
  using GroupIndex = plan::GroupIndex;
  using SlotClassIndex = plan::SlotClassIndex;

  // `plan` has passed check().
  explicit StaticPool(const plan::Plan& plan);

  Bytes size() const { return size_; }  // of the addresses
  // The bytes of memory, and their end up to the first address without.
  Bytes memory() const { return size_ - absent_bytes_; }
  Offset solid_end() const { return absent_.empty() ? size_ : absent_.ranges().front().begin; }
  // The bytes that a block of `size` bytes occupies.
  Bytes round_up(Bytes size) const { return align_up(size, alignment_); }

  // Enough for StreamTable::kStreams: a plan may name more, but these make no requests.
  using ShortStreamId = std::int16_t;

  // The reason for a block's addresses.
  enum class Kind : std::uint8_t {
    kPlanned,     // at its decision's address
    kIdle,        // in idle space
    kStartup,     // a temporary of start-up, at its planned address
    kRegion,      // dynamic: in a group's region
    kReused,      // dynamic: in space that the plan leaves idle through its group's window
    kIdleDynamic  // dynamic: in idle space
  };
  struct Block {                     // 16 bytes: returned in registers
    Bytes size = kNotLive;           // as requested
    DecisionIndex decision = kNone;  // kNone if it is no decision
    ShortStreamId stream = 0;
    Kind kind = Kind::kPlanned;
    bool late = false;  // a decision that was freed after its planned end
  };
  static constexpr Bytes kNotLive = -1;

  // Makes decision `d` live for a request of `size` (> 0) bytes and returns its offset; kUnplaced
  // if the request is larger than planned, if an address of the decision is taken, or if the clock
  // has passed its lifetime. The rest of its planned range is idle space. A decision that takes a
  // slot gets any free one of its class, and all of it.
  Offset place(DecisionIndex d, Bytes size);
  // The same for the size of its last request, at first the planned size.
  Offset place(DecisionIndex d) { return place(d, decisions_[d].requested); }

  // The live blocks, by their beginnings, that keep decision `d` from being placed for `size`
  // bytes; none if it is refused for another reason, or takes a slot. O(result x log strays).
  std::vector<Offset> in_the_way(DecisionIndex d, Bytes size) const;

  // Continues with another layout of the same plan, see plan::resize(), in `memory` >= its pool
  // bytes. Live blocks do not move. Addresses may go
  // from one stream to another: with several streams the caller has waited for the device. O(n log
  // n). Throws Error for another plan's layout.
  void relayout(const plan::Plan& plan, Bytes memory);

  struct LiveDecision {
    DecisionIndex decision = kNone;
    Offset offset = 0;
    Bytes size = 0;  // as requested
  };
  struct LiveRegion {  // in which blocks of its group are live
    GroupIndex group = kNone;
    Offset offset = 0;
    Bytes size = 0;
  };
  struct Leftover {  // a block that the plan does not know, from before this iteration
    Offset offset = 0;
    Bytes size = 0;  // rounded up
    StreamId stream = 0;
    bool is_new = false;  // it has not outlived an iteration yet
  };
  struct LiveRows {
    std::vector<LiveDecision> decisions;  // without `turns`
    std::vector<plan::Turn> turns;        // blocks of the iteration before, with their places
    std::vector<Leftover> leftovers;
    std::vector<LiveRegion> regions;
    Tick since = 0;  // they have been live at this tick of the iteration
  };
  // O(n).
  LiveRows live_rows() const;
  // The blocks of earlier iterations and of evaluations, without small ones and those that take
  // turns. O(blocks that are no decisions).
  std::vector<Leftover> leftovers() const;
  // The addresses of the live blocks that are no decisions of the layout, without slots. O(result).
  std::vector<Range> unplanned() const;
  // True if a block of the iteration before has the place at which the layout has its successor,
  // and is to take turns with it. O(turns).
  bool awaits_turn() const;

  // A request without addresses in the plan.
  struct Departure {
    PhaseIndex origin = kNone;  // departed() returns it
    Kind kind = Kind::kIdle;
    DecisionIndex lifetime = kNone;  // the decision or region with the block's lifetime
    // If not null, the block is likely to stay. It goes to the first or last idle addresses outside
    // of these, if it fits there: layouts that leave its addresses alone are divided least.
    const RangeSet* stays_outside = nullptr;
    bool last = false;          // to the last ones
    bool only_outside = false;  // to no other addresses
    bool is_brief = false;   // likely to be freed before the plan goes on: the first idle addresses
                             // do, and leave the most for a larger block behind them
    bool yields = false;     // no memory moves: what the block displaces may lie beside the pool
    bool displaces = false;  // it may displace any decision
    bool harmless = false;   // it may displace none
  };

  // Puts a block of `size` (> 0) bytes into idle addresses of `stream`, see Note [Least in the
  // way]; outside open regions if possible. O(log n + open regions), and O(n) if the idle ranges
  // are not known: the first call in a phase finds them. With a lifetime O(events in it x log n).
  // kUnplaced if no idle range is large enough, or if this iteration has searched the idle ranges
  // too often.
  Offset place_idle(Bytes size, StreamId stream, Departure departure);
  Offset place_idle(Bytes size, StreamId stream) { return place_idle(size, stream, Departure()); }

  // The index of group `g`'s region as a decision.
  DecisionIndex region_of(GroupIndex g) const { return planned_ + g.number(); }

  // Puts a block of `size` (> 0) bytes at `offset`. False unless these are idle addresses of
  // `stream`, or if this iteration has searched the idle ranges too often.
  bool place_at(Offset offset, Bytes size, StreamId stream);

  // Sets `size` (> 0) bytes of idle addresses of `stream` aside, for place_in_zone() alone; false
  // if no idle range has these and `room` bytes. `last`: at the end of that range. Until the zone
  // closes, no decision and no dynamic request is placed. See Note [Zone].
  bool open_zone(Bytes size, StreamId stream, Bytes room = 0, bool last = false);
  bool has_zone() const { return zone_.size() > 0; }
  // Closes the zone, if one is open.
  void close_zone();
  // Puts a block at `offset` from the start of the open zone; kUnplaced if that is taken.
  Offset place_in_zone(Offset offset, Bytes size, StreamId stream, Departure departure);

  // The bytes by which the idle addresses of `stream` at the end of the pool are fewer than `size`;
  // kUnplaced if the stream owns no addresses here. O(n).
  Bytes missing_at_end(Bytes size, StreamId stream);
  // Adds `size` bytes of idle addresses at the end of the pool. They are those of `stream`, for
  // which missing_at_end() has just been asked.
  void extend(Bytes size, StreamId stream);

  // See Note [Absent memory].
  // The idle ranges of all streams and the free slots, ascending, without the rests of live
  // decisions; none if this iteration has searched the idle ranges too often. `level`: only those
  // that Note [Least in the way] keeps at this level, and slots at the last one. O(n).
  static constexpr std::size_t kLevels = 4;
  std::vector<Range> idle_ranges(std::size_t level = kLevels - 1);
  // Closes the open regions and the zone. Returns all addresses in which no block lies, ascending.
  // O(n log n).
  std::vector<Range> vacate();
  // The idle addresses of `stream`, and those without memory that would be idle, ascending.
  std::vector<Range> claimable(StreamId stream);
  // The addresses that the layout gives to anything. O(n log n) after a new layout.
  const RangeSet& planned() const;
  // The bytes that a large block which stays outside of these needs besides its own.
  Bytes gap() const;
  // The addresses that decision `d` could have for `size` bytes if they had memory; empty if
  // something else is in the way. O(log strays), and O(slots) for a slot.
  Range lacking_memory(DecisionIndex d, Bytes size) const;
  // `r` if it would be idle with memory; else empty. O(strays in it).
  Range lacking_memory(Range r) const;
  // The same for a request of `size` bytes in the region of group `g`, if the region's addresses
  // with memory do not hold it. O(strays in the region).
  Range lacking_memory(GroupIndex g, Bytes size) const;
  // The idle addresses of open regions, ascending. O(n).
  std::vector<Range> idle_in_regions() const;
  // The addresses without a block of the slots that boxes have, ascending. O(n).
  std::vector<Range> idle_in_boxes() const;
  // The addresses of the decisions that come in the rest of the phase, in order. O(result).
  std::vector<Range> upcoming() const;
  // The addresses of the region that group `g` uses.
  Range region_range(GroupIndex g) const { return range(region(groups_[g].host)); }
  // `r`, which is idle, has no memory from now on; a part of such addresses has it again.
  void remove_memory(Range r);
  void return_memory(Range r);
  // All addresses of the layout have memory from now on, and none lie behind it. No block is live.
  void make_solid();
  const RangeSet& absent() const { return absent_; }
  // Takes addresses without memory from the pool's end, but none before `least`.
  void shrink(Offset least);

  // Puts a start-up request of `size` (> 0) bytes into a free slot of class `c`; kUnplaced if there
  // is none. O(1).
  Offset place_in_slots(SlotClassIndex c, Bytes size);

  // Puts a start-up request of `size` (> 0) bytes where decision `d` of a box of state would lie in
  // the generation before the first; kUnplaced if that is taken. O(log n).
  Offset place_before(DecisionIndex d, Bytes size);

  // Puts a dynamic request of `size` (> 0) bytes into group `g`'s region, or else into the group's
  // reusable space, each by best fit; kUnplaced if neither has the space. O(log n + open regions),
  // and O(strays) more if the region opens or the reusable space is used for the first time.
  Offset place_dynamic(GroupIndex g, Bytes size);

  // Frees the block that begins at `offset`. The result has the size kNotLive if none does.
  Block release(Offset offset);

  // The block that begins at `offset`; its size is kNotLive if none does.
  Block at(Offset offset) const;

  // The offsets of the live blocks, ascending. O(n log n).
  std::vector<Offset> live() const;

  // The live blocks that place_idle() placed with an origin. O(blocks that are no decisions).
  struct Departed {
    Offset offset = 0;
    Bytes size = 0;  // as requested
    PhaseIndex origin = kNone;
    std::int32_t iterations = 0;  // the number of iteration ends since it was placed
  };
  std::vector<Departed> departed() const;

  // Begins a phase of the plan. Moves the clock back to its beginning if the clock is past it: the
  // phase is repeated, or comes later than planned. O(events in between).
  void begin_phase(PhaseIndex phase);

  // Moves the clock to the end of the plan, then to its beginning.
  void end_iteration();

  // The bytes that the plan has live at this point and the run does not: it has left requests out,
  // or freed them before their time. O(n).
  Bytes left_out() const;

  // The largest idle range. O(n).
  Bytes largest_hole() const;
  std::size_t live_blocks() const { return live_; }
  std::size_t strays() const { return strays_.count() - absent_.count(); }

  // Throws Error unless the invariants of Note [Why a planned address is safe] hold. O(n log n),
  // for tests.
  void check() const;

 private:
  // A block of less than one part in so many of the pool is small.
  static constexpr Bytes kSmallPart = 1000;

  enum class State : std::uint8_t { kIdle, kRegular, kStray };

  using BoxIndex = plan::BoxIndex;
  struct Entry;
  struct Event;
  struct SlotClass;
  using EntryIndex = Index<Entry>;
  using Position = Index<Event>;        // in the plan's sequence of allocations and frees
  using SlotNumber = Index<SlotClass>;  // of a slot in its class

  struct Placed {  // the data of a decision or region that place() needs, in one cache line
    Offset offset = 0;
    Bytes size = 0;       // rounded up
    Bytes requested = 0;  // by its last request
    EntryIndex entry = kNone;
    Position allocated_at = kNone;
    Position freed_at = kNone;
    State state = State::kIdle;
    ShortStreamId stream = 0;
    SlotClassIndex slot_class = kNone;
    BoxIndex box = kNone;
  };
  // See Note [Slots].
  struct SlotClass {
    Range whole;
    Bytes size = 0;  // of each
    StreamId stream = 0;
    std::vector<SlotNumber> free;
    IndexedVector<SlotNumber, EntryIndex> entries;
    IndexedVector<SlotNumber, Bytes> requested;  // by the request in each slot
    IndexedVector<SlotNumber, BoxIndex> box;     // the one in each slot, if any

    Offset begin_of(SlotNumber slot) const { return whole.begin + slot.number() * size; }
    SlotNumber slot_at(Offset offset) const { return SlotNumber((offset - whole.begin) / size); }
    Range range_of(SlotNumber slot) const { return {begin_of(slot), begin_of(slot) + size}; }
  };
  struct Box {
    struct Filling {               // one of its slots
      SlotNumber slot = kNone;     // in the class, while something is live in it
      std::int32_t iteration = 0;  // the latest in which it got a request
      RangeSet live;               // from the start of the slot
    };
    SlotClassIndex slots = kNone;
    std::vector<Filling> fillings;  // as many as it may have at once
  };
  static constexpr std::int32_t kBefore = -1;  // the iteration of start-up's generation
  struct Entry {                               // an offset at which some decision begins
    Offset offset = kUnplaced;
    DecisionIndex live = kNone;  // the decision that is live there
  };
  struct Event {
    DecisionIndex decision = kNone;
    bool is_free = false;
  };

  struct Foreign {   // a block that is no decision
    Bytes size = 0;  // rounded up
    Bytes requested = 0;
    Kind kind = Kind::kIdle;
    bool stray = false;                 // else it is inside its group's open region
    GroupIndex group = kNone;           // the group that owns its addresses, if any
    DecisionIndex decision = kNone;     // if it was one before a new layout, or is one in a box
    SlotClassIndex slot_class = kNone;  // the class of its slot, if it has one
    BoxIndex box = kNone;               // the box in that slot, if any
    PhaseIndex origin = kNone;
    std::int32_t iteration = 0;  // the iteration in which it was placed
    ShortStreamId stream = 0;
  };
  struct Turning {  // a decision that takes turns
    DecisionIndex decision = kNone;
    Offset offset = 0;            // the layout's place for the block of the iteration before
    Bytes size = 0;               // of that place
    Offset disowned = kUnplaced;  // the block that an earlier layout had as this decision
  };
  struct Group {
    RangeSet reusable;  // idle in the plan through the window
    HoleSet idle;       // of the region, while it is open
    StreamId stream = 0;
    GroupIndex host = kNone;       // the group whose region it uses
    Position passed_at = kNone;    // the position after which it makes no request
    std::vector<Bytes> recurring;  // sizes that it requests in every iteration, ascending
    bool passing = false;          // its window ends in the phase in which it begins
    std::int32_t blocks = 0;       // in the region
    bool open = false;
  };

  Range range(const Placed& p) const { return {p.offset, p.offset + p.size}; }
  // The addresses of the live decision's block.
  Range taken(const Placed& p) const { return {p.offset, p.offset + round_up(p.requested)}; }
  bool is_current(const Placed& p) const;  // in P(clock)
  Block block_of(DecisionIndex decision) const {
    const Placed& p = decisions_[decision];
    return {p.requested, decision, p.stream, Kind::kPlanned};
  }
  static Block block_of(const Foreign& f) { return {f.requested, f.decision, f.stream, f.kind}; }
  void advance(Position position);
  void retreat(Position position);
  void add_slot_classes(const plan::Plan& plan);
  void set_turns(const plan::Plan& plan);
  std::optional<plan::Turn> before(const Turning& t) const;
  [[gnu::noinline]] Offset take_slot(SlotClass& slots, Bytes size, DecisionIndex d);
  // The addresses of a request of a box, from the start of its slot.
  Range in_slot(const Placed& p) const {
    const Offset begin = p.offset - slot_classes_[p.slot_class].whole.begin;
    return {begin, begin + p.size};
  }
  // The same in the slot of a filling.
  Range range_in(const Box::Filling& f, const Placed& p) const {
    const Offset begin = slot_classes_[p.slot_class].begin_of(f.slot) + in_slot(p).begin;
    return {begin, begin + p.size};
  }
  Box::Filling* filling_for(const Placed& p, std::int32_t iteration);
  Offset fill_box(DecisionIndex d, std::int32_t iteration, const Foreign& block);
  [[gnu::noinline]] Offset place_in_box(DecisionIndex d, Bytes size);
  void free_in_box(const Foreign& block, Offset offset);
  void claim_entries(SlotClass& slots);
  // The block of decision `d`, which is live at `offset`.
  Block block_at(DecisionIndex d, Offset offset) const;
  void free_slot(SlotClassIndex c, Offset offset);
  // Free a block of a slot, and one that is no decision, apart from release(): a block at its
  // planned address is the common one.
  [[gnu::noinline]] Block release_slot(EntryIndex entry, Offset offset);
  [[gnu::noinline]] Block release_foreign(Offset offset);
  // Calls visit(class, slot) for each slot that overlaps `r`.
  void visit_slots(Range r, auto visit) {
    for (SlotClass& slots : slot_classes_) {
      if (!slots.whole.overlaps(r)) continue;
      const SlotNumber last = slots.slot_at(std::min(r.end, slots.whole.end) - 1);
      for (SlotNumber i = slots.slot_at(std::max(r.begin, slots.whole.begin)); i <= last; ++i) {
        visit(slots, i);
      }
    }
  }
  void check_slots(std::vector<Range>& taken) const;
  void check_box(const Foreign& block, Offset offset) const;
  EntryIndex find_entry(Offset offset) const;
  EntryIndex claim_entry(Offset offset);
  EntryIndex hash(Offset offset) const;
  EntryIndex next(EntryIndex entry) const;  // the next to probe in the search for an offset
  struct Home {                             // addresses of one stream
    Offset begin = 0;
    std::size_t owner = 0;  // index into streams_
  };
  void divide(const plan::Plan& plan);
  void disown(DecisionIndex d);
  // Calls visit(owner, range) for each part of `r` with a single owner.
  void visit_homes(Range r, auto visit) const {
    auto home = std::prev(std::ranges::upper_bound(homes_, r.begin, {}, &Home::begin));
    while (r.begin < r.end) {
      const auto next = std::next(home);
      const Offset end = next == homes_.end() ? r.end : std::min(r.end, next->begin);
      visit(home->owner, Range{r.begin, end});
      r.begin = end;
      home = next;
    }
  }
  std::vector<HoleSet> find_idle() const;
  void add_unused_slots(RangeSet& idle) const;
  Range least_lacking(const SlotClass& slots) const;
  void find_levels();
  void find_needs();
  void take_idle(Range r) {
    if (idle_known_) take_known_idle(r);
  }
  void return_idle(Range r) {
    if (idle_known_) return_known_idle(r);
  }
  void take_known_idle(Range r);
  void return_known_idle(Range r);
  void return_region(Range r);
  Placed& region(GroupIndex g) { return decisions_[region_of(g)]; }
  const Placed& region(GroupIndex g) const { return decisions_[region_of(g)]; }
  bool enter_window(GroupIndex g);
  void open_region(GroupIndex g);
  void close_region(GroupIndex g);
  void return_to_regions(Range r);
  Offset place_in_region(GroupIndex g, Bytes size);
  std::int32_t remaining(const Placed& p) const;
  GroupIndex find_host(GroupIndex g, Bytes size, std::int32_t least, bool any_size) const;
  Offset place_reused(GroupIndex g, Bytes size);
  std::size_t owner_of(StreamId stream);
  Offset place_anywhere(Bytes size, StreamId stream, const Departure& departure);
  Offset find_fit(Bytes size, Bytes room, std::size_t owner, bool last) const;
  Offset find_end(Bytes size, std::size_t owner, const RangeSet& outside, bool last) const;
  Offset find_least_in_the_way(Bytes size, std::size_t owner, std::size_t levels) const;
  bool is_rest(Range r) const;
  // Decisions that a block must not displace: larger ones, or more of them.
  struct Undisplaced {
    Bytes larger = 0;
    std::size_t more = 0;
  };
  Offset find_needed_last(DecisionIndex lifetime, Bytes size, std::size_t owner, Undisplaced kept);
  GroupIndex find_open(Bytes size, StreamId stream, std::int32_t least) const;
  void add_stray(Range r);
  void remove_stray(Range r);
  HoleSet& reuse_of(GroupIndex g);
  void check_regions(const std::vector<Range>& taken,
                     const IndexedVector<GroupIndex, std::int32_t>& blocks) const;

  Bytes size_ = 0;
  Bytes alignment_ = kDefaultAlignment;
  int alignment_bits_ = 0;     // the zeros at the end of each offset
  std::vector<Offset> walls_;  // see plan::Plan::walls
  DecisionIndex planned_;      // one past the last decision: the first group's region
  IndexedVector<DecisionIndex, Placed> decisions_;  // and regions
  IndexedVector<Position, Event> events_;
  Position clock_{0};  // the next event; those before it have passed
  IndexedVector<PhaseIndex, Position> phase_begins_;
  IndexedVector<EntryIndex, Entry> entries_;  // open addressing, a power of two, at most half full
  int entry_bits_ = 0;
  RangeSet strays_;
  RangeSet absent_;  // without memory; all of them strays
  Bytes absent_bytes_ = 0;
  std::vector<StreamId> streams_;  // of the plan, ascending
  std::vector<Home> homes_;        // in order of address; each ends at the beginning of the next
  struct Level {                   // see Note [Least in the way]
    RangeSet needed;               // addresses that `idle` excludes
    std::vector<HoleSet> idle;     // by owner
  };
  std::array<Level, kLevels> levels_;  // the last excludes nothing; valid while idle_known_
  bool idle_known_ = false;
  struct Need {            // addresses of decisions and regions that are allocated
    RangeSet now;          // in a phase
    RangeSet from_now_on;  // in it or a later one
  };
  IndexedVector<PhaseIndex, Need> needs_;              // empty until a request departs
  IndexedVector<DecisionIndex, PhaseIndex> phase_of_;  // the phase that allocates it
  std::int32_t iteration_ = 0;
  std::size_t searched_ = 0;  // entries visited in this iteration to find the idle ranges
  std::size_t passed_ = 0;    // events visited in this iteration by find_needed_last()
  // Nodes are reused, so dynamic requests allocate nothing in the long run.
  std::pmr::unsynchronized_pool_resource nodes_;
  std::pmr::unordered_map<Offset, Foreign> foreign_{&nodes_};
  IndexedVector<SlotClassIndex, SlotClass> slot_classes_;
  RangeSet slot_space_;             // of all of them
  mutable RangeSet planned_space_;  // empty until it is asked for
  IndexedVector<BoxIndex, Box> boxes_;
  IndexedVector<GroupIndex, Group> groups_;
  std::vector<Turning> turns_;
  std::vector<GroupIndex> open_;  // groups with an open region
  RangeSet open_ranges_;          // these regions, and the zone
  Range zone_;                    // empty if none is open
  struct Reuse {                  // the free part of a group's reusable space
    GroupIndex group = kNone;
    HoleSet space;  // the reusable ranges without the strays
  };
  std::array<Reuse, 4> reuse_;  // of the groups that were served last
  std::size_t oldest_reuse_ = 0;
  std::size_t live_ = 0;
};

}  // namespace stalloc::runtime
