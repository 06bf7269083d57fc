// Tells which decision of the plan a request is.
//
// Training asks for the same sizes in the same order, so within a phase the next request is nearly
// always the next decision, and that is one comparison. The exceptions:
//
//   plan   A B C D E F ...     run   A B D C E F      two requests changed places
//                                    A B D E F        one is missing
//                                    A B X C D        one is new
//                                    A B K L M        a whole layer was skipped
//
// `head_` is one past the decision matched last. A request that is not the one at the head is
// looked for among the decisions close by that have not been taken, behind the head first (one that
// was passed over) and then before it (some are missing). Failing that it may be further on in the
// phase: to jump there at once would let one foreign request of a common size throw the cursor off,
// so the place is only noted, this request goes unmatched, and when the *next* request fits the
// place after it, the cursor jumps. A phase begins with the head at its first decision, whatever
// happened before, so a departure never outlives its phase.
//
// Note [Trust]
// A run's first iteration is not like the ones that were profiled: it allocates the optimizer's
// states, which outlive it and have the sizes of temporaries that the plan knows. Served from the
// plan they would hold those addresses for good. So a phase is not trusted until it has run as it
// was profiled: up to the first request that is not the next decision it is served, and from there
// on not, to its end. It is trusted, and departures in it are searched as above, once it has asked
// for as many requests as the plan has for it, or as many as the turn before, or in the fourth
// turn.
//
// Requests of a forward or a backward are temporary, as a rule. An optimizer may make states
// later on, too, of parameters that get their first gradient: as a rule before it takes its step.
// And between iterations weights are copied. So there, in a turn that departs and the first to do
// so, a request counts only where several in a row fit the plan: four temporaries look unlike four
// states.
//
// Note [Sizes]
// The identity of a request is its place in the program; its size follows from the extents of its
// microbatch. So an item has no size but a slot in a table of sizes: one slot for each law, filled
// when a phase begins, and one for each size that never changes. A match costs one look-up.
//
// Three kinds of sizes are not known ahead, and their item is accepted at the head by its place:
//
//   unexplained   no law tells it: any size up to the planned one
//   upcoming      data of the next microbatch, made before its extents are told: any size up to the
//                 planned one that the law can give. It tells the extents of those that follow
//   a share       a dimension changes that never changed while the program was profiled, as the
//                 rows of an epoch's last batch: the expected size times the dimension's share
//
// A law may fail where no one has looked: scratch space of a kernel comes in steps. So where sizes
// follow laws, a request in a forward or backward that has the size of no item close by is taken
// for the item at the head if it is no larger than planned.
//
// Note [Finding a phase]
// A forward, a backward or an optimizer's step is found by its kind, microbatch, chunk and
// occurrence. One that comes more often than planned repeats the last occurrence that the plan has.
//
//   plan   f0 b0 o f1 b1 o'  step        run   f0 b0 o f1 b1 o' f2 b2 o' f3 b3 o' step
//                                        is    f0 b0 o f1 b1 o' f1 b1 o' f1 b1 o' step
//
// A microbatch beyond the plan's repeats the last planned one that is not in flight, so that an
// extra microbatch of a pipeline finds the places of one whose backward is over. Its backward
// follows it. A repeated phase may take all of its decisions again.
//
// Any other phase has no name of its own: it is found by the phase that it follows. So a phase that
// is missing or extra does not shift those after it. The last microbatch of an iteration may be
// another one than planned. That shows in the phase after its backward: a request that is not the
// next one there may be the next one in the phase after another backward. Then the run is in that
// phase, if both begin alike. Start-up alone is different: it runs once, its
// phases come in an order of its own, and its other phases are found by their occurrence.
//
// Note [Dynamic requests]
// A request is dynamic when its caller says so (it comes from a module tagged as dynamic), or when
// it is not the next decision and the plan has a group of dynamic requests at this place. Dynamic
// requests do not move the head: however many there are, the next static one is found. Where the
// place has several groups, the request's context tells which (profile/roles.h): the longest
// context known, and the first group if none is. A dynamic request of a group for what is kept is
// treated as a persistent one.
//
// Note [Persistent requests]
// A request that comes in every iteration and outlives the next has no decision, but a place in the
// order all the same: the cursor runs over items, which are decisions and persistent requests as
// they come, so that a loss that the loop keeps is not taken for the next decision of its size.
//
// Note [Start-up]
// Start-up and the first iteration ask for more than any later one, and for some things not. A
// matcher that follows a run from its very beginning has the plan's start-up requests among its
// items, and not the decisions that the first iteration does not make: what outlives the iteration
// is known, and not taken for a temporary. It is done when the iteration is; another one goes on
// that has the decisions and the persistent requests, which start-up lists as its own. That one
// trusts the phases that have run as they were profiled. Start-up, in which imports and settings
// differ from run to run and few decisions are, is trusted from the start.
//
// Nothing here decides about safety: any decision handed out is checked by the static pool.
//
// Cost: O(1) in step, O(window) near a departure, O(log n) past the window. Allocates nothing after
// construction. Not thread-safe.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "base/types.h"
#include "plan/plan.h"
#include "profile/roles.h"
#include "runtime/microbatches.h"

namespace stalloc::runtime {

class Matcher {
 public:
  using DecisionIndex = plan::DecisionIndex;
  using GroupIndex = plan::GroupIndex;
  using StartupIndex = plan::StartupIndex;

  // The answer for a request: a decision of the plan, one of a group of dynamic requests, a
  // persistent one that the plan knows, one of start-up, or none of these.
  struct Match {
    DecisionIndex decision = kNone;
    GroupIndex group = kNone;
    StartupIndex startup = kNone;
    bool persistent = false;
    // Data of a batch that is larger than planned: the pool is exchanged next.
    bool outgrows = false;
  };
  static_assert(sizeof(Match) == 16);  // two registers

  enum class Part : std::uint8_t { kIterations, kStartup };

  explicit Matcher(const plan::Plan& plan, Part part = Part::kIterations);

  // Trusts the phases that another matcher of the plan does.
  void trust_like(const Matcher& other) {
    for (const PhaseIndex p : phases_.indices()) phases_[p].trusted = other.phases_[p].trusted;
  }

  // Begins a phase. A phase that the plan does not have matches nothing until the next one begins.
  // See Note [Finding a phase].
  void enter_phase(trace::PhaseKind kind, std::int32_t microbatch, std::int32_t chunk);

  // The extents of the phase that was entered last, and the shares of dimensions that the plan has
  // no name for. `told`: they are known and not those of an earlier microbatch. O(laws).
  void use_extents(std::span<const profile::Extent> extents, std::span<const Share> shares,
                   bool told);

  // Goes on with another layout of the plan.
  void relayout(const plan::Plan& plan);

  // Begins the next iteration; no phase is current until one is entered.
  void end_iteration();

  // A decision is taken from now on until the iteration ends. None is found for what should be one
  // in a phase that is not trusted and has departed from the plan. `dynamic`: see Note [Dynamic
  // requests].
  Match match(Bytes size, StreamId stream, bool dynamic = false);

  // The phase that was entered last; kNone if the plan has it not.
  PhaseIndex phase() const { return phase_; }
  // The kind of phase that the training loop entered last, planned or not.
  trace::PhaseKind kind() const { return kind_; }
  // True if the plan has the phase and it is trusted.
  bool in_step() const { return phase_ != kNone && phases_[phase_].trusted; }
  // True if the phase is one whose requests may outlive it, and it has departed from the plan.
  bool wary() const { return wary_; }

 private:
  using LawIndex = profile::LawIndex;
  using Slot = Index<struct Size>;  // index into sizes_: a law's, or that of a fixed size
  struct Shape {
    Slot slot = kNone;
    StreamId stream = 0;
    bool operator==(const Shape&) const = default;
    auto operator<=>(const Shape&) const = default;
  };
  using ItemIndex = Index<Shape>;
  struct DynamicPlace;
  using PlaceIndex = Index<DynamicPlace>;
  using PointIndex = Index<struct Point>;  // where dynamic requests may be; see point()
  struct Phase {
    ItemIndex begin = kNone;  // range of items
    ItemIndex end = kNone;
    std::int32_t turns = 0;       // it has been run through
    std::int32_t last_asked = 0;  // requests of the turn before
    bool trusted = false;
    ItemIndex wary_end{0};      // what does not fit before this item may outlive the phase
    bool departs = false;       // from the plan, in this turn
    bool departed = false;      // in the turn before
    std::uint32_t entered = 0;  // the turn in which it was last entered
    bool repeated = false;      // it was entered before in this turn
  };

  bool is_free(ItemIndex i) const { return taken_[i] != turn_; }
  Bytes size_of(ItemIndex i) const { return sizes_[shapes_[i].slot]; }
  bool is_like(ItemIndex i, Bytes size, StreamId stream) const {
    return size_of(i) == size && shapes_[i].stream == stream;
  }
  bool fits(ItemIndex i, Bytes size, StreamId stream) const {
    return is_like(i, size, stream) && is_free(i);
  }
  // Items of a phase and their ends: a phase of n items has n + 1 points.
  static PointIndex point(PhaseIndex phase, ItemIndex head) {
    return PointIndex(phase.number() + head.number());
  }
  // The first slots are the laws'.
  static Slot slot_of(LawIndex law) { return Slot(law.number()); }
  Slot slot_of(LawIndex law, Bytes size);
  bool is_unknown(const profile::SizeLaw& law) const;
  bool takes_by_place(Bytes size, StreamId stream);
  bool infer(const profile::SizeLaw& law, Bytes size);
  bool is_share(Bytes expected, Bytes size) const;
  bool breaks_a_law(Bytes size, StreamId stream) const;
  // Phases that the plan does not have come after this in the place of a planned one.
  static constexpr PhaseIndex kUnknown{-2};

  PhaseIndex find_phase(trace::PhaseKind kind, std::int32_t microbatch, std::int32_t chunk);
  PhaseIndex find_other() const;
  bool moves_to_sibling(Bytes size, StreamId stream);
  PhaseIndex find_occurrence(trace::PhaseKey key) const;
  std::int32_t planned_microbatch(std::int32_t microbatch, std::int32_t chunk);
  void add_phases(const plan::Plan& plan);
  void add_items(const plan::Plan& plan, Part part);
  void add_places(const plan::Plan& plan);
  Match match_of(ItemIndex item) const;
  void leave_phase();
  ItemIndex take(ItemIndex i);
  ItemIndex match_near(Bytes size, StreamId stream);
  ItemIndex match_far(Bytes size, StreamId stream, int sure);
  PlaceIndex place_here(StreamId stream) const;
  GroupIndex group_of(PlaceIndex place, Bytes size);
  // The first decision of the phase from `from` on that fits; kNone if there is none.
  ItemIndex find_from(ItemIndex from, Bytes size, StreamId stream) const;

  IndexedVector<LawIndex, profile::SizeLaw> laws_;
  IndexedVector<Slot, Bytes> sizes_;       // now; kNone where not known ahead
  IndexedVector<Slot, Bytes> planned_;     // in the layout
  std::map<Bytes, Slot> slots_;            // of sizes that never change
  std::vector<profile::Extent> envelope_;  // of the layout
  std::vector<profile::Extent> extents_;   // of the phase; kNone where unknown
  std::vector<profile::Extent> guess_;     // the same, told by sizes of requests
  std::vector<Share> shares_;              // of the phase
  bool told_ = false;
  bool outgrown_ = false;  // the request at hand told extents beyond the envelope
  IndexedVector<ItemIndex, Shape> shapes_;
  IndexedVector<ItemIndex, DecisionIndex> decision_;  // kNone for what has a place only
  IndexedVector<ItemIndex, StartupIndex> startup_;    // kNone for all but start-up's
  IndexedVector<DecisionIndex, ItemIndex> item_;      // of an absent one, the item before it
  IndexedVector<ItemIndex, std::uint32_t> taken_;     // the turn in which it was last taken
  std::vector<ItemIndex> by_shape_;  // items of each phase, ordered by (shape, index)
  IndexedVector<PhaseIndex, Phase> phases_;
  Match dynamic_match(PlaceIndex place, Bytes size);
  struct DynamicPlace {  // of one stream
    PointIndex at = kNone;
    StreamId stream = 0;
    GroupIndex first_group = kNone;
    GroupIndex small_group = kNone;  // kNone: small requests are like all others
    GroupIndex kept_group = kNone;
    std::vector<Bytes> kept;  // sizes that alone tell whose a request is: the kept group's
    profile::Recurring recurring;
    std::vector<std::pair<profile::DynamicContext, GroupIndex>> contexts;  // ascending
  };

  IndexedVector<GroupIndex, bool> kept_;  // whether it is of what is kept
  IndexedVector<PlaceIndex, DynamicPlace> places_;
  IndexedVector<PointIndex, PlaceIndex> place_at_;  // the first one there
  PlaceIndex place_ = kNone;                        // where the last dynamic request was asked for
  profile::ContextWindow window_;                   // and what was asked for there
  std::map<trace::PhaseKey, PhaseIndex> index_;     // of phases that are not `other`
  struct Following {                                // names an `other` phase
    PhaseIndex phase = kNone;                       // it follows; kNone: none in this iteration
    std::int32_t nth = 0;                           // `other` phase since then
    auto operator<=>(const Following&) const = default;
  };
  std::map<Following, PhaseIndex> others_;
  IndexedVector<PhaseIndex, trace::PhaseKind> kinds_;
  const bool is_startup_;  // `other` phases are numbered: they follow no phase
  std::map<std::int32_t, std::vector<std::int32_t>> microbatches_;  // planned, ascending, by chunk
  // In this iteration:
  std::map<trace::PhaseKey, std::int32_t> seen_;  // occurrences, keyed by occurrence 0
  Following following_;
  struct Assigned {  // a microbatch of a chunk to a planned one
    std::int32_t planned = 0;
    bool in_flight = false;  // its forward has begun, its backward has not
  };
  std::map<std::pair<std::int32_t, std::int32_t>, Assigned> assigned_;  // by chunk, microbatch
  std::uint32_t turn_ = 1;
  PhaseIndex phase_ = kNone;
  trace::PhaseKind kind_ = trace::PhaseKind::kOther;
  std::int32_t asked_ = 0;  // requests in this phase
  bool departed_ = false;   // from the plan, in a phase that is not trusted
  bool wary_ = false;       // it is, and has departed where its requests may outlive it
  ItemIndex head_{0};
  ItemIndex end_{0};
  ItemIndex resync_ = kNone;  // where the next request would fit if the cursor jumped
  int in_a_row_ = 0;          // requests that have fit there
};

}  // namespace stalloc::runtime
