#include "plan/portfolio.h"

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "base/align.h"
#include "base/error.h"
#include "plan/bound.h"
#include "plan/validator.h"

namespace stalloc {
namespace {

using Clock = std::chrono::steady_clock;

// What is planned of a problem at a time: one stream's buffers, and where they come from.
struct Part {
  Problem problem;
  std::vector<std::size_t> buffers;  // indices into the whole problem
};

std::vector<Part> split_by_stream(const Problem& problem) {
  std::map<StreamId, Part> streams;
  for (std::size_t i = 0; i < problem.buffers.size(); ++i) {
    Part& part = streams[problem.buffers[i].stream];
    part.problem.buffers.push_back(problem.buffers[i]);
    part.buffers.push_back(i);
  }
  std::vector<Part> parts;
  for (auto& [stream, part] : streams) {
    part.problem.period = problem.period;
    part.problem.alignment = problem.alignment;
    parts.push_back(std::move(part));
  }
  return parts;
}

bool has_fixed(const Problem& problem) {
  return std::any_of(problem.buffers.begin(), problem.buffers.end(),
                     [](const Buffer& b) { return b.fixed != kUnplaced; });
}

// Fixed buffers leave nothing to a planner: they fit or they don't.
void check_fixed(const Problem& problem) {
  Problem fixed;
  fixed.period = problem.period;
  fixed.alignment = problem.alignment;
  Layout layout;
  for (const Buffer& b : problem.buffers) {
    if (b.fixed == kUnplaced) continue;
    fixed.buffers.push_back(b);
    layout.offsets.push_back(b.fixed);
    layout.height = std::max(layout.height, b.fixed + align_up(b.size, problem.alignment));
  }
  try {
    validate(fixed, layout);
  } catch (const PlanError& error) {
    throw PlanError(std::string("the fixed offsets clash (counting fixed buffers only): ") +
                    error.what());
  }
}

// Keeps a part off the addresses that belong to other streams: as buffers that are fixed there for
// all time. They are the last of the part's buffers.
void add_obstacles(Part& part, std::vector<std::pair<Offset, Offset>> taken) {
  std::sort(taken.begin(), taken.end());
  Tick end = part.problem.period;
  for (const Buffer& b : part.problem.buffers) end = std::max(end, b.upper);
  Offset reached = 0;
  for (const auto& [from, to] : taken) {
    const Offset begin = std::max(from, reached);
    if (to <= begin) continue;
    part.problem.buffers.push_back({.size = to - begin, .lower = 0, .upper = end, .fixed = begin});
    reached = to;
  }
}

struct Solution {
  Layout layout;
  std::string algorithm;
};

Solution solve_part(const Problem& problem, const PortfolioOptions& options, const Budget& budget) {
  if (!options.algorithm.empty()) {
    const Planner& only = planner(options.algorithm);
    return {only.plan(problem, budget), std::string(only.name())};
  }
  Budget part_budget = budget;
  part_budget.target = std::max(budget.target, load_bound(problem));
  Solution best;
  for (const Planner* candidate : planners()) {
    if (!best.algorithm.empty() && budget.expired()) break;
    Layout layout = candidate->plan(problem, part_budget);
    if (best.algorithm.empty() || layout.height < best.layout.height) {
      best = {std::move(layout), std::string(candidate->name())};
    }
    if (best.layout.height <= part_budget.target) break;
  }
  return best;
}

}  // namespace

PortfolioResult solve(const Problem& problem, const PortfolioOptions& options,
                      const Budget& budget) {
  const Clock::time_point began = Clock::now();
  problem.check();
  PortfolioResult result;
  result.bound = load_bound(problem);
  if (problem.capacity > 0 && result.bound > problem.capacity) {
    throw PlanError("no layout fits a capacity of " + std::to_string(problem.capacity) +
                    " bytes: " + std::to_string(result.bound) + " bytes are live at once");
  }
  const bool fixed = has_fixed(problem);
  if (fixed) check_fixed(problem);

  std::vector<Part> parts = split_by_stream(problem);
  result.layout.offsets.assign(problem.buffers.size(), 0);
  for (std::size_t p = 0; p < parts.size(); ++p) {
    Part& part = parts[p];
    Offset base = 0;
    if (fixed && parts.size() > 1) {
      std::vector<std::pair<Offset, Offset>> taken;
      for (std::size_t q = 0; q < parts.size(); ++q) {
        if (q == p) continue;
        for (const std::size_t i : parts[q].buffers) {
          const Buffer& b = problem.buffers[i];
          if (b.upper <= b.lower || (q > p && b.fixed == kUnplaced)) continue;
          const Offset offset = q < p ? result.layout.offsets[i] : b.fixed;
          taken.emplace_back(offset, offset + align_up(b.size, problem.alignment));
        }
      }
      add_obstacles(part, std::move(taken));
    } else {
      base = result.layout.height;
    }
    Solution solution = solve_part(part.problem, options, budget);
    for (std::size_t k = 0; k < part.buffers.size(); ++k) {
      result.layout.offsets[part.buffers[k]] = base + solution.layout.offsets[k];
    }
    result.layout.height = std::max(result.layout.height, base + solution.layout.height);
    if (!result.algorithm.empty()) result.algorithm += "+";
    result.algorithm += solution.algorithm;
  }
  result.optimal = result.layout.height <= result.bound;
  if (problem.capacity > 0 && result.layout.height > problem.capacity) {
    throw PlanError("no layout within the capacity of " + std::to_string(problem.capacity) +
                    " bytes was found: the best is " + std::to_string(result.layout.height) +
                    " bytes high, and none is below " + std::to_string(result.bound) +
                    "; raise the capacity or the time limit");
  }
  validate(problem, result.layout);
  result.seconds = std::chrono::duration<double>(Clock::now() - began).count();
  return result;
}

}  // namespace stalloc
