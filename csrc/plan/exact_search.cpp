#include "plan/exact_search.h"

#include <algorithm>
#include <array>
#include <limits>
#include <map>
#include <numeric>
#include <utility>

namespace stalloc {
namespace {

constexpr std::size_t kMaxRemembered = std::size_t{1} << 20;  // 40 MB
constexpr std::int64_t kPollEvery = 64;  // nodes between two looks at the clock
constexpr Units kNowhere = std::numeric_limits<Units>::max();

std::uint64_t mix(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15ull;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

}  // namespace

ExactSearch::ExactSearch(const ExactModel& model)
    : model_(model),
      states_(model.buffers()),
      keys_(model.buffers()),
      sections_(model.sections()),
      stacks_(model.sections()),
      crossing_(model.sections()),
      weight_(model.sections(), 1),
      rank_(model.buffers()),
      is_dirty_(model.sections()) {
  for (int s = 0; s < model.sections(); ++s) {
    stacks_[s].assign(model.members(s).begin(), model.members(s).end());
  }
}

// Runs through the strategies again and again, each time with twice the nodes: which of them is
// quick on an instance cannot be told beforehand, and the quick ones are quicker by factors of a
// thousand. Failed parts are remembered throughout.
Verdict ExactSearch::run(Units capacity, std::int64_t nodes, const Budget& budget) {
  static constexpr std::array<Strategy, 9> kStrategies = {{{Branching::kFewestTightest, "WAT"},
                                                           {Branching::kFewest, "WAT"},
                                                           {Branching::kLowest, "TAW"},
                                                           {Branching::kFewestTightest, "TAW"},
                                                           {Branching::kFewest, "TAW"},
                                                           {Branching::kLowest, "TWA"},
                                                           {Branching::kFewestTightest, "TWA"},
                                                           {Branching::kFewest, "TWA"},
                                                           {Branching::kLowest, "WAT"}}};
  if (model_.load > capacity) return Verdict::kInfeasible;
  capacity_ = std::min(capacity, model_.total);
  if (capacity_ != remembered_capacity_) failed_.clear();
  remembered_capacity_ = capacity_;
  budget_ = &budget;
  std::fill(weight_.begin(), weight_.end(), 1);

  const std::int64_t last = nodes_ + std::min(nodes, std::numeric_limits<std::int64_t>::max() / 4);
  for (std::int64_t step = 2 * model_.buffers() + 2;; step *= 2) {
    for (const Strategy& strategy : kStrategies) {
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
  // Twins share out their places by the rank that canonical layouts want them in.
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
  trail_.clear();
  blocked_.clear();
  forget_work();
  std::fill(crossing_.begin(), crossing_.end(), 0);
  for (int i = 0; i < model_.buffers(); ++i) {
    states_[i] = {};
    if (model_.fixed[i] >= 0) {
      states_[i].floor = model_.fixed[i];
      if (model_.fixed[i] > capacity_ - model_.size[i]) return Verdict::kInfeasible;
    }
    keys_[i] = states_[i].floor;
    rehash(i);
    touch(i);
    raised_.push_back(i);
    for (int k = 0; k + 1 < model_.count[i]; ++k) ++crossing_[model_.section(i, k)];
  }
  if (!propagate()) return Verdict::kInfeasible;
  Part all{.first = 0, .count = model_.sections(), .closed = true, .buffers = {}};
  all.buffers.resize(model_.buffers());
  std::iota(all.buffers.begin(), all.buffers.end(), 0);
  const Verdict verdict = solve_parts(split(all));
  if (verdict == Verdict::kFound) {
    offsets_.clear();
    for (const State& state : states_) offsets_.push_back(state.floor);
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

// On kFound the buffers stay where they are; else everything is as it was before.
Verdict ExactSearch::solve(const Part& part) {
  Hash hash;
  bool is_empty = true;
  for (const int i : part.buffers) {
    if (states_[i].placed) continue;
    is_empty = false;
    hash.low += states_[i].hash.low;
    hash.high += states_[i].hash.high;
  }
  if (is_empty) return Verdict::kFound;
  if (failed_.contains(hash)) return Verdict::kInfeasible;
  if (++nodes_ % kPollEvery == 0) expired_ = budget_->expired();
  if (nodes_ > limit_ || expired_) return Verdict::kUnknown;

  const std::size_t entry = trail_.size();
  Verdict verdict = Verdict::kInfeasible;
  do {
    const int i = choose(part);
    const std::size_t mark = trail_.size();
    if (place(i)) {
      verdict = falls_apart(i) ? solve_parts(split(part)) : solve(part);
      if (verdict == Verdict::kFound) return verdict;
    }
    undo(mark);
    if (verdict == Verdict::kUnknown) break;
    if (!bar(i)) break;
  } while (true);
  undo(entry);
  if (verdict == Verdict::kInfeasible && failed_.size() < kMaxRemembered) failed_.insert(hash);
  return verdict;
}

bool ExactSearch::falls_apart(int buffer) const {
  for (int k = 0; k + 1 < model_.count[buffer]; ++k) {
    if (crossing_[model_.section(buffer, k)] == 0) return true;
  }
  return false;
}

// Cuts a part wherever no unplaced buffer crosses from one section to the next.
std::vector<ExactSearch::Part> ExactSearch::split(const Part& part) const {
  const int sections = model_.sections();
  int origin = part.first;
  bool closed = part.closed;
  for (int k = 0; closed && k < part.count; ++k) {
    const int s = (part.first + k) % sections;
    if (crossing_[s] > 0) continue;
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
    if (crossing_[s] == 0 && k + 1 < part.count) {
      parts.push_back({.first = (s + 1) % sections, .count = 0, .closed = false, .buffers = {}});
    }
  }
  for (const int i : part.buffers) {
    if (!states_[i].placed) parts[part_at[model_.first[i]]].buffers.push_back(i);
  }
  return parts;
}

// A buffer below which no unplaced neighbour fits.
int ExactSearch::choose(const Part& part) {
  const auto is_before = [&](int a, int b) {
    return b < 0 || states_[a].floor < states_[b].floor ||
           (states_[a].floor == states_[b].floor && rank_[a] < rank_[b]);
  };
  int best = -1;
  if (branching_ == Branching::kLowest) {
    for (const int i : part.buffers) {
      if (!states_[i].placed && is_before(i, best)) best = i;
    }
    return best;
  }
  int tightest = -1;
  double least = 0;
  for (int k = 0; k < part.count; ++k) {
    const int s = (part.first + k) % model_.sections();
    if (sections_[s].is_stale) evaluate(s);
    const Section& section = sections_[s];
    if (section.unplaced == 0) continue;
    const double weight = branching_ == Branching::kFewest ? weight_[s] : 1;
    const double choices = section.candidates / weight;
    if (tightest >= 0 && choices > least) continue;
    if (tightest >= 0 && choices == least &&
        (branching_ == Branching::kFewest || section.slack >= sections_[tightest].slack)) {
      continue;
    }
    least = choices;
    tightest = s;
  }
  for (int k = sections_[tightest].unplaced - 1; k >= 0; --k) {
    const int i = stacks_[tightest][k];
    if (best >= 0 && states_[i].floor > states_[best].floor) break;
    if (is_before(i, best)) best = i;
  }
  for (int below = best; below >= 0;) {  // what fits below goes first
    best = below;
    below = -1;
    for (const int j : model_.neighbours(best)) {
      if (keys_[j] < 0 || keys_[j] + model_.size[j] > keys_[best]) continue;
      if (is_before(j, below)) below = j;
    }
  }
  return best;
}

bool ExactSearch::place(int buffer) {
  const Units floor = states_[buffer].floor;
  const Units top = floor + model_.size[buffer];
  change(buffer).placed = true;
  keys_[buffer] = -1;
  touch(buffer);
  for (int k = 0; k + 1 < model_.count[buffer]; ++k) --crossing_[model_.section(buffer, k)];
  bool is_possible = true;
  for (const int j : model_.neighbours(buffer)) {
    if (keys_[j] < 0) continue;
    const bool unblocks = states_[j].blocked && floor < states_[j].barred + model_.size[j];
    if (top > states_[j].support || unblocks) {
      State& state = change(j);
      state.support = std::max(state.support, top);
      if (unblocks) {
        set_blocked(j, false);
        rehash(j);
      }
    }
    is_possible = raise(j, states_[j].support);
    if (is_possible && model_.twins[j] == model_.twins[buffer] && !states_[j].blocked &&
        states_[j].floor == top && model_.twin_rank[j] < model_.twin_rank[buffer]) {
      is_possible = bar_here(j);
    }
    if (!is_possible) break;
  }
  return is_possible ? propagate() : (forget_work(), false);
}

bool ExactSearch::bar(int buffer) {
  return bar_here(buffer) ? propagate() : (forget_work(), false);
}

// The buffer does not lie at its floor: a neighbour is in the way there.
bool ExactSearch::bar_here(int buffer) {
  if (model_.fixed[buffer] >= 0) return false;
  State& state = change(buffer);
  state.barred = state.floor;
  if (!state.blocked) set_blocked(buffer, true);
  rehash(buffer);
  return raise_blocked(buffer);
}

// What is blocked lies above one of the neighbours that can still block it.
bool ExactSearch::raise_blocked(int buffer) {
  const Units reach = states_[buffer].barred + model_.size[buffer];
  Units lowest = kNowhere;
  int witness = -1;
  for (const int j : model_.neighbours(buffer)) {
    if (keys_[j] < 0 || keys_[j] >= reach || keys_[j] + model_.size[j] >= lowest) continue;
    lowest = keys_[j] + model_.size[j];
    witness = j;
  }
  if (witness < 0) return false;
  if (witness != states_[buffer].witness) change(buffer).witness = witness;
  return raise(buffer, std::max(lowest, states_[buffer].support));
}

bool ExactSearch::raise(int buffer, Units floor) {
  if (floor <= states_[buffer].floor) return true;
  if (model_.fixed[buffer] >= 0 || floor > capacity_ - model_.size[buffer]) return false;
  change(buffer).floor = floor;
  keys_[buffer] = floor;
  rehash(buffer);
  touch(buffer);
  raised_.push_back(buffer);
  return true;
}

// Draws all conclusions from floors that rose. False: there is no layout this way.
bool ExactSearch::propagate() {
  while (true) {
    while (!raised_.empty()) {
      const int i = raised_.back();
      raised_.pop_back();
      if (!propagate_from(i)) return forget_work(), false;
    }
    if (dirty_.empty()) return true;
    const int s = dirty_.back();
    dirty_.pop_back();
    is_dirty_[s] = false;
    if (!evaluate(s)) {
      weight_[s] += 1;
      return forget_work(), false;
    }
  }
}

bool ExactSearch::propagate_from(int buffer) {
  if (const int j = model_.next_twin[buffer];
      j >= 0 && !raise(j, states_[buffer].floor + model_.size[buffer])) {
    return false;
  }
  for (const int j : blocked_) {
    if (states_[j].witness == buffer && !raise_blocked(j)) return false;
  }
  return true;
}

bool ExactSearch::evaluate(int section) {
  std::vector<int>& stack = stacks_[section];
  for (std::size_t k = 1; k < stack.size(); ++k) {  // nearly sorted from the last time
    const int i = stack[k];
    const Units mine = keys_[i];
    std::size_t to = k;
    for (; to > 0 && keys_[stack[to - 1]] < mine; --to) stack[to] = stack[to - 1];
    stack[to] = i;
  }
  Section& result = sections_[section];
  result = {.slack = capacity_, .candidates = 0, .unplaced = 0, .is_stale = false};
  Units sum = 0;
  for (const int i : stack) {
    if (keys_[i] < 0) break;
    ++result.unplaced;
    sum += model_.size[i];
    result.slack = std::min(result.slack, capacity_ - keys_[i] - sum);
  }
  for (int k = result.unplaced - 1; k >= 0; --k) {
    if (keys_[stack[k]] > capacity_ - sum) break;
    ++result.candidates;
  }
  return result.slack >= 0;
}

ExactSearch::State& ExactSearch::change(int buffer) {
  trail_.push_back({buffer, states_[buffer]});
  return states_[buffer];
}

void ExactSearch::set_blocked(int buffer, bool blocked) {
  states_[buffer].blocked = blocked;
  if (blocked) {
    blocked_.push_back(buffer);
  } else {
    std::erase(blocked_, buffer);
  }
}

void ExactSearch::undo(std::size_t mark) {
  while (trail_.size() > mark) {
    const auto& [i, before] = trail_.back();
    const bool was_placed = states_[i].placed;
    if (was_placed || states_[i].floor != before.floor) {
      for (int k = 0; k < model_.count[i]; ++k) sections_[model_.section(i, k)].is_stale = true;
    }
    if (was_placed && !before.placed) {
      for (int k = 0; k + 1 < model_.count[i]; ++k) ++crossing_[model_.section(i, k)];
    }
    if (states_[i].blocked != before.blocked) set_blocked(i, before.blocked);
    states_[i] = before;
    keys_[i] = before.placed ? -1 : before.floor;
    trail_.pop_back();
  }
}

void ExactSearch::touch(int buffer) {
  for (int k = 0; k < model_.count[buffer]; ++k) {
    const int s = model_.section(buffer, k);
    sections_[s].is_stale = true;
    if (is_dirty_[s]) continue;
    is_dirty_[s] = true;
    dirty_.push_back(s);
  }
}

void ExactSearch::forget_work() {
  raised_.clear();
  for (const int s : dirty_) is_dirty_[s] = false;
  dirty_.clear();
}

void ExactSearch::rehash(int buffer) {
  State& state = states_[buffer];
  std::uint64_t h = mix(static_cast<std::uint64_t>(buffer));
  h = mix(h ^ static_cast<std::uint64_t>(state.floor));
  if (state.blocked) h = mix(h ^ ~static_cast<std::uint64_t>(state.barred));
  state.hash = {h, mix(~h)};
}

}  // namespace stalloc
