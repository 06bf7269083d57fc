#include "solve/exact/exact_search.h"

#include <algorithm>
#include <array>
#include <bit>
#include <iterator>
#include <limits>
#include <map>
#include <numeric>
#include <utility>

namespace stalloc::solve {
namespace {

constexpr std::size_t kMaxRemembered = std::size_t{1} << 20;  // 40 MB
constexpr std::int64_t kPollEvery = 64;  // nodes between two looks at the clock
constexpr std::int64_t kCyclesToForget = 4;
// A node looks at all buffers of its part. That takes as long as a placement for so many, about.
constexpr std::int64_t kBuffersPerPlacement = 4;
// As many looks of the state take as long as a placement, about. They are paid in such portions.
constexpr std::int64_t kLooksPerPlacement = 256;
constexpr std::int64_t kPlacementsPerPortion = 64;

// Luby's sequence: 1 1 2 1 1 2 4 1 1 2 1 1 2 4 8 ... Long runs are rare but come again and again.
std::int64_t luby(std::int64_t i) {
  auto k = static_cast<std::uint64_t>(i);
  while (!std::has_single_bit(k + 1)) k -= std::bit_floor(k) - 1;
  return static_cast<std::int64_t>((k + 1) / 2);
}

}  // namespace

ExactSearch::ExactSearch(const ExactModel& model)
    : model_(model), state_(model), rank_(model.buffers()) {}

// Runs all strategies repeatedly. No one can tell beforehand which strategy is quick on an
// instance, and the quick ones are a thousand times quicker. Failed parts are remembered
// throughout. With an even focus, each cycle has twice the nodes of the one before. On hard
// instances, many short runs succeed sooner than a long one: cycles have lengths by Luby's
// sequence.
Verdict ExactSearch::run(Units capacity, std::int64_t nodes, const Budget& budget, Focus focus) {
  using enum Branching;
  static constexpr std::array<Strategy, 9> kEven = {{{kFewestTightest, "WAT"},
                                                     {kFewest, "WAT"},
                                                     {kLowest, "TAW"},
                                                     {kFewestTightest, "TAW"},
                                                     {kFewest, "TAW"},
                                                     {kLowest, "TWA"},
                                                     {kFewestTightest, "TWA"},
                                                     {kFewest, "TWA"},
                                                     {kLowest, "WAT"}}};
  static constexpr std::array<Strategy, 9> kHard = {{{kFewest, "WAT"},
                                                     {kFewest, "TWA"},
                                                     {kLowest, "WAT"},
                                                     {kFewest, "WAT"},
                                                     {kFewest, "TWA"},
                                                     {kFewest, "WAT"},
                                                     {kFewest, "TWA"},
                                                     {kLowest, "TWA"},
                                                     {kFewest, "WAT"}}};
  const bool is_even = focus == Focus::kEven;
  const std::array<Strategy, 9>& strategies = is_even ? kEven : kHard;
  if (model_.load > capacity) return Verdict::kInfeasible;
  capacity_ = std::min(capacity, model_.total);
  // A part that fails with a capacity also fails with less.
  if (capacity_ > remembered_capacity_) failed_.clear();
  remembered_capacity_ = capacity_;
  budget_ = &budget;
  expired_ = budget.expired();
  state_.limit_looks(most_looks());
  state_.forget_failures();

  const std::int64_t last = nodes_ + std::min(nodes, std::numeric_limits<std::int64_t>::max() / 4);
  const std::int64_t shortest = 2 * model_.buffers() + 2;
  std::int64_t doubled = shortest;
  for (std::int64_t cycle = 1;; ++cycle, doubled = std::min(2 * doubled, last)) {
    // Old failures mislead the search once it has been everywhere.
    if (!is_even && cycle % kCyclesToForget == 0) state_.forget_failures();
    const std::int64_t step = is_even ? doubled : shortest * luby(cycle);
    for (const Strategy& strategy : strategies) {
      branching_ = strategy.branching;
      rank(strategy.keys);
      limit_ = std::min(nodes_ + step, last);
      const Verdict verdict = restart();
      if (verdict != Verdict::kUnknown) return verdict;
      if (nodes_ >= last || expired_) return Verdict::kUnknown;
    }
  }
}

void ExactSearch::rank(std::string_view keys) {
  const auto compare = [&](int a, int b) {
    for (const char key : keys) {
      const double x = measure(key, a);
      const double y = measure(key, b);
      if (x != y) return x > y;
    }
    return model_.twin_rank[a] < model_.twin_rank[b];
  };
  std::vector<int> order(model_.buffers());
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), compare);
  // Twins are ordered by the rank that canonical layouts require.
  std::map<int, std::vector<int>> places;
  for (int k = 0; k < model_.buffers(); ++k) places[model_.twins[order[k]]].push_back(k);
  for (const auto& [twins, at] : places) {
    std::vector<int> members;
    for (const int k : at) members.push_back(order[k]);
    std::sort(members.begin(), members.end(),
              [&](int a, int b) { return model_.twin_rank[a] < model_.twin_rank[b]; });
    for (std::size_t k = 0; k < at.size(); ++k) rank_[members[k]] = at[k];
  }
}

double ExactSearch::measure(char key, int buffer) const {
  const double width = static_cast<double>(model_.width[buffer]);
  if (key == 'W') return width;
  if (key == 'T') return static_cast<double>(model_.busiest[buffer]);
  return width * static_cast<double>(model_.size[buffer]);
}

Verdict ExactSearch::restart() {
  const bool fits = state_.reset(capacity_);
  spend_looks();
  if (expired_) return Verdict::kUnknown;
  if (!fits) return Verdict::kInfeasible;
  Part all{.first = 0, .count = model_.sections(), .closed = true, .buffers = {}};
  all.buffers.resize(model_.buffers());
  std::iota(all.buffers.begin(), all.buffers.end(), 0);
  const Verdict verdict = solve_parts(split(all));
  if (verdict == Verdict::kFound) {
    offsets_.clear();
    for (int i = 0; i < model_.buffers(); ++i) offsets_.push_back(state_.floor(i));
  }
  return verdict;
}

Verdict ExactSearch::solve_parts(const std::vector<Part>& parts) {
  for (const Part& part : parts) {
    const Verdict verdict = solve(part);
    if (verdict != Verdict::kFound) return verdict;
  }
  return Verdict::kFound;
}

// After kFound the buffers keep their offsets; otherwise the state is as before.
Verdict ExactSearch::solve(const Part& part) {
  ExactState::Hash hash;
  bool is_empty = true;
  for (const int i : part.buffers) {
    if (state_.is_placed(i)) continue;
    is_empty = false;
    hash.low += state_.hash(i).low;
    hash.high += state_.hash(i).high;
  }
  if (is_empty) return Verdict::kFound;
  if (failed_.contains(hash)) return Verdict::kInfeasible;
  budget_->spend(1 + std::ssize(part.buffers) / kBuffersPerPlacement);
  if (++nodes_ % kPollEvery == 0) expired_ = budget_->expired();
  if (nodes_ > limit_ || expired_) return Verdict::kUnknown;

  const std::size_t entry = state_.mark();
  Verdict verdict = Verdict::kInfeasible;
  do {
    const int i = choose(part);
    const std::size_t mark = state_.mark();
    if (state_.place(i)) {
      verdict = falls_apart(i) ? solve_parts(split(part)) : solve(part);
      if (verdict == Verdict::kFound) return verdict;
    }
    state_.undo(mark);
    if (verdict == Verdict::kUnknown) break;
    const bool is_barred = state_.bar(i);
    spend_looks();
    if (expired_) verdict = Verdict::kUnknown;
    if (expired_ || !is_barred) break;
  } while (true);
  state_.undo(entry);
  if (verdict == Verdict::kInfeasible && failed_.size() < kMaxRemembered) failed_.insert(hash);
  return verdict;
}

// A node may look at many sections, and a buffer be barred many times at one node.
void ExactSearch::spend_looks() {
  const std::int64_t placements = (state_.looks() - paid_looks_) / kLooksPerPlacement;
  if (placements >= kPlacementsPerPortion || state_.is_exhausted()) {
    paid_looks_ += placements * kLooksPerPlacement;
    budget_->spend(placements);
    expired_ = expired_ || state_.is_exhausted() || budget_->expired();
  }
  state_.limit_looks(most_looks());
}

// The looks of the state that the work pays for.
std::int64_t ExactSearch::most_looks() const {
  constexpr std::int64_t kUnlimited = std::numeric_limits<std::int64_t>::max();
  const Work* work = budget_->work;
  if (!work || work->limit >= kUnlimited / kLooksPerPlacement / 2) return kUnlimited;
  const std::int64_t left = std::max<std::int64_t>(work->limit - work->done, 1);
  return paid_looks_ + left * kLooksPerPlacement;
}

bool ExactSearch::falls_apart(int buffer) const {
  for (int k = 0; k + 1 < model_.count[buffer]; ++k) {
    if (!state_.is_crossed(model_.section(buffer, k))) return true;
  }
  return false;
}

// Cuts a part at each boundary between sections that no unplaced buffer crosses.
std::vector<ExactSearch::Part> ExactSearch::split(const Part& part) const {
  const int sections = model_.sections();
  int origin = part.first;
  bool closed = part.closed;
  for (int k = 0; closed && k < part.count; ++k) {
    const int s = (part.first + k) % sections;
    if (state_.is_crossed(s)) continue;
    origin = (s + 1) % sections;
    closed = false;
  }
  if (closed) return {part};
  std::vector<Part> parts(1, Part{.first = origin, .count = 0, .closed = false, .buffers = {}});
  std::vector<int> part_at(sections);
  for (int k = 0; k < part.count; ++k) {
    const int s = (origin + k) % sections;
    ++parts.back().count;
    part_at[s] = static_cast<int>(parts.size()) - 1;
    if (!state_.is_crossed(s) && k + 1 < part.count) {
      parts.push_back({.first = (s + 1) % sections, .count = 0, .closed = false, .buffers = {}});
    }
  }
  for (const int i : part.buffers) {
    if (!state_.is_placed(i)) parts[part_at[model_.first[i]]].buffers.push_back(i);
  }
  return parts;
}

// A buffer below which no unplaced neighbour fits.
int ExactSearch::choose(const Part& part) {
  const auto is_before = [&](int a, int b) {
    if (b < 0 || state_.floor(a) != state_.floor(b)) {
      return b < 0 || state_.floor(a) < state_.floor(b);
    }
    return rank_[a] < rank_[b];
  };
  int best = -1;
  if (branching_ == Branching::kLowest) {
    for (const int i : part.buffers) {
      if (!state_.is_placed(i) && is_before(i, best)) best = i;
    }
    return best;
  }
  const int section = choose_section(part);
  for (const int i : state_.unplaced(section)) {
    if (is_before(i, best)) best = i;
  }
  for (int below = best; below >= 0;) {  // a buffer that fits below goes first
    best = below;
    below = -1;
    for (const int j : model_.neighbours(best)) {
      if (state_.is_placed(j) || state_.top(j) > state_.floor(best)) continue;
      if (is_before(j, below)) below = j;
    }
  }
  return best;
}

int ExactSearch::choose_section(const Part& part) {
  int best = -1;
  double best_choices = 0;
  Units best_slack = 0;
  for (int k = 0; k < part.count; ++k) {
    const int s = (part.first + k) % model_.sections();
    const ExactState::Section& section = state_.section(s);
    if (section.unplaced == 0) continue;
    const bool is_weighed = branching_ == Branching::kFewest;
    const double choices = section.candidates / (is_weighed ? state_.failures(s) : 1);
    const Units slack = is_weighed ? 0 : section.slack;
    if (best >= 0 && choices > best_choices) continue;
    if (best >= 0 && choices == best_choices && slack >= best_slack) continue;
    best = s;
    best_choices = choices;
    best_slack = slack;
  }
  return best;
}

}  // namespace stalloc::solve
