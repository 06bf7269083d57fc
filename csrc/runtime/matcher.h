// Finds the decision of the plan that a request corresponds to.
//
// Training asks for the same sizes in the same order, so within a phase the next request is nearly
// always the next decision, and that is one comparison. The exceptions:
//
//   plan   A B C D E F ...     run   A B D C E F      two requests changed places
//                                    A B D E F        one is missing
//                                    A B X C D        one is new
//                                    A B K L M        a whole layer was skipped
//
// `head_`, the cursor, is one past the decision matched last. A request that does not fit the
// decision at the head is searched among the nearby decisions that have not been taken: first those
// behind the head (they were skipped), then those ahead of it (some requests are missing).
// Otherwise it may be further on in the phase. The cursor does not jump there at once: a foreign
// request of a common size would mislead it. It remembers the position, leaves this request
// unmatched, and jumps if the *next* request fits the decision after this position. Every phase
// begins with the head at its first decision, so a departure never outlives its phase.
//
// Note [Trust]
// A run's first iteration differs from the profiled ones: it allocates the optimizer's states,
// which outlive it and have the sizes of planned temporaries. Served from the plan they would
// occupy those addresses permanently. So a phase is not trusted until it has run as it was
// profiled: in an untrusted phase no request matches after the first one that is not the next
// decision. A phase is trusted, and departures in it are searched as above, once it has made as
// many requests as the plan has for it, or as many as in the iteration before, or once it has run
// in four iterations. A plan that was made on the meta device never equals the run, so a run that
// it serves from its start trusts all phases: start-up's items tell the states that are made
// meanwhile. For the same reason a run that is served from its start trusts its forwards and
// backwards. So does a run whose latest iterations are those of the profile: it has its states.
//
// Requests of a forward or a backward are mostly temporary. An optimizer may also make states
// later, for parameters that get their first gradient, mostly before its step. Weights are copied
// between iterations. In these phases, in the first iteration that departs from the plan, a request
// matches only if several in a row fit: four states rarely look like four temporaries. Where states
// are to come, that holds for the optimizer's first small requests, too: a count of the steps is
// like a number that each step makes.
//
// Note [Sizes]
// A request is identified by its position in the program; its size follows from the extents of its
// microbatch. So an item stores no size but an entry of a table of sizes: one for each law, filled
// when a phase begins, and one for each constant size. A match costs one look-up.
//
// Three kinds of sizes are not known ahead. Their item matches at the head by its position:
//
//   unexplained   no law gives the size: any size up to the planned one
//   upcoming      data of the next microbatch, made before its extents are reported, or, in a
//                 pipeline, the gradient of the one that goes back next: any size up to the planned
//                 one that the law can give. It tells the sizes of later requests like it. Two
//                 requests that tell the same extent beyond the layout's need another layout. After
//                 one, a small request that tells less may be of a passed group of kept ones. Where
//                 dynamic requests are expected, too, only a batch about as large as others counts
//   a share       a dimension changes that never changed while the program was profiled, such as
//                 the rows of an epoch's last batch: the expected size times the dimension's share
//
// A law may fail for extents that were not profiled: scratch space of a kernel grows in steps. So
// if the plan has laws, a request in a forward or backward whose size is that of no nearby item
// matches the item at the head if it is no larger than planned.
//
// Note [Finding a phase]
// A forward, a backward or an optimizer's step is found by its kind, microbatch, chunk and
// occurrence. One that comes more often than planned repeats the last occurrence that the plan has.
//
//   plan   f0 b0 o f1 b1 o'  step        run   f0 b0 o f1 b1 o' f2 b2 o' f3 b3 o' step
//                                        is    f0 b0 o f1 b1 o' f1 b1 o' f1 b1 o' step
//
// A microbatch beyond the plan's repeats the last planned one that is not in flight, so an extra
// microbatch of a pipeline gets the addresses of one whose backward is over. Its backward repeats
// the same microbatch. A repeated phase may take all of its decisions again.
//
// Any other phase has no name: it is identified by the phase before it. So a missing or extra phase
// does not shift later ones. The last microbatch of an iteration may differ from the planned one.
// Then a request in the phase after its backward may not be the next one there, but the next one in
// the phase after another backward. If both phases begin alike, the matcher moves to that phase.
// Start-up runs once, in an order of its own: its other phases are identified by their occurrence.
//
// Note [Dynamic requests]
// A request is dynamic if its caller says so (it comes from a module tagged as dynamic), or if it
// is not the next decision and the plan has a site at the head. Dynamic requests do not move the
// head, so their number does not matter: the next static request is found. If the site has several
// groups, the request's context on its stream selects one (profile/roles.h): the longest known
// context, or the first group if no context is known. A dynamic request of a group of kept requests
// counts as persistent.
//
// Note [Persistent requests]
// A request that comes in every iteration and outlives the next has no decision, but it has a
// position in the order: the cursor runs over items, which are decisions and persistent requests in
// program order. So a loss that the loop keeps does not match the next decision of its size.
//
// Note [Start-up]
// Start-up and the first iteration make requests that later ones do not make, and lack others. A
// matcher that follows a run from its beginning has the plan's start-up requests among its items,
// and lacks the decisions that are absent from the first iteration. So requests that outlive the
// iteration are recognized, and do not match temporaries. This matcher serves until the first
// iteration ends. The next matcher has the decisions and the persistent requests, and trusts the
// phases that have run as they were profiled. The start-up phase itself is trusted from the start:
// imports and settings differ from run to run, and few decisions are in it.
//
// The first iteration also makes requests that depend on what is cached on disk: a compiler tries
// kernels once. If the profile tried them and this run does not, the cursor passes start-up's items
// at once. If this run alone tries them, their sizes are those of decisions. So in a forward or
// backward that departs, too, several requests in a row have to fit.
//
// Safety does not depend on the matcher: the static pool checks every decision.
//
// Cost: O(1) in step, O(look-ahead) near a departure, O(log n) further away. Allocates nothing
// after construction. Not thread-safe.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
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

  // The result for a request: a decision, a group of dynamic requests, a persistent request of the
  // plan, a start-up request, or none of these.
  struct Match {
    DecisionIndex decision = kNone;
    GroupIndex group = kNone;
    StartupIndex startup = kNone;
    bool persistent = false;
    bool by_place = false;  // persistent since a group of kept requests is where it comes
    // The request is data of a batch that is larger than planned. It has a decision if another
    // one has told the same of that batch; see upcoming().
    bool outgrows = false;
  };
  static_assert(sizeof(Match) == 16);  // two registers

  enum class Part : std::uint8_t { kIterations, kStartup };

  explicit Matcher(const plan::Plan& plan, Part part = Part::kIterations);

  // Trusts the phases that `other`, a matcher of the same plan, trusts.
  void trust_like(const Matcher& other) {
    for (const PhaseIndex p : phases_.indices()) phases_[p].trusted = other.phases_[p].trusted;
  }

  // Trusts all phases: the run has gone on as profiled for a while. Or it has just begun and is the
  // one that was profiled: the optimizer `makes_states` in this iteration, and the model may make
  // tables that it keeps. A forward then has more requests, none of which is one that comes later,
  // until several in a row are.
  void trust_all(bool makes_states) {
    for (Phase& p : phases_) p.trusted = true;
    makes_states_ = makes_states;
  }

  // Begins a phase. No request matches in a phase that the plan does not have.
  // See Note [Finding a phase].
  void enter_phase(trace::PhaseKind kind, std::int32_t microbatch, std::int32_t chunk);

  // Sets the extents of the phase that was entered last, and the shares of dimensions that the plan
  // does not name. `told`: they are known and not those of an earlier microbatch. O(laws).
  void use_extents(std::span<const profile::Extent> extents, std::span<const Share> shares,
                   bool told);

  // The extents beyond the layout's that requests have told of the upcoming microbatch; kNone where
  // they have not.
  std::span<const profile::Extent> upcoming() const { return upcoming_; }

  // Continues with another layout of the plan.
  void relayout(const plan::Plan& plan);

  // Begins the next iteration; no phase is current until one is entered.
  void end_iteration();

  // A matched decision is taken until the iteration ends. In an untrusted phase that has departed
  // from the plan, no request matches a decision. `dynamic`: see Note [Dynamic requests].
  Match match(Bytes size, StreamId stream, bool dynamic = false) {
    // Nearly all requests are the next item, which is not taken.
    const bool is_next =
        !dynamic && head_ < end_ && !departed_ && !makes_states_ && fits(head_, size, stream);
    return is_next ? match_head() : search(size, stream, dynamic);
  }

  // The run has just begun, and its plan is one of an earlier run; see trust_all().
  bool is_first() const { return makes_states_; }

  // The phase that was entered last; kNone if the plan does not have it.
  PhaseIndex phase() const { return phase_; }
  // The kind of phase that the training loop entered last, planned or not.
  trace::PhaseKind kind() const { return kind_; }
  // True if the plan has the phase and it is trusted.
  bool in_step() const { return phase_ != kNone && phases_[phase_].trusted; }
  // True if the phase has departed from the plan, and its requests may outlive it.
  bool wary() const { return wary_; }

 private:
  using LawIndex = profile::LawIndex;
  using SizeIndex = Index<struct Size>;  // index into sizes_: a law's, or that of a fixed size
  struct Shape {
    SizeIndex size = kNone;
    StreamId stream = 0;
    bool operator==(const Shape&) const = default;
    auto operator<=>(const Shape&) const = default;
  };
  using ItemIndex = Index<Shape>;
  struct Site;
  using SiteIndex = Index<Site>;
  using PointIndex = Index<struct Point>;  // positions between items; see point()
  struct Phase {
    ItemIndex begin = kNone;  // range of items
    ItemIndex end = kNone;
    std::int32_t runs = 0;        // iterations in which the phase ran
    std::int32_t last_asked = 0;  // requests in its last run
    bool trusted = false;
    ItemIndex wary_end{0};      // before this item, requests that do not fit may outlive the phase
    bool departs = false;       // this iteration has departed from the plan in it
    bool departed = false;      // the iteration before did
    std::uint32_t entered = 0;  // the iteration in which it was last entered
    bool repeated = false;      // it was entered before in this iteration
  };

  bool is_free(ItemIndex i) const { return taken_[i] != iteration_; }
  Bytes size_of(ItemIndex i) const { return sizes_[shapes_[i].size]; }
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
  // The first entries of sizes_ are the laws'.
  static SizeIndex size_index(LawIndex law) { return SizeIndex(law.number()); }
  SizeIndex size_index(LawIndex law, Bytes size);
  bool is_unknown(const profile::SizeLaw& law) const;
  bool takes_by_position(Bytes size, StreamId stream);
  static std::optional<profile::Extent> solve(const profile::SizeLaw& law, Bytes size);
  bool is_usual_batch(Bytes size, StreamId stream) const;
  bool infer(const profile::SizeLaw& law, Bytes size);
  void note_extents(std::span<const profile::Extent> extents);
  void outgrow(std::size_t name, profile::Extent value);
  bool is_share(Bytes expected, Bytes size) const;
  bool breaks_a_law(Bytes size, StreamId stream) const;
  // Stands for any phase that is not in the plan, as the predecessor of an `other` phase.
  static constexpr PhaseIndex kUnknown{-2};

  PhaseIndex find_phase(trace::PhaseKind kind, std::int32_t microbatch, std::int32_t chunk);
  PhaseIndex find_other() const;
  bool moves_to_sibling(Bytes size, StreamId stream);
  PhaseIndex find_occurrence(trace::PhaseKey key) const;
  std::int32_t planned_microbatch(std::int32_t microbatch, std::int32_t chunk);
  void add_phases(const plan::Plan& plan);
  void add_items(const plan::Plan& plan, Part part);
  void add_sites(const plan::Plan& plan);
  Match match_of(ItemIndex item) const {
    if (item == kNone) return {};
    const DecisionIndex decision = decision_[item];
    const StartupIndex startup = startup_[item];
    const bool persistent = decision == kNone && startup == kNone;
    return {.decision = decision, .startup = startup, .persistent = persistent};
  }
  // The request is the item at the head.
  Match match_head() {
    ++asked_;
    return match_of(take(head_));
  }
  // The match of a request that is not the next item, or may not be it.
  Match search(Bytes size, StreamId stream, bool dynamic);
  void leave_phase();
  ItemIndex take(ItemIndex i) {
    taken_[i] = iteration_;
    head_ = std::max(head_, i + 1);
    resync_ = kNone;
    return i;
  }
  ItemIndex match_past_startup(Bytes size, StreamId stream);
  ItemIndex match_near(Bytes size, StreamId stream);
  ItemIndex match_far(Bytes size, StreamId stream, int sure);
  SiteIndex site_at(ItemIndex item, StreamId stream) const;
  SiteIndex site_here(StreamId stream) const { return site_at(head_, stream); }
  SiteIndex passed_site(Bytes size, StreamId stream) const;
  bool may_be_passed(Bytes size, StreamId stream) const;
  Match match_passed(Bytes size, StreamId stream);
  GroupIndex group_of(SiteIndex site, Bytes size);
  // The first fitting item of the phase from `from` on; kNone if there is none.
  ItemIndex find_from(ItemIndex from, Bytes size, StreamId stream) const;

  IndexedVector<LawIndex, profile::SizeLaw> laws_;
  IndexedVector<SizeIndex, Bytes> sizes_;      // now; kNone if not known ahead
  IndexedVector<SizeIndex, Bytes> planned_;    // the largest in the layout
  std::map<Bytes, SizeIndex> constant_sizes_;  // of constant sizes
  std::vector<profile::Extent> envelope_;      // of the layout
  std::vector<profile::Extent> extents_;       // of the phase; kNone if unknown
  std::vector<profile::Extent> guess_;         // the same, inferred from sizes of requests
  std::vector<profile::Extent> least_seen_;    // in the profile and the run
  std::vector<profile::Extent> most_seen_;
  std::vector<Share> shares_;              // of the phase
  bool told_ = false;                      // extents_ were reported for this microbatch
  bool outgrown_ = false;                  // the current request implies extents beyond envelope_
  bool foretold_ = false;                  // an earlier request has implied the same
  std::vector<profile::Extent> upcoming_;  // the extents beyond envelope_ that requests imply
  IndexedVector<ItemIndex, Shape> shapes_;
  IndexedVector<ItemIndex, DecisionIndex> decision_;  // kNone if the item is no decision
  IndexedVector<ItemIndex, StartupIndex> startup_;    // kNone if it is no start-up request
  IndexedVector<DecisionIndex, ItemIndex> item_;      // of an absent decision, the item before it
  IndexedVector<ItemIndex, std::uint32_t> taken_;     // the iteration in which it was last taken
  std::vector<ItemIndex> by_shape_;  // items of each phase, ordered by (shape, index)
  IndexedVector<PhaseIndex, Phase> phases_;
  Match dynamic_match(SiteIndex site, Bytes size);
  struct Site {  // of one stream
    PointIndex at = kNone;
    StreamId stream = 0;
    GroupIndex first_group = kNone;
    GroupIndex small_group =
        kNone;  // of all small requests; kNone: they have no group of their own
    GroupIndex kept_group = kNone;
    std::vector<Bytes> kept;  // sizes that alone identify a request of the kept group, ascending
    profile::Recurring recurring;
    std::vector<std::pair<profile::DynamicContext, GroupIndex>> contexts;  // ascending
    profile::ContextTracker context;  // the requests before, in the visit of that number
    std::uint32_t visit = 0;
  };

  IndexedVector<GroupIndex, bool> kept_;  // true for groups of kept requests
  IndexedVector<SiteIndex, Site> sites_;
  IndexedVector<PointIndex, SiteIndex> site_at_;  // the first site at each point
  PointIndex visited_ = kNone;                    // the point of the last dynamic request
  std::uint32_t visit_ = 0;                       // the number of visits to points so far
  std::map<trace::PhaseKey, PhaseIndex> index_;   // of phases that are not `other`
  struct Following {                              // identifies an `other` phase
    PhaseIndex phase = kNone;                     // the last phase of another kind, if any
    std::int32_t nth = 0;                         // the number of `other` phases since then
    auto operator<=>(const Following&) const = default;
  };
  std::map<Following, PhaseIndex> others_;
  IndexedVector<PhaseIndex, trace::PhaseKind> kinds_;
  const bool is_startup_;  // `other` phases are identified by their number alone
  std::map<std::int32_t, std::vector<std::int32_t>> microbatches_;  // planned, ascending, by chunk
  // In this iteration:
  std::map<trace::PhaseKey, std::int32_t> seen_;  // occurrences, keyed by occurrence 0
  Following following_;
  struct Assigned {  // the planned microbatch for one of the run
    std::int32_t planned = 0;
    bool in_flight = false;  // its forward has begun, its backward has not
  };
  std::map<std::pair<std::int32_t, std::int32_t>, Assigned> assigned_;  // by chunk, microbatch
  std::uint32_t iteration_ = 1;                                         // number of the iteration
  PhaseIndex phase_ = kNone;
  trace::PhaseKind kind_ = trace::PhaseKind::kOther;
  std::int32_t asked_ = 0;     // requests in this phase
  bool departed_ = false;      // the untrusted phase has departed from the plan
  bool wary_ = false;          // see wary()
  bool makes_states_ = false;  // see trust_all()
  ItemIndex head_{0};
  ItemIndex end_{0};
  ItemIndex resync_ = kNone;  // the item that the next request must fit for the cursor to jump
  int in_a_row_ = 0;          // requests that have fit so far
};

}  // namespace stalloc::runtime
