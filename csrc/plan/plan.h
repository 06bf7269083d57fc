// A plan: the decision for every static request of one iteration, and what the runtime needs to
// recognise them. Written once by the planner, read by every training run after it.
//
// Note [Envelope]
// A plan is made for one set of extents, the envelope. Each size is the one at the envelope, and
// the row's law tells the size at other extents. Sizes grow with extents, so the offsets are valid
// for every batch within the envelope. resize.h makes the plan for other extents.
#pragma once

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

// Indices into the tables of a plan. Plan::operator[] takes each.
using DecisionIndex = Index<Decision>;
using SlotClassIndex = Index<SlotClass>;
using GroupIndex = Index<DynamicGroup>;
using StartupIndex = Index<StartupRequest>;
// Boxes have no table: requests with the same index share a slot; see boxes.h.
using BoxIndex = Index<struct Box>;

// d = m + (a) in the paper (section 5.1).
struct Decision {
  Bytes size = 0;  // as asked
  Offset offset = 0;
  Tick lower = 0;                // within [0, period)
  Tick upper = 0;                // lower < upper <= lower + period; past the period it wraps round
  PhaseIndex phase = kNone;      // where it is born, index into Plan::phases
  PhaseIndex phase_end = kNone;  // kNone when freed in an unplanned one
  StreamId stream = 0;
  profile::LawIndex law = kNone;  // index into Plan::laws; kNone for a size that never changes
  // State that is replaced in each iteration takes any free slot of a class; see slots.h. Its
  // offset is then that of the first slot.
  SlotClassIndex slots = kNone;
  Tick over = 0;  // ticks that it lives beyond `upper`, at most a period
  // Other requests use slots that are idle for a while, in boxes; see boxes.h. The offset is then
  // that in the first slot.
  BoxIndex box = kNone;
};

// Interchangeable places side by side, for the requests of one size and stream; see slots.h.
struct SlotClass {
  Bytes size = 0;  // of each, a multiple of the alignment
  Offset offset = 0;
  std::int32_t count = 0;
  StreamId stream = 0;
};

struct AddressRange {
  Offset begin = 0;
  Offset end = 0;  // half-open
};

// The dynamic requests of one place in the iteration that live as long: those of one phase that are
// asked for after one of its static requests and before the next. Their sizes, and even their
// number, are known only at run time; the window in which they live is known ahead. A HomoLayer
// group of the paper (section 5.2), with places among the static requests for layers: finer, and
// found without tags. Where some of a place live longer than others, it has several groups, and
// contexts that tell whose a request is (profile/roles.h).
//
//   decisions   ...  [after]                 [after + 1]   ...
//                            d  d  d  d  d                          dynamic requests
//   window                   [---------------------------------)    until the last of them is freed
//
// A group has a region of its own in the pool, sized by what the profiled iterations needed, and
// may use addresses that the rest of the plan leaves idle through its whole window. Requests that
// are kept for longer than a turn are of a group that has neither (Plan::is_kept): they would be in
// the plan's way for good.
struct DynamicGroup {
  PhaseIndex phase = kNone;     // index into Plan::phases
  DecisionIndex after = kNone;  // kNone at the beginning of the phase
  Bytes size = 0;               // of the region; 0 for none
  Offset offset = 0;
  Tick lower = 0;  // the window, as Decision's lifetime
  Tick upper = 0;
  PhaseIndex phase_end = kNone;
  StreamId stream = 0;
  profile::LawIndex law = kNone;  // the region grows and shrinks in proportion to it
  std::vector<profile::DynamicContext> contexts;  // ascending
  // Idle through the window, the region itself left out, and never another stream's: ascending,
  // disjoint, not adjacent.
  std::vector<AddressRange> reusable;
};

// A request that comes back in every iteration and outlives the next one: a loss that the loop
// keeps, a state that the optimizer makes anew. It has no address in the plan; the runtime has to
// know it all the same, or it would take it for a decision of its size.
struct PersistentRequest {
  PhaseIndex phase = kNone;     // index into Plan::phases
  DecisionIndex after = kNone;  // as DynamicGroup's
  Bytes size = 0;               // as asked
  StreamId stream = 0;
  profile::LawIndex law = kNone;  // as Decision's
};

// A request that only the beginning of a run makes: start-up, which is the first phase of the first
// iteration, and the rest of that iteration. Most such requests are permanent (weights, gradients,
// the optimizer's states) and lie without holes in the resident region, above the pool. Temporaries
// lie where pool and region are idle meanwhile.
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
  Bytes size = 0;               // as asked
  Offset offset = kUnplaced;    // kUnplaced: the runtime knows it, and it gets no address
  Tick lower = 0;               // ticks since the run began
  Tick upper = 0;               // kNever: it stays
  StreamId stream = 0;
  profile::LawIndex law = kNone;  // as Decision's
  SlotClassIndex slots = kNone;   // it takes a slot of this class, and has no offset

  bool stays() const { return upper == kNever; }
};

struct Plan {
  std::map<std::string, std::string> info;  // what was profiled: "device", "torch", "model", ...
  std::string fingerprint;                  // of the trace it came from
  std::string algorithm;
  // Proven: no plan with the same slots has a smaller pool.
  bool optimal = false;
  Bytes pool = 0;      // bytes to reserve: M_r of the static part
  Bytes resident = 0;  // bytes of the resident region, above the pool
  Bytes bound = 0;
  Bytes load = 0;  // M_a of the profiled iteration, all requests, as asked
  Bytes alignment = kDefaultAlignment;
  Tick period = 0;
  // kOrdered: addresses go from one stream's decisions and regions to another's, and the runtime
  // lets the later stream wait; see waits.h. Dynamic requests beyond their region, and start-up,
  // keep to addresses that no other stream ever has.
  solve::Streams streams = solve::Streams::kSeparate;
  std::vector<profile::ProfiledPhase> phases;  // the planned ones, in order of their beginning
  std::vector<Decision> decisions;             // by phase, then by lower
  std::vector<DynamicGroup> groups;  // by phase, after and stream, what fits no context first
  std::vector<PersistentRequest> persistent;  // by phase, then by `after`, then as they come
  std::vector<StartupRequest> startup;        // by phase, then by `after`, then by `lower`
  std::vector<DecisionIndex> absent;  // decisions that the first iteration does not make, ascending
  std::vector<SlotClass> slots;
  std::vector<std::string> dynamic;       // patterns of the modules whose requests are dynamic
  std::vector<std::string> extent_names;  // of the extents that change: "ids.1", ...
  std::vector<profile::Extent> extents;   // by name: the envelope, see Note [Envelope]
  std::vector<std::vector<profile::Extent>> seen;  // the distinct extents that were profiled
  // Extents that no law uses, since they never changed or always equalled another, by name: the
  // largest profiled value. A run may change them; see runtime/microbatches.h.
  std::map<std::string, profile::Extent> fixed_extents;
  std::vector<profile::SizeLaw> laws;
  // Where the pool is in several pieces of memory, each but the first begins behind a wall: an
  // aligned unit that belongs to nobody, so that nothing straddles two pieces. Ascending. Of a run,
  // not of a file.
  std::vector<Offset> walls;
  // The regions' head room over what they typically need: in per cent of what the largest need has
  // above the median, what it adds to the bound, and how much less fell back at the worst peak when
  // iterations were replayed against each other.
  std::int32_t headroom = 0;
  Bytes headroom_cost = 0;
  Bytes headroom_saves = 0;

  // The row that an index names.
  const profile::ProfiledPhase& operator[](PhaseIndex p) const { return phases[p.position()]; }
  const Decision& operator[](DecisionIndex d) const { return decisions[d.position()]; }
  Decision& operator[](DecisionIndex d) { return decisions[d.position()]; }
  const DynamicGroup& operator[](GroupIndex g) const { return groups[g.position()]; }
  DynamicGroup& operator[](GroupIndex g) { return groups[g.position()]; }
  const StartupRequest& operator[](StartupIndex s) const { return startup[s.position()]; }
  StartupRequest& operator[](StartupIndex s) { return startup[s.position()]; }
  const SlotClass& operator[](SlotClassIndex c) const { return slots[c.position()]; }
  SlotClass& operator[](SlotClassIndex c) { return slots[c.position()]; }
  const profile::SizeLaw& operator[](profile::LawIndex l) const { return laws[l.position()]; }

  bool is_kept(const DynamicGroup& g) const {
    return g.size == 0 && g.reusable.empty() && g.upper - g.lower == period;
  }

  double gap() const { return bound > 0 ? static_cast<double>(pool) / bound - 1.0 : 0.0; }

  // Throws PlanError, naming the decision, unless the plan is one the runtime can follow: indices
  // in range, ticks within the period, order as stated, validator.h finds no overlap among
  // decisions and regions, nor among the requests of start-up, and idle_validator.h nothing in the
  // reusable space.
  void check() const;
};

// The problem that a plan solves (its decisions as buffers, then its groups' regions, its walls,
// and the slots of each class as one buffer), and the solution. Decisions in slots have no lifetime
// there.
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

// The decisions that take slots, and the requests of start-up that do.
struct SlotDecisionRow {
  DecisionIndex row = kNone;
  SlotClassIndex slots = kNone;
  Tick over = 0;
  BoxIndex box = kNone;
};
struct SlotStartupRow {
  StartupIndex row = kNone;
  SlotClassIndex slots = kNone;
};

std::vector<SlotDecisionRow> slot_decision_rows(const Plan& plan);
std::vector<SlotStartupRow> slot_startup_rows(const Plan& plan);

}  // namespace stalloc::plan
