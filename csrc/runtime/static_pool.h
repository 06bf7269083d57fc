// The pool that a plan fills: hands out planned addresses, and proves each one idle without a
// search.
//
// Note [Why a planned address is safe]
// The plan's validator has shown that the decisions whose lifetimes hold a given moment are
// disjoint in address. Call them P(clock), where the clock is a position in the plan's own sequence
// of allocations and frees. Two kinds of blocks lie in the pool:
//
//   regular  a live decision that belongs to P(clock)
//   stray    anything else: a decision that lives on past its planned free, and a block that the
//            plan does not know, put into idle space
//
// At every position of the clock, in whatever order the run visits them:
//
//   (1)  a live decision is regular if and only if it is in P(clock)
//   (2)  no two live blocks overlap
//
// Before decision d is placed, the clock is at a position where d is in P(clock). So d cannot meet
// a regular block, and only the strays need to be looked at; in a run that follows its plan there
// are none. This needs (1) at one position only. It does not matter how the clock came there.
//
// The clock moves by single events, and each keeps (1). No block moves, so each keeps (2).
//
//                          forwards             backwards
//   allocation of d        stray -> regular     regular -> stray
//   planned free of d      regular -> stray     stray -> regular
//
// The clock moves forwards to the allocation of the decision to be placed, over whatever the run
// leaves out. It moves back to the beginning of a phase that is repeated, or that comes later than
// the plan has it. Decisions that are allocated after this beginning and are still live are strays
// from then on, until the clock passes their allocation again. A block that is freed early causes
// no transition. A decision that is requested after its whole lifetime has passed on the clock is
// refused.
//
// Note [Dynamic requests in the pool]
// A group's region is opened when the first request of the group turns up, and holds its blocks
// wherever no stray lies in it. It is one of P(clock), and what is inside it nobody else's
// business, until the clock passes its end: then it is closed, and blocks that are still in it are
// strays from there on, each by itself. A region may serve a group that comes later, too: an
// expert without a token in the first microbatch has its weight gradient made in a later one, and a
// size that a region holds every time is put there if its place was left free. Beyond its region a
// group may use the addresses that the plan leaves idle through its whole window: once the clock is
// inside the window no regular block lies there, and none will before the window ends, so that only
// strays have to be avoided. Anywhere else it might be in the way of a decision that lives long.
//
// Note [Least in the way]
// A block that the plan does not know goes where the plan needs the addresses last: never again in
// this iteration, else not in this phase and the next, else not in this phase, else anywhere idle;
// best fit among these. The pool keeps the idle ranges of each of these levels, from
// the first such request of a phase until the next phase begins. The addresses that a phase needs
// follow from the plan alone and are found once.
//
// A displaced decision, and a block of a group whose region is full, live as planned: until a known
// event. Each allocation before this event takes its addresses from the idle ranges, until they
// have no room left for the block; it goes to the last place that was left. So a displaced decision
// displaces none if it need not.
//
// Note [Slots]
// The addresses of a class of slots are nobody else's at any moment, as the validator has shown,
// and are never idle space. A free slot is told by its class's list alone, so that a request of the
// class needs no clock and no strays: it gets a slot that no block is in, or none. Which slot it
// gets does not matter, and that it is freed late costs a slot, not an address twice.
//
// A box (plan/boxes.h) takes a free slot with its first request and gives it back with its last.
// Its requests lie at fixed offsets from the start of this slot. Each is checked against those that
// are live in the box: there are few at a time.
//
// Note [Streams]
// Idle addresses are divided among the streams for good: work of another stream would be ordered
// after what was done there by nothing. Decisions and regions of different streams share none, as
// the validator has shown; or the plan's streams are ordered, then those that several have are the
// first's as far as idle space goes, and whoever places a block waits (StreamOrder). Of what is
// left, addresses that only one stream's groups may reuse are that stream's, those that several may
// go to the first, and the rest to the plan's first stream.
//
// The clock passes each event once an iteration, so all this costs O(1) amortised per request; a
// stray costs O(log strays). Planned service allocates nothing after construction, but the strays'
// array as it grows. Not thread-safe: PlannedAllocator locks.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <iterator>
#include <memory_resource>
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

  Bytes size() const { return size_; }
  // The bytes that a block of `size` bytes occupies.
  Bytes round_up(Bytes size) const { return align_up(size, alignment_); }

  // There are at most StreamTable::kStreams: a plan may name more, and none of these ever comes.
  using ShortStreamId = std::int16_t;

  // Names the way by which a block came to its place.
  enum class Kind : std::uint8_t {
    kPlanned,     // at its decision's address
    kIdle,        // in idle space
    kStartup,     // a temporary of start-up, at the address the plan has for it
    kRegion,      // dynamic: in a group's region
    kReused,      // dynamic: in space that the plan leaves idle through its group's window
    kIdleDynamic  // dynamic: in idle space
  };
  struct Block {                     // 16 bytes: returned in registers
    Bytes size = kNotLive;           // as it was asked for
    DecisionIndex decision = kNone;  // if it is one
    ShortStreamId stream = 0;
    Kind kind = Kind::kPlanned;
  };
  static constexpr Bytes kNotLive = -1;

  // Makes decision `d` live for a request of `size` (> 0) bytes and returns its offset; kUnplaced
  // when the plan has less for it, an address of its is taken, or its time on the clock is over.
  // Whatever the size, it has the whole planned range. A decision that takes a slot gets any free
  // one of its class.
  Offset place(DecisionIndex d, Bytes size);
  // The same for as many bytes as it had last, at first those that are planned.
  Offset place(DecisionIndex d) { return place(d, decisions_[d].requested); }

  // Goes on with another layout of the same plan, see plan::resize(), in `memory` >= its pool
  // bytes. What is live stays where it is. Addresses may go from one stream to another: the caller
  // has waited for the device where there are several. O(n log n). Throws Error for another plan's.
  void relayout(const plan::Plan& plan, Bytes memory);

  struct LiveDecision {
    DecisionIndex decision = kNone;
    Offset offset = 0;
    Bytes size = 0;  // as asked
  };
  // The decisions that are live. O(n).
  std::vector<LiveDecision> live_decisions() const;

  // A request that the plan has no place for.
  struct Departure {
    PhaseIndex origin = kNone;  // comes back from departed()
    Kind kind = Kind::kIdle;
    DecisionIndex lifetime = kNone;  // the decision or region as long as which the block lives
  };

  // Puts a block of `size` (> 0) bytes where nothing is live and the addresses are `stream`'s, see
  // Note [Least in the way]; outside open regions if there is room. O(log n + open regions), and
  // O(n) where idle ranges are not known: they are not followed before the first call in an
  // iteration. With a lifetime O(events in it x log n). kUnplaced when no idle range is as large,
  // or when an iteration has looked for them too often.
  Offset place_idle(Bytes size, StreamId stream, Departure departure);
  Offset place_idle(Bytes size, StreamId stream) { return place_idle(size, stream, Departure()); }

  // The index of group `g`'s region as a decision.
  DecisionIndex region_of(GroupIndex g) const { return planned_ + g.number(); }

  // Puts a block of `size` (> 0) bytes at `offset`, as place_idle() would have: false unless
  // nothing is live there, the addresses are `stream`'s, and what is idle is not looked for too
  // often.
  bool place_at(Offset offset, Bytes size, StreamId stream);

  // Puts a request of start-up, of `size` (> 0) bytes, into a free slot of class `c`; kUnplaced
  // when there is none. O(1).
  Offset place_in_slots(SlotClassIndex c, Bytes size);

  // Puts a dynamic request of `size` (> 0) bytes into group `g`'s region, or else where the group
  // may go besides it, each by best fit; kUnplaced when none has room. O(log n + open regions), and
  // O(strays) more when the region is opened or the group's other space looked for first.
  Offset place_dynamic(GroupIndex g, Bytes size);

  // Ends the block that begins at `offset`; of size kNotLive when none does.
  Block release(Offset offset);

  // The block that begins at `offset`; of size kNotLive when none does.
  Block at(Offset offset) const;

  // The offsets of the live blocks, ascending. O(n log n).
  std::vector<Offset> live() const;

  // The live blocks that place_idle() was given an origin of. O(blocks that are no decisions).
  struct Departed {
    Offset offset = 0;
    Bytes size = 0;  // as asked for
    PhaseIndex origin = kNone;
    std::int32_t iterations = 0;  // that have ended since it was placed
  };
  std::vector<Departed> departed() const;

  // A phase of the plan begins. Moves the clock back to its beginning if the clock is past it: the
  // phase is repeated, or comes later than planned. O(events in between).
  void begin_phase(PhaseIndex phase);

  // The clock turns over.
  void end_iteration();

  // The largest stretch with nothing live in it. O(n).
  Bytes largest_hole() const;
  std::size_t live_blocks() const { return live_; }
  std::size_t strays() const { return strays_.count(); }

  // Throws Error unless the invariants of Note [Why a planned address is safe] hold. O(n log n),
  // for tests.
  void check() const;

 private:
  enum class State : std::uint8_t { kIdle, kRegular, kStray };

  using BoxIndex = plan::BoxIndex;
  struct Slot;
  struct Event;
  struct SlotPlaces;
  using SlotIndex = Index<Slot>;
  using Position = Index<Event>;         // in the plan's sequence of allocations and frees
  using PlaceIndex = Index<SlotPlaces>;  // of a slot in its class

  struct Placed {  // what place() needs of a decision, together in one cache line
    Offset offset = 0;
    Bytes size = 0;       // rounded up
    Bytes requested = 0;  // as asked
    SlotIndex slot = kNone;
    Position allocated_at = kNone;
    Position freed_at = kNone;
    State state = State::kIdle;
    ShortStreamId stream = 0;
    SlotClassIndex slots = kNone;
    BoxIndex box = kNone;
  };
  // See Note [Slots].
  struct SlotPlaces {
    Range whole;
    Bytes size = 0;  // of each
    StreamId stream = 0;
    std::vector<PlaceIndex> free;
    IndexedVector<PlaceIndex, SlotIndex> keys;
    IndexedVector<PlaceIndex, Bytes> requested;  // as asked

    Offset begin_of(PlaceIndex place) const { return whole.begin + place.number() * size; }
    PlaceIndex place_at(Offset offset) const { return PlaceIndex((offset - whole.begin) / size); }
  };
  struct Box {
    PlaceIndex place = kNone;  // in its class, while it is not empty
    std::vector<Range> live;   // from the start of its slot
  };
  struct Slot {  // an offset at which some decision begins
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
    bool stray = false;              // else it is inside its group's open region
    GroupIndex group = kNone;        // whose addresses it has, if any's
    DecisionIndex decision = kNone;  // that it was before the layout was exchanged, or is in a box
    SlotClassIndex slots = kNone;    // the class whose slot it has, if any's
    BoxIndex box = kNone;            // the box in that slot, if in one
    PhaseIndex origin = kNone;
    std::int32_t iteration = 0;  // in which it was placed
    ShortStreamId stream = 0;
  };
  struct Group {
    RangeSet reusable;  // idle in the plan through the window
    HoleSet idle;       // of the region, while it is open
    StreamId stream = 0;
    Position passed_at = kNone;    // no more of its requests come after
    std::vector<Bytes> recurring;  // sizes that it asks for every time, ascending
    bool passing = false;          // its window ends in the phase in which it begins
    std::int32_t blocks = 0;       // in it
    bool open = false;
  };

  Range range(const Placed& p) const { return {p.offset, p.offset + p.size}; }
  bool is_current(const Placed& p) const;  // in P(clock)
  Block block_of(DecisionIndex decision) const {
    const Placed& p = decisions_[decision];
    return {p.requested, decision, p.stream, Kind::kPlanned};
  }
  static Block block_of(const Foreign& f) { return {f.requested, f.decision, f.stream, f.kind}; }
  void advance(Position position);
  void retreat(Position position);
  void add_slot_classes(const plan::Plan& plan);
  Offset take_slot(SlotPlaces& places, Bytes size, DecisionIndex d);
  Offset place_in_box(DecisionIndex d, Bytes size);
  void free_in_box(const Foreign& block, Offset offset);
  // Where the range of decision `d` lies from the start of its box's slot.
  Range range_in_box(const Placed& p) const {
    const Offset begin = p.offset - slot_classes_[p.slots].whole.begin;
    return {begin, begin + p.size};
  }
  void claim_slot_keys(SlotPlaces& places);
  // The block of decision `d`, which is live at `offset`.
  Block block_at(DecisionIndex d, Offset offset) const;
  void free_slot(SlotClassIndex c, Offset offset);
  void check_slots(std::vector<Range>& taken) const;
  void check_box(const Foreign& block, Offset offset) const;
  SlotIndex find_slot(Offset offset) const;
  SlotIndex claim_slot(Offset offset);
  SlotIndex hash(Offset offset) const;
  SlotIndex next(SlotIndex slot) const;  // in the search for an offset
  struct Home {                          // addresses of one stream
    Offset begin = 0;
    std::size_t owner = 0;  // index into streams_
  };
  void divide(const plan::Plan& plan);
  void disown(DecisionIndex d);
  // Calls visit(owner, range) for each part of `r` that is one owner's.
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
  void find_levels();
  void find_needs();
  void take_idle(Range r) {
    if (!idle_known_) return;
    visit_homes(r, [this](std::size_t owner, Range part) {
      for (Level& level : levels_) level.idle[owner].remove(part);
    });
  }
  void return_idle(Range r);
  void return_region(Range r);
  Placed& region(GroupIndex g) { return decisions_[region_of(g)]; }
  const Placed& region(GroupIndex g) const { return decisions_[region_of(g)]; }
  bool enter_window(GroupIndex g);
  void open_region(GroupIndex g);
  void close_region(GroupIndex g);
  Offset place_in_region(GroupIndex g, Bytes size);
  std::int32_t remaining(const Placed& p) const;
  GroupIndex find_host(GroupIndex g, Bytes size, std::int32_t least, bool any_size) const;
  Offset place_reused(GroupIndex g, Bytes size);
  std::size_t owner_of(StreamId stream);
  Offset place_anywhere(Bytes size, StreamId stream, DecisionIndex lifetime);
  Offset find_least_in_the_way(Bytes size, std::size_t owner) const;
  Offset find_needed_last(const Placed& lifetime, Bytes size, std::size_t owner);
  GroupIndex find_open(Bytes size, StreamId stream) const;
  void add_stray(Range r);
  void remove_stray(Range r);
  HoleSet& reuse_of(GroupIndex g);
  void check_regions(const std::vector<Range>& taken,
                     const IndexedVector<GroupIndex, std::int32_t>& blocks) const;

  Bytes size_ = 0;
  Bytes alignment_ = kDefaultAlignment;
  std::vector<Offset> walls_;  // see plan::Plan::walls
  DecisionIndex planned_;      // one past the last decision: the first group's region
  IndexedVector<DecisionIndex, Placed> decisions_;  // and regions
  IndexedVector<Position, Event> events_;
  Position clock_{0};  // it has passed the events before this
  IndexedVector<PhaseIndex, Position> phase_begins_;
  IndexedVector<SlotIndex, Slot> slots_;  // open addressing, a power of two, at most half full
  int slot_bits_ = 0;
  RangeSet strays_;
  std::vector<StreamId> streams_;  // of the plan, ascending
  std::vector<Home> homes_;        // in order of address; each reaches to the next
  struct Level {                   // see Note [Least in the way]
    RangeSet needed;               // addresses that it leaves out
    std::vector<HoleSet> idle;     // by owner
  };
  std::array<Level, 4> levels_;  // the last leaves out nothing; valid while idle_known_
  bool idle_known_ = false;
  struct Need {            // addresses of decisions and regions that are allocated
    RangeSet now;          // in a phase
    RangeSet from_now_on;  // in it or a later one
  };
  IndexedVector<PhaseIndex, Need> needs_;              // empty until a request departs
  IndexedVector<DecisionIndex, PhaseIndex> phase_of_;  // the phase that allocates it
  std::int32_t iteration_ = 0;
  std::size_t searched_ = 0;  // slots, for what is idle, in this iteration
  std::size_t passed_ = 0;    // events, for what is needed last, in this iteration
  // Nodes are used again, so that dynamic requests allocate nothing in the long run.
  std::pmr::unsynchronized_pool_resource nodes_;
  std::pmr::unordered_map<Offset, Foreign> foreign_{&nodes_};
  IndexedVector<SlotClassIndex, SlotPlaces> slot_classes_;
  IndexedVector<BoxIndex, Box> boxes_;
  IndexedVector<GroupIndex, Group> groups_;
  std::vector<GroupIndex> open_;  // groups whose regions are
  RangeSet open_ranges_;          // these regions
  struct Reuse {                  // what a group may use besides its region
    GroupIndex group = kNone;
    HoleSet space;  // what is reusable, less the strays
  };
  std::array<Reuse, 4> reuse_;  // of those that were served last
  std::size_t oldest_reuse_ = 0;
  std::size_t live_ = 0;
};

}  // namespace stalloc::runtime
