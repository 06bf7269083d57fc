#include "verify/waits_validator.h"

// A sweep over addresses keeps the buffers of the current address in order of time. Only neighbours
// in this order follow each other.

#include <algorithm>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "base/error.h"

namespace stalloc::verify {
namespace {

using InTime = std::pair<Tick, std::int32_t>;  // begin, buffer

class Sweep {
 public:
  explicit Sweep(const solve::Problem& problem) : problem_(problem) {}

  std::vector<solve::Wait> run(const solve::Layout& layout) {
    std::vector<std::tuple<Offset, bool, InTime>> events;  // address, begins there, buffer
    for (std::size_t i = 0; i < problem_.buffers.size(); ++i) {
      const solve::Buffer& b = problem_.buffers[i];
      if (b.size <= 0 || b.upper <= b.lower) continue;
      const Bytes units = (b.size - 1) / problem_.alignment + 1;
      const InTime key{b.lower, static_cast<std::int32_t>(i)};
      events.emplace_back(layout.offsets[i], true, key);
      events.emplace_back(layout.offsets[i] + units * problem_.alignment, false, key);
    }
    std::ranges::sort(events);
    for (std::size_t k = 0; k < events.size();) {
      const std::size_t first = k;
      for (; k < events.size() && std::get<0>(events[k]) == std::get<0>(events[first]); ++k) {
        const auto& [at, begins, key] = events[k];
        if (begins) {
          here_.insert(key);
        } else {
          here_.erase(key);
        }
      }
      for (std::size_t j = first; j < k; ++j) look_around(std::get<2>(events[j]));
    }
    std::ranges::sort(needed_);
    needed_.erase(std::unique(needed_.begin(), needed_.end()), needed_.end());
    return std::move(needed_);
  }

 private:
  // Records who follows whom around a buffer that begins or ends at this address.
  void look_around(const InTime& key) {
    if (here_.empty()) return;
    auto next = here_.lower_bound(key);
    if (next != here_.end() && *next == key) {
      follow(next, std::next(next));
    }
    follow(next == here_.begin() ? here_.end() : std::prev(next), next);
  }

  using Place = std::set<InTime>::const_iterator;

  // If time is a circle, the end of the set is its beginning.
  void follow(Place before, Place after) {
    if (before == here_.end() || after == here_.end()) {
      if (problem_.period == 0) return;
      if (before == here_.end()) before = std::prev(here_.end());
      if (after == here_.end()) after = here_.begin();
    }
    const std::int32_t a = before->second;
    const std::int32_t b = after->second;
    if (problem_.buffers[a].stream != problem_.buffers[b].stream) needed_.push_back({b, a});
  }

  const solve::Problem& problem_;
  std::set<InTime> here_;
  std::vector<solve::Wait> needed_;
};

std::string describe(const solve::Problem& problem, const solve::Wait& wait) {
  const auto name = [&](std::int32_t i) {
    return "buffer " + std::to_string(i) + " (stream " + std::to_string(problem.buffers[i].stream) +
           ")";
  };
  return name(wait.buffer) + " waits for " + name(wait.after);
}

}  // namespace

void validate_waits(const solve::Problem& problem, const solve::Layout& layout,
                    std::span<const solve::Wait> waits) {
  const auto buffers = static_cast<std::int64_t>(problem.buffers.size());
  for (const auto& [buffer, after] : waits) {
    if (buffer < 0 || buffer >= buffers || after < 0 || after >= buffers) {
      throw PlanError("a wait of buffer " + std::to_string(buffer) + " for buffer " +
                      std::to_string(after) + ", but there are " + std::to_string(buffers));
    }
  }
  if (!std::ranges::is_sorted(waits)) throw PlanError("the waits are out of order");
  const std::vector<solve::Wait> needed = Sweep(problem).run(layout);
  std::vector<solve::Wait> wrong;
  std::ranges::set_difference(needed, waits, std::back_inserter(wrong));
  if (!wrong.empty()) {
    throw PlanError("a wait is missing: " + describe(problem, wrong.front()) +
                    ", whose addresses it uses");
  }
  std::ranges::set_difference(waits, needed, std::back_inserter(wrong));
  if (!wrong.empty()) {
    throw PlanError("an unnecessary wait: " + describe(problem, wrong.front()));
  }
}

}  // namespace stalloc::verify
