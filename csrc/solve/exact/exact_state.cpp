#include "solve/exact/exact_state.h"

#include <algorithm>
#include <iterator>
#include <limits>

namespace stalloc::solve {
namespace {

constexpr Units kNowhere = std::numeric_limits<Units>::max();

std::uint64_t mix(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15ull;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

}  // namespace

ExactState::ExactState(const ExactModel& model)
    : model_(model),
      buffers_(model.buffers()),
      keys_(model.buffers()),
      sections_(model.sections()),
      stacks_(model.sections()),
      crossing_(model.sections()),
      failures_(model.sections(), 1),
      is_dirty_(model.sections()) {
  for (int s = 0; s < model.sections(); ++s) {
    stacks_[s].assign(model.members(s).begin(), model.members(s).end());
  }
}

bool ExactState::reset(Units capacity) {
  capacity_ = capacity;
  trail_.clear();
  blocked_.clear();
  fail();
  std::fill(crossing_.begin(), crossing_.end(), 0);
  for (int i = 0; i < model_.buffers(); ++i) {
    buffers_[i] = {};
    if (model_.fixed[i] >= 0) {
      buffers_[i].floor = model_.fixed[i];
      if (model_.fixed[i] > capacity_ - model_.size[i]) return false;
    }
    keys_[i] = buffers_[i].floor;
    rehash(i);
    touch(i);
    raised_.push_back(i);
    for (int k = 0; k + 1 < model_.count[i]; ++k) ++crossing_[model_.section(i, k)];
  }
  return propagate();
}

void ExactState::forget_failures() { std::fill(failures_.begin(), failures_.end(), 1); }

const ExactState::Section& ExactState::section(int section) {
  if (sections_[section].is_stale) evaluate(section);
  return sections_[section];
}

bool ExactState::place(int buffer) {
  const Units floor = buffers_[buffer].floor;
  const Units top = floor + model_.size[buffer];
  change(buffer).placed = true;
  keys_[buffer] = -1;
  touch(buffer);
  for (int k = 0; k + 1 < model_.count[buffer]; ++k) --crossing_[model_.section(buffer, k)];
  for (const int j : model_.neighbours(buffer)) {
    if (keys_[j] < 0) continue;
    if (!support(j, floor, top)) return fail();
    const bool is_out_of_rank =
        model_.twins[j] == model_.twins[buffer] && model_.twin_rank[j] < model_.twin_rank[buffer];
    if (is_out_of_rank && keys_[j] == top && !buffers_[j].blocked && !bar_here(j)) return fail();
  }
  return propagate();
}

bool ExactState::bar(int buffer) { return bar_here(buffer) ? propagate() : fail(); }

// A neighbour has been placed at [floor, top).
bool ExactState::support(int buffer, Units floor, Units top) {
  const Known& known = buffers_[buffer];
  const bool unblocks = known.blocked && floor < known.barred + model_.size[buffer];
  if (top <= known.support && !unblocks) return raise(buffer, known.support);
  Known& changed = change(buffer);
  changed.support = std::max(changed.support, top);
  if (unblocks) {
    set_blocked(buffer, false);
    rehash(buffer);
  }
  return raise(buffer, changed.support);
}

// Bars the buffer from its floor: a neighbour will be in the way there.
bool ExactState::bar_here(int buffer) {
  if (model_.fixed[buffer] >= 0) return false;
  Known& state = change(buffer);
  state.barred = state.floor;
  if (!state.blocked) set_blocked(buffer, true);
  rehash(buffer);
  return raise_blocked(buffer);
}

// Raises the floor of a blocked buffer: it lies above one of the neighbours that can still block
// it.
bool ExactState::raise_blocked(int buffer) {
  const Units reach = buffers_[buffer].barred + model_.size[buffer];
  Units lowest = kNowhere;
  int witness = -1;
  for (const int j : model_.neighbours(buffer)) {
    if (keys_[j] < 0 || keys_[j] >= reach || keys_[j] + model_.size[j] >= lowest) continue;
    lowest = keys_[j] + model_.size[j];
    witness = j;
  }
  if (witness < 0) return false;
  if (witness != buffers_[buffer].witness) change(buffer).witness = witness;
  return raise(buffer, std::max(lowest, buffers_[buffer].support));
}

bool ExactState::raise(int buffer, Units floor) {
  if (floor <= buffers_[buffer].floor) return true;
  if (model_.fixed[buffer] >= 0 || floor > capacity_ - model_.size[buffer]) return false;
  change(buffer).floor = floor;
  keys_[buffer] = floor;
  rehash(buffer);
  touch(buffer);
  raised_.push_back(buffer);
  return true;
}

// Draws all conclusions from floors that rose. Returns false if no layout is left.
bool ExactState::propagate() {
  while (true) {
    while (!raised_.empty()) {
      const int i = raised_.back();
      raised_.pop_back();
      if (!propagate_from(i)) return fail();
    }
    if (dirty_.empty()) return true;
    if (is_exhausted()) return fail();
    const int s = dirty_.back();
    dirty_.pop_back();
    is_dirty_[s] = false;
    if (!evaluate(s)) {
      failures_[s] += 1;
      return fail();
    }
  }
}

bool ExactState::propagate_from(int buffer) {
  if (const int j = model_.next_twin[buffer];
      j >= 0 && !raise(j, buffers_[buffer].floor + model_.size[buffer])) {
    return false;
  }
  for (const int j : blocked_) {
    if (buffers_[j].witness == buffer && !raise_blocked(j)) return false;
  }
  return true;
}

bool ExactState::evaluate(int section) {
  std::vector<int>& stack = stacks_[section];
  looks_ += std::ssize(stack);
  for (std::size_t k = 1; k < stack.size(); ++k) {  // it is nearly sorted since the last call
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

ExactState::Known& ExactState::change(int buffer) {
  trail_.push_back({buffer, buffers_[buffer]});
  return buffers_[buffer];
}

void ExactState::set_blocked(int buffer, bool blocked) {
  buffers_[buffer].blocked = blocked;
  if (blocked) {
    blocked_.push_back(buffer);
  } else {
    std::erase(blocked_, buffer);
  }
}

void ExactState::undo(std::size_t mark) {
  while (trail_.size() > mark) {
    const auto& [i, before] = trail_.back();
    const bool was_placed = buffers_[i].placed;
    if (was_placed || buffers_[i].floor != before.floor) {
      for (int k = 0; k < model_.count[i]; ++k) sections_[model_.section(i, k)].is_stale = true;
    }
    if (was_placed && !before.placed) {
      for (int k = 0; k + 1 < model_.count[i]; ++k) ++crossing_[model_.section(i, k)];
    }
    if (buffers_[i].blocked != before.blocked) set_blocked(i, before.blocked);
    buffers_[i] = before;
    keys_[i] = before.placed ? -1 : before.floor;
    trail_.pop_back();
  }
}

void ExactState::touch(int buffer) {
  for (int k = 0; k < model_.count[buffer]; ++k) {
    const int s = model_.section(buffer, k);
    sections_[s].is_stale = true;
    if (is_dirty_[s]) continue;
    is_dirty_[s] = true;
    dirty_.push_back(s);
  }
}

// Drops the conclusions that were still to be drawn.
bool ExactState::fail() {
  raised_.clear();
  for (const int s : dirty_) is_dirty_[s] = false;
  dirty_.clear();
  return false;
}

void ExactState::rehash(int buffer) {
  Known& known = buffers_[buffer];
  const auto chain = [&](std::uint64_t seed) {
    std::uint64_t h = mix(seed ^ static_cast<std::uint64_t>(buffer));
    h = mix(h ^ static_cast<std::uint64_t>(known.floor));
    return known.blocked ? mix(h ^ ~static_cast<std::uint64_t>(known.barred)) : h;
  };
  known.hash = {chain(0), chain(std::uint64_t{1} << 63)};
}

}  // namespace stalloc::solve
