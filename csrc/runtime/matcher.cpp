#include "runtime/matcher.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace stalloc::runtime {
namespace {

// The distance from the head, in items, in which a displaced request is searched. It is below the
// requests of one layer, so a foreign request does not take its equal from the next layer.
constexpr std::int32_t kLookAhead = 12;

// The same for requests that start-up alone makes: no other request is skipped.
constexpr std::int32_t kStartupLookAhead = 256;

// The number of requests in a row that must fit further on before the cursor jumps there, if
// dynamic requests or new states are expected, whose sizes may equal decisions by chance.
constexpr int kSure = 4;

// A phase that has run in more iterations than this is trusted, even if it departed in all of them.
constexpr std::int32_t kPatience = 3;

// A batch among dynamic requests is at most so many times as large as those before it.
constexpr profile::Extent kMostGrowth = 2;

bool is_pass(trace::PhaseKind kind) {
  return kind == trace::PhaseKind::kForward || kind == trace::PhaseKind::kBackward;
}

// True for a law of one extent that has a value of it for a size.
bool is_affine(const profile::SizeLaw& law) {
  return law.proof != profile::LawProof::kUnexplained && law.terms.size() == 1 && law.step == 1 &&
         law.terms[0].coefficient > 0 && law.terms[0].factors[1] == kNone;
}

// The meta device has no memory: its plans serve others, whose kernels have temporaries of their
// own.
bool made_on_another_device(const plan::Plan& plan) {
  const auto device = plan.info.find("device");
  return device != plan.info.end() && device->second == "meta";
}

}  // namespace

Matcher::Matcher(const plan::Plan& plan, Part part)
    : laws_(plan.laws),
      sizes_(plan.laws.size()),
      phases_(plan.phases.size()),
      is_startup_(part == Part::kStartup) {
  add_phases(plan);
  add_items(plan, part);
  const bool other_device = made_on_another_device(plan);
  for (PhaseIndex p(0); part == Part::kStartup && p < phases_.end_index(); ++p) {
    const trace::PhaseKey& key = plan[p].key;
    const bool is_begin = key.kind == trace::PhaseKind::kOther && key.occurrence == 0;
    phases_[p].trusted = other_device || is_begin || is_pass(key.kind);
    phases_[p].departed = other_device || is_begin;
  }
  add_sites(plan);
  extents_.assign(plan.extent_names.size(), kNone);
  guess_ = upcoming_ = extents_;
  least_seen_ = most_seen_ = plan.extents;
  for (const std::vector<profile::Extent>& row : plan.seen) note_extents(row);
  relayout(plan);
  use_extents(plan.extents, {}, /*told=*/true);
  taken_.resize(shapes_.size(), 0);
  by_shape_.resize(shapes_.size());
  std::iota(by_shape_.begin(), by_shape_.end(), ItemIndex(0));
  for (const Phase& p : phases_) {
    std::sort(by_shape_.begin() + p.begin.number(), by_shape_.begin() + p.end.number(),
              [this](ItemIndex a, ItemIndex b) {
                const auto& x = shapes_[a];
                const auto& y = shapes_[b];
                return x != y ? x < y : a < b;
              });
  }
}

void Matcher::add_items(const plan::Plan& plan, Part part) {
  const bool opens = part == Part::kStartup;
  const std::size_t items =
      plan.decisions.size() + (opens ? plan.startup.size() : plan.persistent.size());
  shapes_.reserve(items);
  decision_.reserve(items);
  startup_.reserve(items);
  item_.reserve(plan.decisions.size());
  const auto add = [&](const auto& r, DecisionIndex decision, StartupIndex startup) {
    shapes_.push_back({size_index(r.law, r.size), r.stream});
    decision_.push_back(decision);
    startup_.push_back(startup);
  };
  std::size_t next = 0;  // of the others
  const auto add_others_after = [&](PhaseIndex phase, DecisionIndex after) {
    const auto come_here = [&](const auto& rows) {
      return next < rows.size() && rows[next].phase == phase && rows[next].after == after;
    };
    for (; opens && come_here(plan.startup); ++next) {
      const plan::StartupRequest& r = plan.startup[next];
      add(r, kNone, StartupIndex(next));
    }
    for (; !opens && come_here(plan.persistent); ++next) {
      add(plan.persistent[next], kNone, kNone);
    }
  };
  DecisionIndex d(0);
  auto absent = plan.absent.begin();
  for (const PhaseIndex p : phases_.indices()) {
    Phase& phase = phases_[p];
    phase.begin = shapes_.end_index();
    add_others_after(p, kNone);
    for (; d.points_into(plan.decisions) && plan[d].phase == p; ++d) {
      const bool is_absent = opens && absent != plan.absent.end() && *absent == d;
      if (is_absent) {
        ++absent;
      } else {
        add(plan[d], d, kNone);
      }
      item_.push_back(shapes_.end_index() - 1);
      add_others_after(p, d);
    }
    phase.end = shapes_.end_index();
    const trace::PhaseKey& key = plan[p].key;
    const bool begins = opens && is_pass(key.kind);
    if (key.kind == trace::PhaseKind::kOther || begins) phase.wary_end = phase.end + 1;
    if (key.kind == trace::PhaseKind::kOptimizer) phase.wary_end = phase.begin + kLookAhead;
  }
}

void Matcher::add_phases(const plan::Plan& plan) {
  Following following;
  for (const PhaseIndex p : indices<PhaseIndex>(plan.phases)) {
    const trace::PhaseKey& key = plan[p].key;
    kinds_.push_back(key.kind);
    if (key.kind == trace::PhaseKind::kOther) {
      others_.emplace(is_startup_ ? Following{kNone, key.occurrence} : following, p);
      ++following.nth;
      continue;
    }
    index_.emplace(key, p);
    following = {p, 0};
    if (key.kind == trace::PhaseKind::kForward) {
      std::vector<std::int32_t>& planned = microbatches_[key.chunk];
      if (std::ranges::find(planned, key.microbatch) == planned.end()) {
        planned.push_back(key.microbatch);
      }
    }
  }
  for (auto& [chunk, planned] : microbatches_) std::ranges::sort(planned);
}

void Matcher::enter_phase(trace::PhaseKind kind, std::int32_t microbatch, std::int32_t chunk) {
  leave_phase();
  kind_ = kind;
  if (kind == trace::PhaseKind::kOther) {
    phase_ = find_other();
    ++following_.nth;
  } else {
    phase_ = find_phase(kind, microbatch, chunk);
    if (!is_startup_) following_ = {phase_ == kNone ? kUnknown : phase_, 0};
  }
  head_ = end_ = ItemIndex(0);
  resync_ = kNone;
  visited_ = kNone;
  if (phase_ == kNone) return;
  Phase& phase = phases_[phase_];
  head_ = phase.begin;
  end_ = phase.end;
  phase.repeated = std::exchange(phase.entered, iteration_) == iteration_;
  if (phase.repeated) std::fill(taken_.begin() + head_.number(), taken_.begin() + end_.number(), 0);
}

PhaseIndex Matcher::find_phase(trace::PhaseKind kind, std::int32_t microbatch, std::int32_t chunk) {
  trace::PhaseKey key{kind, microbatch, chunk, 0};
  key.occurrence = seen_[key]++;
  const bool forward = kind == trace::PhaseKind::kForward;
  if (forward || kind == trace::PhaseKind::kBackward) {
    const auto [at, is_new] = assigned_.try_emplace({chunk, microbatch});
    if (is_new) at->second.planned = planned_microbatch(microbatch, chunk);
    at->second.in_flight = forward;
    key.microbatch = at->second.planned;
  }
  return find_occurrence(key);
}

// The last occurrence that the plan has, up to that of `key`.
PhaseIndex Matcher::find_occurrence(trace::PhaseKey key) const {
  const auto after = index_.upper_bound(key);
  if (after == index_.begin()) return kNone;
  const auto& [found, phase] = *std::prev(after);
  key.occurrence = found.occurrence;
  return found == key ? phase : kNone;
}

PhaseIndex Matcher::find_other() const {
  if (is_startup_) {
    const auto at = others_.find(following_);
    return at == others_.end() ? kNone : at->second;
  }
  const auto after = others_.upper_bound(following_);
  if (after == others_.begin()) return kNone;
  const auto& [found, phase] = *std::prev(after);
  return found.phase == following_.phase ? phase : kNone;
}

// Moves to the phase after another backward if the request is the next one there. True if it moved.
bool Matcher::moves_to_sibling(Bytes size, StreamId stream) {
  const auto is_backward = [this](PhaseIndex p) {
    return p.points_into(kinds_) && kinds_[p] == trace::PhaseKind::kBackward;
  };
  const Phase& here = phases_[phase_];
  if (departed_ || here.departs || !is_backward(following_.phase)) return false;
  for (const auto& [following, other] : others_) {
    const bool is_sibling =
        other != phase_ && is_backward(following.phase) && following.nth + 1 == following_.nth;
    if (!is_sibling) continue;
    Phase& there = phases_[other];
    const ItemIndex at = there.begin + (head_ - here.begin);
    if (at >= there.end || !is_like(at, size, stream) || there.entered == iteration_) continue;
    const auto shape = [this](ItemIndex i) { return shapes_.begin() + i.number(); };
    if (!std::equal(shape(there.begin), shape(at), shape(here.begin))) continue;
    const std::int32_t asked = asked_;
    leave_phase();
    phase_ = other;
    asked_ = asked;
    head_ = at;
    end_ = there.end;
    there.entered = iteration_;
    there.repeated = false;
    std::fill(taken_.begin() + there.begin.number(), taken_.begin() + at.number(), iteration_);
    resync_ = kNone;
    visited_ = kNone;
    return true;
  }
  return false;
}

// The microbatch of the plan whose decisions serve this one.
std::int32_t Matcher::planned_microbatch(std::int32_t microbatch, std::int32_t chunk) {
  const auto planned = microbatches_.find(chunk);
  if (planned == microbatches_.end()) return microbatch;
  const std::vector<std::int32_t>& known = planned->second;
  if (microbatch <= known.back()) return microbatch;
  const auto in_flight = [&](std::int32_t m) {
    return std::ranges::any_of(assigned_, [&](const auto& a) {
      return a.first.first == chunk && a.second.planned == m && a.second.in_flight;
    });
  };
  for (auto m = known.rbegin(); m != known.rend(); ++m) {
    if (!in_flight(*m)) return *m;
  }
  return known.back();
}

void Matcher::end_iteration() {
  leave_phase();
  ++iteration_;
  for (auto& [key, count] : seen_) count = 0;
  assigned_.clear();
  following_ = {};
  kind_ = trace::PhaseKind::kOther;
  head_ = end_ = ItemIndex(0);
  resync_ = kNone;
  makes_states_ = false;
}

void Matcher::leave_phase() {
  if (phase_ == kNone) return;
  Phase& p = phases_[phase_];
  p.trusted = p.trusted || asked_ == p.end - p.begin;
  if (!p.repeated) {
    p.trusted = p.trusted || ++p.runs > kPatience || (p.runs > 1 && asked_ == p.last_asked);
    p.last_asked = asked_;
  }
  p.departed = std::exchange(p.departs, false);
  asked_ = 0;
  departed_ = false;
  wary_ = false;
  phase_ = kNone;
}

Matcher::Match Matcher::search(Bytes size, StreamId stream, bool dynamic) {
  if (phase_ == kNone) return {};
  const SiteIndex site = site_here(stream);
  if (dynamic) return dynamic_match(site, size);
  const bool may_be_state = makes_states_ && kind_ == trace::PhaseKind::kOptimizer &&
                            head_ == phases_[phase_].begin && size < profile::kSmallRequest;
  if (!departed_ && !may_be_state && head_ < end_) {
    // Requests of zero bytes are never made: the cursor skips their items.
    while (!is_free(head_) || size_of(head_) == 0) {
      if (++head_ == end_) break;
    }
    const bool at_head =
        head_ < end_ &&
        (is_like(head_, size, stream) ||
         (site == kNone ? takes_by_position(size, stream) || breaks_a_law(size, stream)
                        : is_usual_batch(size, stream) && takes_by_position(size, stream)));
    if (at_head) return match_head();
    if (std::exchange(outgrown_, false)) {
      Match m = match_head();
      if (!std::exchange(foretold_, false) || !in_step()) m = {};
      m.outgrows = true;
      return m;
    }
  }
  if (kind_ == trace::PhaseKind::kOther && moves_to_sibling(size, stream)) return match_head();
  // If dynamic requests are expected, skipped decisions are not searched: a dynamic request of a
  // common size would match one.
  if (site != kNone) {
    const ItemIndex far = match_far(size, stream, kSure);
    return far == kNone ? dynamic_match(site, size) : match_of(far);
  }
  ++asked_;
  Phase& phase = phases_[phase_];
  if (!phase.departs) wary_ = !phase.departed && head_ < phase.wary_end;
  phase.departs = true;
  departed_ = departed_ || !phase.trusted;
  if (departed_) return {};
  const bool adds = is_first() && kind_ == trace::PhaseKind::kForward;
  ItemIndex found = adds    ? ItemIndex(kNone)
                    : wary_ ? match_past_startup(size, stream)
                            : match_near(size, stream);
  if (found == kNone) found = match_far(size, stream, wary_ || adds ? kSure : 1);
  return found == kNone ? match_passed(size, stream) : match_of(found);
}

// Matches a small request that comes after its site: the first batch of an epoch is fetched after
// requests that other iterations make later. Only kept requests, which need no region.
Matcher::Match Matcher::match_passed(Bytes size, StreamId stream) {
  const GroupIndex group = group_of(passed_site(size, stream), size);
  return {.persistent = group != kNone && kept_[group]};
}

// True if a request may be such a kept one.
bool Matcher::may_be_passed(Bytes size, StreamId stream) const {
  const SiteIndex passed = passed_site(size, stream);
  return passed != kNone && sites_[passed].kept_group != kNone;
}

// The site before the head that a small request may have; kNone if there is none.
Matcher::SiteIndex Matcher::passed_site(Bytes size, StreamId stream) const {
  if (kind_ != trace::PhaseKind::kOther || size >= profile::kSmallRequest) return kNone;
  const ItemIndex first = std::max(phases_[phase_].begin, head_ - kLookAhead);
  SiteIndex passed = kNone;
  for (ItemIndex i = head_; passed == kNone && i > first; --i) passed = site_at(i, stream);
  return passed;
}

Matcher::Match Matcher::dynamic_match(SiteIndex site, Bytes size) {
  const GroupIndex group = group_of(site, size);
  if (group != kNone && kept_[group]) return {.persistent = true, .by_place = true};
  return {.group = group};
}

void Matcher::add_sites(const plan::Plan& plan) {
  for (const plan::DynamicGroup& g : plan.groups) kept_.push_back(plan.is_kept(g));
  site_at_.assign(shapes_.size() + plan.phases.size(), kNone);
  for (const GroupIndex g : indices<GroupIndex>(plan.groups)) {
    const plan::DynamicGroup& group = plan[g];
    const ItemIndex head =
        group.after == kNone ? phases_[group.phase].begin : item_[group.after] + 1;
    const PointIndex at = point(group.phase, head);
    if (sites_.empty() || sites_.back().at != at || sites_.back().stream != group.stream) {
      if (site_at_[at] == kNone) site_at_[at] = sites_.end_index();
      sites_.push_back({.at = at,
                        .stream = group.stream,
                        .first_group = g,
                        .small_group = kNone,
                        .kept_group = kNone,
                        .kept = {},
                        .recurring = {},
                        .contexts = {},
                        .context = {}});
    }
    Site& site = sites_.back();
    for (const profile::DynamicContext& context : group.contexts) {
      if (context.size == profile::DynamicContext::kSmall) site.small_group = g;
      profile::add_recurring(site.recurring, context);
    }
    if (kept_[g]) {
      site.kept_group = g;
      for (const profile::DynamicContext& context : group.contexts) {
        const bool is_size =
            context.size > 0 && context.before == profile::DynamicContext::kIgnored;
        if (is_size) site.kept.push_back(context.size);
      }
    }
    if (site.small_group == g) continue;  // selected by the size alone
    for (const profile::DynamicContext& context : group.contexts) {
      site.contexts.emplace_back(context, g);
    }
  }
  // A persistent item does not end its site.
  for (const PhaseIndex p : phases_.indices()) {
    for (ItemIndex i = phases_[p].begin; i < phases_[p].end; ++i) {
      const PointIndex at = point(p, i);
      if (decision_[i] == kNone && site_at_[at + 1] == kNone) {
        site_at_[at + 1] = site_at_[at];
      }
    }
  }
  for (Site& site : sites_) {
    std::ranges::sort(site.contexts);
    std::ranges::sort(site.kept);
    profile::sort_recurring(site.recurring);
  }
}

// The site of the stream before an item.
Matcher::SiteIndex Matcher::site_at(ItemIndex item, StreamId stream) const {
  SiteIndex p = site_at_[point(phase_, item)];
  if (p == kNone) return kNone;
  const PointIndex first = sites_[p].at;
  for (; p < sites_.end_index(); ++p) {
    const Site& site = sites_[p];
    if (site.at != first) return kNone;
    if (site.stream == stream) return p;
  }
  return kNone;
}

Matcher::GroupIndex Matcher::group_of(SiteIndex site, Bytes size) {
  if (site == kNone) return kNone;
  Site& here = sites_[site];
  if (here.at != visited_) ++visit_;
  visited_ = here.at;
  if (std::exchange(here.visit, visit_) != visit_) here.context.restart();
  const profile::DynamicContext context = here.context.next(here.recurring, size);
  const bool small_apart = here.small_group != kNone;
  if (profile::size_alone_tells(size, context, small_apart) &&
      std::ranges::binary_search(here.kept, size)) {
    return here.kept_group;
  }
  if (size < profile::kSmallRequest && small_apart) return here.small_group;
  for (int depth = 3; depth >= 1; --depth) {
    const std::pair known{profile::shortened(context, depth), GroupIndex(0)};
    const auto it = std::ranges::lower_bound(here.contexts, known);
    if (it != here.contexts.end() && it->first == known.first) return it->second;
  }
  return here.first_group;
}

// The first iteration lacks requests that start-up alone makes: kernels are compiled and tried
// once.
Matcher::ItemIndex Matcher::match_past_startup(Bytes size, StreamId stream) {
  ItemIndex i = head_;
  while (i < end_ && startup_[i] != kNone && i < head_ + kStartupLookAhead) ++i;
  return i > head_ && i < end_ && fits(i, size, stream) ? take(i) : ItemIndex(kNone);
}

Matcher::ItemIndex Matcher::match_near(Bytes size, StreamId stream) {
  const ItemIndex begin = phases_[phase_].begin;
  // Oldest first: skipped requests come in their own order.
  for (ItemIndex i = std::max(begin, head_ - kLookAhead); i < head_; ++i) {
    if (fits(i, size, stream)) return take(i);
  }
  for (ItemIndex i = head_ + 1; i < std::min(end_, head_ + kLookAhead); ++i) {
    if (fits(i, size, stream)) return take(i);
  }
  return kNone;
}

Matcher::ItemIndex Matcher::match_far(Bytes size, StreamId stream, int sure) {
  if (resync_ != kNone && resync_ < end_ && fits(resync_, size, stream)) {
    if (++in_a_row_ >= sure) return take(resync_);
    ++resync_;
    return kNone;
  }
  in_a_row_ = 0;
  const ItemIndex far = find_from(head_, size, stream);
  resync_ = far == kNone ? kNone : far + 1;
  return kNone;
}

// Several entries may have the same size, for example if rows and tokens are equally many.
Matcher::ItemIndex Matcher::find_from(ItemIndex from, Bytes size, StreamId stream) const {
  const auto first = by_shape_.begin() + phases_[phase_].begin.number();
  const auto last = by_shape_.begin() + end_.number();
  ItemIndex found = kNone;
  for (const SizeIndex s : sizes_.indices()) {
    if (sizes_[s] != size) continue;
    const Shape shape{s, stream};
    const auto it = std::lower_bound(first, last, from, [&](ItemIndex i, ItemIndex f) {
      const Shape& other = shapes_[i];
      return other != shape ? other < shape : i < f;
    });
    const bool is_one = it != last && shapes_[*it] == shape;
    if (is_one && (found == kNone || *it < found)) found = *it;
  }
  return found;
}

// See Note [Sizes].

Matcher::SizeIndex Matcher::size_index(profile::LawIndex law, Bytes size) {
  if (law != kNone) return size_index(law);
  const auto [at, is_new] = constant_sizes_.try_emplace(size, sizes_.end_index());
  if (is_new) sizes_.push_back(size);
  return at->second;
}

void Matcher::relayout(const plan::Plan& plan) {
  envelope_ = plan.extents;
  planned_ = sizes_;
  std::ranges::fill_n(planned_.begin(), laws_.end_index().number(), 0);
  const auto add = [&](const auto& rows) {
    for (const auto& r : rows) {
      if (r.law == kNone) continue;
      Bytes& size = planned_[size_index(r.law)];
      size = std::max(size, r.size);
    }
  };
  add(plan.decisions);
  add(plan.persistent);
  add(plan.startup);
}

// True if the known extents do not determine the size of the law's requests in this phase.
bool Matcher::is_unknown(const profile::SizeLaw& law) const {
  if (law.proof == profile::LawProof::kUnexplained) return true;
  const bool is_other = phase_ != kNone && kind_ == trace::PhaseKind::kOther;
  return law.source != profile::LawSource::kOwn && is_other;
}

void Matcher::use_extents(std::span<const profile::Extent> extents, std::span<const Share> shares,
                          bool told) {
  told_ = told;
  outgrown_ = false;
  shares_.assign(shares.begin(), shares.end());
  std::ranges::copy(extents, extents_.begin());
  if (told) note_extents(extents);
  std::ranges::fill(guess_, kNone);
  std::ranges::fill(upcoming_, kNone);
  for (const LawIndex l : laws_.indices()) {
    sizes_[size_index(l)] = is_unknown(laws_[l]) ? kNone : profile::evaluate(laws_[l], extents_);
  }
}

// True if the request matches the item at the head, whose size is not known ahead.
bool Matcher::takes_by_position(Bytes size, StreamId stream) {
  const Shape& head = shapes_[head_];
  if (head.stream != stream) return false;
  const Bytes expected = sizes_[head.size];
  if (expected != kNone) return !shares_.empty() && is_share(expected, size);
  const profile::SizeLaw& law = laws_[LawIndex(head.size.number())];
  const bool is_free_size = law.proof == profile::LawProof::kUnexplained ||
                            (told_ && law.source == profile::LawSource::kOwn);
  return is_free_size ? size <= planned_[head.size] : infer(law, size);
}

void Matcher::note_extents(std::span<const profile::Extent> extents) {
  for (std::size_t i = 0; i < extents.size(); ++i) {
    if (extents[i] < 0) continue;
    least_seen_[i] = std::min(least_seen_[i], extents[i]);
    most_seen_[i] = std::max(most_seen_[i], extents[i]);
  }
}

// The value of the only extent of an affine law that gives this size.
std::optional<profile::Extent> Matcher::solve(const profile::SizeLaw& law, Bytes size) {
  Bytes scaled = 0;
  if (__builtin_mul_overflow(size, law.divisor, &scaled)) return std::nullopt;
  scaled -= law.constant;
  if (scaled < 0 || scaled % law.terms[0].coefficient != 0) return std::nullopt;
  return scaled / law.terms[0].coefficient;
}

// True if the request is data of the upcoming microbatch by its position and, among dynamic
// requests of the same rows, by their number: one as in batches so far, or up to kMostGrowth times
// as large.
bool Matcher::is_usual_batch(Bytes size, StreamId stream) const {
  const Shape& head = shapes_[head_];
  if (head.stream != stream || head.size.number() >= laws_.end_index().number()) return false;
  const profile::SizeLaw& law = laws_[LawIndex(head.size.number())];
  if (sizes_[head.size] != kNone || !is_affine(law)) return false;
  const std::size_t name = law.terms[0].factors[0].position();
  const std::optional<profile::Extent> value = solve(law, size);
  return value && *value >= least_seen_[name] && *value / kMostGrowth <= most_seen_[name];
}

// Solves an affine law of one extent for this extent. Takes any size for another law: batches of a
// budget follow a law of two extents, and the next one may be larger than the layout of the last.
// False if the law cannot give the size.
bool Matcher::infer(const profile::SizeLaw& law, Bytes size) {
  const SizeIndex head = shapes_[head_].size;
  if (!is_affine(law)) {
    outgrown_ = size > planned_[head];
    return !outgrown_;
  }
  const std::size_t name = law.terms[0].factors[0].position();
  const std::optional<profile::Extent> solved = solve(law, size);
  if (!solved) return false;
  const profile::Extent value = *solved;
  if (value > envelope_[name]) {
    outgrow(name, value);
    return false;
  }
  // Another request has told a larger extent, so one of the two is not in the plan. An epoch begins
  // with the order of its samples, then with two batches instead of one. The first one stays, so it
  // must not lie where a temporary of the second one would.
  const bool contradicts = law.source == profile::LawSource::kUpcoming && value < upcoming_[name];
  if (contradicts && may_be_passed(size, shapes_[head_].stream)) return false;
  guess_[name] = value;
  for (const LawIndex l : laws_.indices()) {
    const profile::SizeLaw& other = laws_[l];
    Bytes& known = sizes_[size_index(l)];
    const bool follows = other.source == law.source || !is_unknown(other);
    if (other.proof == profile::LawProof::kUnexplained || known != kNone || !follows) continue;
    known = profile::evaluate(other, guess_);
  }
  return true;
}

void Matcher::outgrow(std::size_t name, profile::Extent value) {
  outgrown_ = true;
  foretold_ = upcoming_[name] == value;
  upcoming_[name] = value;
}

// True if the request matches the item at the head although the law gives another size.
bool Matcher::breaks_a_law(Bytes size, StreamId stream) const {
  const Shape& head = shapes_[head_];
  if ((laws_.empty() && shares_.empty()) || !is_pass(kind_) || outgrown_ || head.stream != stream ||
      size > planned_[head.size]) {
    return false;
  }
  const ItemIndex begin = std::max(phases_[phase_].begin, head_ - kLookAhead);
  for (ItemIndex i = begin; i < std::min(end_, head_ + kLookAhead); ++i) {
    if (fits(i, size, stream)) return false;
  }
  return true;
}

bool Matcher::is_share(Bytes expected, Bytes size) const {
  __int128 factor = 1;
  __int128 divisor = 1;
  const auto is = [&](__int128 f, __int128 d) { return size * d == expected * f; };
  for (const Share& s : shares_) {
    if (is(s.factor, s.divisor)) return true;
    if (divisor < (__int128{1} << 40)) {
      factor *= s.factor;
      divisor *= s.divisor;
    }
  }
  return is(factor, divisor);
}

}  // namespace stalloc::runtime
