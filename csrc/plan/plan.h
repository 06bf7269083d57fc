// A plan: the decision for every static request of one iteration, and the data by which the runtime
// recognises the requests. The planner writes it once; every later training run reads it.
//
// Note [Envelope]
// A plan is made for one set of extents, the envelope. Each size is the one at the envelope, and
// the row's law gives the size at other extents. Sizes grow with extents, so the offsets are valid
// for every batch within the envelope. resize.h makes the plan for other extents.
#pragma once

#include <array>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/types.h"
#include "profile/lifetimes.h"
#include "profile/size_law.h"
#include "solve/core/problem.h"
#include "trace/trace.h"

namespace stalloc::plan {

struct Decision;
struct SlotClass;
struct DynamicGroup;
struct StartupRequest;
struct Turn;

// Indices into the tables of a plan. Plan::operator[] takes each.
using DecisionIndex = Index<Decision>;
using SlotClassIndex = Index<SlotClass>;
using GroupIndex = Index<DynamicGroup>;
using StartupIndex = Index<StartupRequest>;
using TurnIndex = Index<Turn>;
// Boxes have no table: requests with the same index share a slot; see boxes.h.
using BoxIndex = Index<struct Box>;

// d = m + (a) in the paper (section 5.1).
struct Decision {
  Bytes size = 0;  // as requested
  Offset offset = 0;
  Tick lower = 0;                // within [0, period)
  Tick upper = 0;                // lower < upper <= lower + period; past the period it wraps round
  PhaseIndex phase = kNone;      // of the allocation, index into Plan::phases
  PhaseIndex phase_end = kNone;  // of the free; kNone if that is unplanned
  StreamId stream = 0;
  profile::LawIndex law = kNone;  // index into Plan::laws; kNone for a size that never changes
  // State that is replaced in each iteration takes any free slot of a class; see slots.h. Then
  // `offset` is the first slot's.
  SlotClassIndex slots = kNone;
  // Ticks that it lives beyond `upper`, at most a period. Without slots it takes turns (Turn).
  Tick over = 0;
  // Requests that share a slot: state that is handed over together (generations.h), or others while
  // the slot is idle (boxes.h). Then `offset` is the one in the first slot.
  BoxIndex box = kNone;
};

// Interchangeable slots side by side, for the requests of one size and stream; see slots.h.
struct SlotClass {
  Bytes size = 0;  // of each slot, a multiple of the alignment
  Offset offset = 0;
  std::int32_t count = 0;
  StreamId stream = 0;
};

// A decision whose size varies and that lives longer than an iteration. Its requests take turns
// between two places; see turns.h. In this layout the block of the iteration before lies at
// `offset` until it is freed.
struct Turn {
  DecisionIndex decision = kNone;
  Offset offset = 0;
  Bytes size = 0;
  // With room for the decision's size, and for no anchor. The same in all layouts, which may have
  // the decision and the block elsewhere, too.
  std::array<Offset, 2> places = {0, 0};
};

struct AddressRange {
  Offset begin = 0;
  Offset end = 0;  // half-open
};

// The dynamic requests of one role at one site. They come after one static request of a phase and
// before the next. Their sizes and their number are known only at run time; their window is known
// ahead. This is a HomoLayer group of the paper (section 5.2) with sites for layers: finer, and
// found without tags. A site with several roles has several groups, and contexts predict the group
// of a request (profile/roles.h).
//
//   decisions   ...  [after]                 [after + 1]   ...
//                            d  d  d  d  d                          dynamic requests
//   window                   [---------------------------------)    until the last of them is freed
//
// A group has a region of its own in the pool, sized by the needs of the profiled iterations, and
// may use addresses that the rest of the plan leaves idle through its whole window. A group of kept
// requests, which outlive the next iteration, has neither (Plan::is_kept): its blocks would occupy
// the pool for the rest of the run.
struct DynamicGroup {
  PhaseIndex phase = kNone;     // index into Plan::phases
  DecisionIndex after = kNone;  // the static request before it; kNone at the phase's beginning
  Bytes size = 0;               // of the region; 0 for none
  Offset offset = 0;
  Tick lower = 0;  // the window, in the form of Decision's lifetime
  Tick upper = 0;
  PhaseIndex phase_end = kNone;
  StreamId stream = 0;
  profile::LawIndex law = kNone;  // the region grows and shrinks in proportion to it
  // The group whose region it uses, an earlier one or itself; then only that one has a size. Its
  // window holds this one. kNone: its own. See hosts.h.
  Index<DynamicGroup> host = kNone;
  std::vector<profile::DynamicContext> contexts;  // ascending
  // The reusable space: idle through the window, outside of the region, and never another stream's.
  // Ascending, disjoint, not adjacent.
  std::vector<AddressRange> reusable;
};

// A request that comes in every iteration and outlives the next one: a loss that the loop keeps, or
// a state that the optimizer makes anew. It has no address in the plan. The runtime must recognise
// it nevertheless, because it could match a decision of its size.
struct PersistentRequest {
  PhaseIndex phase = kNone;     // index into Plan::phases
  DecisionIndex after = kNone;  // as DynamicGroup's
  Bytes size = 0;               // as requested
  StreamId stream = 0;
  profile::LawIndex law = kNone;  // as Decision's
};

// A request of the beginning of a run: of start-up, which is the first phase of the first
// iteration, or of the rest of that iteration. Most such requests are permanent (weights,
// gradients, the optimizer's states) and lie without holes in the resident region, above the pool.
// Temporaries lie in parts of the pool and the region that are idle during their lifetimes.
//
//   offset   +------------------------------+ pool + resident
//            |        _______________________  optimizer states
//            | __  ____________________________ gradients
//            | xx _____________________________ weights; a temporary of start-up (x) before them
//            +------------------------------+ pool
//            | xx  #  #  #   #  #  #          decisions (#)
//            +------------------------------+ 0
//             start-up  first iteration  ...
struct StartupRequest {
  PhaseIndex phase = kNone;     // index into Plan::phases
  DecisionIndex after = kNone;  // as DynamicGroup's
  Bytes size = 0;               // as requested
  Offset offset = kUnplaced;    // kUnplaced: the runtime recognises it, and the fallback serves it
  Tick lower = 0;               // ticks since the run began
  Tick upper = 0;               // kNever: it is permanent
  StreamId stream = 0;
  profile::LawIndex law = kNone;  // as Decision's
  SlotClassIndex slots = kNone;   // it takes a slot of this class, and has no offset
  // The decision whose place in a box it takes; kNone if it has its slot for itself.
  DecisionIndex decision = kNone;

  bool stays() const { return upper == kNever; }
};

struct Plan {
  std::map<std::string, std::string> info;  // on the profiled run: "device", "torch", "model", ...
  std::string fingerprint;                  // of the trace of this plan
  std::string algorithm;
  // True if it is proven that no plan with the same slots has a smaller pool.
  bool optimal = false;
  Bytes pool = 0;      // bytes to reserve: M_r of the static part
  Bytes resident = 0;  // bytes of the resident region, above the pool
  Bytes bound = 0;
  Bytes load = 0;  // M_a, of the compared iteration with the most: all requests, sizes as requested
  // The most that was live at once in the recording, whose extents may be smaller. 0: not known.
  Bytes recorded_load = 0;
  Bytes alignment = kDefaultAlignment;
  Tick period = 0;
  // kOrdered: decisions and regions of several streams may share addresses, and the runtime lets
  // the later stream wait; see waits.h. Dynamic requests outside their region, and start-up
  // requests, only get addresses that no other stream ever has.
  solve::Streams streams = solve::Streams::kSeparate;
  // The program's own order, in ticks of the iteration, if streams only share addresses where it
  // orders them anyway; see shared.h. Only planning and its check trust it: a run lets the later
  // stream wait nevertheless. Empty in plans that order streams anywhere, and for other extents
  // where the layout cannot keep to it.
  std::vector<Order> orders;
  std::vector<profile::ProfiledPhase> phases;  // the planned ones, in order of their beginning
  std::vector<Decision> decisions;             // by phase, then by lower
  std::vector<DynamicGroup>
      groups;  // by phase, after and stream; the default of a site comes first
  std::vector<PersistentRequest> persistent;  // by phase, then by `after`, then in program order
  std::vector<StartupRequest> startup;        // by phase, then by `after`, then by `lower`
  std::vector<DecisionIndex> absent;  // decisions that the first iteration does not make, ascending
  std::vector<SlotClass> slots;
  std::vector<Turn> turns;                // one for each decision that takes turns, ascending
  std::vector<std::string> dynamic;       // names of the modules found to be dynamic
  std::vector<std::string> extent_names;  // of the extents that change: "ids.1", ...
  std::vector<profile::Extent> extents;   // by name: the envelope, see Note [Envelope]
  std::vector<std::vector<profile::Extent>> seen;  // the distinct extents that were profiled
  // Extents that no law uses, since they never changed or always equalled another, by name: the
  // largest profiled value. A run may change them; see runtime/microbatches.h.
  std::map<std::string, profile::Extent> fixed_extents;
  std::vector<profile::SizeLaw> laws;
  // A wall is an aligned unit that no request gets. It separates two pieces of the pool's memory,
  // so no request straddles both. Ascending offsets. Not stored in files.
  std::vector<Offset> walls;
  std::int32_t headroom = 0;  // of the regions: per cent of (largest need - median)
  Bytes headroom_cost = 0;    // the bytes that it adds to the bound
  // The bytes by which it lowers the overflow at its worst peak, in the cross-validation of the
  // profiled iterations.
  Bytes headroom_saves = 0;

  // The row of an index.
  const profile::ProfiledPhase& operator[](PhaseIndex p) const { return phases[p.position()]; }
  const Decision& operator[](DecisionIndex d) const { return decisions[d.position()]; }
  Decision& operator[](DecisionIndex d) { return decisions[d.position()]; }
  const DynamicGroup& operator[](GroupIndex g) const { return groups[g.position()]; }
  DynamicGroup& operator[](GroupIndex g) { return groups[g.position()]; }
  const StartupRequest& operator[](StartupIndex s) const { return startup[s.position()]; }
  StartupRequest& operator[](StartupIndex s) { return startup[s.position()]; }
  const Turn& operator[](TurnIndex t) const { return turns[t.position()]; }
  Turn& operator[](TurnIndex t) { return turns[t.position()]; }
  const SlotClass& operator[](SlotClassIndex c) const { return slots[c.position()]; }
  SlotClass& operator[](SlotClassIndex c) { return slots[c.position()]; }
  const profile::SizeLaw& operator[](profile::LawIndex l) const { return laws[l.position()]; }

  bool is_kept(const DynamicGroup& g) const {
    return g.size == 0 && g.reusable.empty() && g.upper - g.lower == period;
  }

  double gap() const { return bound > 0 ? static_cast<double>(pool) / bound - 1.0 : 0.0; }

  // Throws PlanError, with the row's name, unless the runtime can follow the plan: indices are in
  // range, ticks within the period, rows in the order above. validator.h finds no overlap among
  // decisions and regions, nor among the requests of start-up. idle_validator.h finds the reusable
  // space idle.
  void check() const;
};

// A request of at most so many bytes costs next to nothing, wherever it lies.
Bytes largest_small(const Plan& plan);
inline bool is_small(const Plan& plan, Bytes size) { return size <= largest_small(plan); }

// The problem that a plan solves, and its solution. The buffers are the decisions, then the groups'
// regions, the second places of turns, the walls, and the slots of each class as one buffer.
// Decisions in slots have empty lifetimes.
solve::Problem problem_of(const Plan& plan);
solve::Layout layout_of(const Plan& plan);

// The contexts of all groups as one table, by group.
struct ContextRow {
  GroupIndex group = kNone;
  profile::DynamicContext context;
};

std::vector<ContextRow> context_rows(const Plan& plan);

// The terms of all laws as one table, by law.
struct LawTermRow {
  profile::LawIndex law = kNone;  // index into Plan::laws
  std::int64_t coefficient = 0;
  profile::ExtentIndex first = kNone;  // the factors; kNone stands for 1
  profile::ExtentIndex second = kNone;
  profile::ExtentIndex third = kNone;
};

std::vector<LawTermRow> law_term_rows(const Plan& plan);

// The reusable space of all groups as one table, by group.
struct ReusableRow {
  GroupIndex group = kNone;
  AddressRange range;
};

std::vector<ReusableRow> reusable_rows(const Plan& plan);

// The decisions, and the requests of start-up, that take slots.
struct SlotDecisionRow {
  DecisionIndex row = kNone;
  SlotClassIndex slots = kNone;
  Tick over = 0;
  BoxIndex box = kNone;
};
struct SlotStartupRow {
  StartupIndex row = kNone;
  SlotClassIndex slots = kNone;
  DecisionIndex decision = kNone;
};

// The decisions that take turns.
struct TurnRow {
  DecisionIndex row = kNone;
  Tick over = 0;
  Offset offset = 0;
  Bytes size = 0;
  Offset first = 0;  // the places
  Offset second = 0;
};

std::vector<TurnRow> turn_rows(const Plan& plan);

std::vector<SlotDecisionRow> slot_decision_rows(const Plan& plan);
std::vector<SlotStartupRow> slot_startup_rows(const Plan& plan);

}  // namespace stalloc::plan
