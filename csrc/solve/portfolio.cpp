#include "solve/portfolio.h"

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "base/align.h"
#include "base/error.h"
#include "solve/core/bound.h"
#include "solve/stream_solver.h"
#include "verify/validator.h"

namespace stalloc::solve {
namespace {

using Clock = std::chrono::steady_clock;

// One stream's buffers, and their indices in the whole problem.
struct Stream {
  Problem problem;
  std::vector<std::size_t> buffers;  // indices into the whole problem
};

// Streams that may share addresses count as one, which keeps their numbers if there are holds.
std::vector<Stream> split_by_stream(const Problem& problem) {
  std::map<StreamId, Stream> streams;
  for (std::size_t i = 0; i < problem.buffers.size(); ++i) {
    const bool separate = problem.streams == Streams::kSeparate;
    Stream& stream = streams[separate ? problem.buffers[i].stream : 0];
    stream.problem.buffers.push_back(problem.buffers[i]);
    if (!separate && problem.holds.empty()) stream.problem.buffers.back().stream = 0;
    stream.buffers.push_back(i);
  }
  std::vector<std::int32_t> place(problem.buffers.size());  // index within its stream
  for (const auto& [id, stream] : streams) {
    for (std::size_t k = 0; k < stream.buffers.size(); ++k) {
      place[stream.buffers[k]] = static_cast<std::int32_t>(k);
    }
  }
  for (const IdleInterval& interval : problem.idle) {
    streams[problem.buffers[interval.buffer].stream].problem.idle.push_back(
        {place[interval.buffer], interval.lower, interval.upper});
  }
  if (!problem.holds.empty()) {
    Problem& all = streams.begin()->second.problem;
    all.streams = problem.streams;
    all.holds = problem.holds;
  }
  std::vector<Stream> result;
  for (auto& [id, stream] : streams) {
    stream.problem.period = problem.period;
    stream.problem.alignment = problem.alignment;
    result.push_back(std::move(stream));
  }
  return result;
}

// Throws PlanError if fixed buffers overlap: no planner could mend that.
void check_fixed(const Problem& problem) {
  Problem fixed;
  fixed.period = problem.period;
  fixed.alignment = problem.alignment;
  fixed.streams = problem.streams;
  Layout layout;
  auto interval = problem.idle.begin();
  for (std::size_t i = 0; i < problem.buffers.size(); ++i) {
    const Buffer& b = problem.buffers[i];
    for (; interval != problem.idle.end() && static_cast<std::size_t>(interval->buffer) == i;
         ++interval) {
      if (b.fixed == kUnplaced) continue;
      fixed.idle.push_back(
          {static_cast<std::int32_t>(fixed.buffers.size()), interval->lower, interval->upper});
    }
    if (b.fixed == kUnplaced) continue;
    fixed.buffers.push_back(b);
    layout.offsets.push_back(b.fixed);
    layout.height = std::max(layout.height, b.fixed + align_up(b.size, problem.alignment));
  }
  try {
    verify::validate(fixed, layout);
  } catch (const PlanError& error) {
    throw PlanError(std::string("the fixed offsets clash (counting fixed buffers only): ") +
                    error.what());
  }
}

// Keeps a stream off the addresses of other streams: adds buffers that are fixed there for all
// time. They are the last of the stream's buffers.
void add_obstacles(Stream& stream, std::vector<std::pair<Offset, Offset>> taken) {
  std::sort(taken.begin(), taken.end());
  Tick end = stream.problem.period;
  if (end == 0) {
    for (const Buffer& b : stream.problem.buffers) end = std::max(end, b.upper);
  }
  Offset reached = 0;
  for (const auto& [from, to] : taken) {
    const Offset begin = std::max(from, reached);
    if (to <= begin) continue;
    stream.problem.buffers.push_back(
        {.size = to - begin, .lower = 0, .upper = end, .fixed = begin});
    reached = to;
  }
}

}  // namespace

PortfolioResult solve(const Problem& problem, const PortfolioOptions& options,
                      const Budget& budget) {
  const Clock::time_point began = Clock::now();
  problem.check();
  if (options.warm_start && options.warm_start->offsets.size() != problem.buffers.size()) {
    throw PlanError("the layout to start from has " +
                    std::to_string(options.warm_start->offsets.size()) + " offsets for " +
                    std::to_string(problem.buffers.size()) + " buffers");
  }
  PortfolioResult result;
  result.bound = load_bound(problem);
  if (problem.capacity > 0 && result.bound > problem.capacity) {
    throw PlanError("no layout fits a capacity of " + std::to_string(problem.capacity) +
                    " bytes: it takes at least " + std::to_string(result.bound) + " bytes");
  }
  const bool fixed = has_fixed(problem);
  if (fixed) check_fixed(problem);

  std::vector<Stream> streams = split_by_stream(problem);
  // Each group of attempts starts at 0. The caller sees the largest fraction so far.
  double furthest = 0;
  Budget watched = budget;
  if (budget.progress) {
    watched.progress = [&](double fraction) {
      furthest = std::max(furthest, fraction);
      budget.progress(furthest);
    };
  }
  result.layout.offsets.assign(problem.buffers.size(), 0);
  Bytes proven = 0;
  for (std::size_t s = 0; s < streams.size(); ++s) {
    Stream& stream = streams[s];
    Offset base = 0;
    if (fixed && streams.size() > 1) {
      std::vector<std::pair<Offset, Offset>> taken;
      for (std::size_t other = 0; other < streams.size(); ++other) {
        if (other == s) continue;
        for (const std::size_t i : streams[other].buffers) {
          const Buffer& b = problem.buffers[i];
          if (b.upper <= b.lower || (other > s && b.fixed == kUnplaced)) continue;
          const Offset offset = other < s ? result.layout.offsets[i] : b.fixed;
          taken.emplace_back(offset, offset + align_up(b.size, problem.alignment));
        }
      }
      add_obstacles(stream, std::move(taken));
    } else {
      base = result.layout.height;
    }
    std::vector<Offset> warm;
    if (options.warm_start) {
      for (const std::size_t i : stream.buffers) {
        warm.push_back(options.warm_start->offsets[i]);
      }
      warm.resize(stream.problem.buffers.size(), kUnplaced);
    }
    stream.problem.capacity = std::max<Bytes>(problem.capacity - base, 0);
    PortfolioOptions rest = options;
    rest.work -= std::min(rest.work, result.work);
    const Solution solution = solve_stream(stream.problem, warm, rest, watched);
    result.work += solution.work;
    for (std::size_t k = 0; k < stream.buffers.size(); ++k) {
      result.layout.offsets[stream.buffers[k]] = base + solution.layout.offsets[k];
    }
    result.layout.height = std::max(result.layout.height, base + solution.layout.height);
    proven += solution.bound;
    if (!result.algorithm.empty()) result.algorithm += "+";
    result.algorithm += solution.algorithm;
  }
  // With fixed buffers, a stream keeps off the addresses that the streams before it happen to use.
  // A bound proven under that restriction is no bound of the whole.
  if (!fixed || streams.size() == 1) result.bound = std::max(result.bound, proven);
  result.optimal = result.layout.height <= result.bound;
  if (problem.capacity > 0 && result.layout.height > problem.capacity) {
    const std::string capacity = std::to_string(problem.capacity);
    if (result.bound > problem.capacity) {
      throw PlanError("no layout fits a capacity of " + capacity +
                      " bytes: it is proven that none is lower than " +
                      std::to_string(result.bound));
    }
    throw PlanError("no layout within the capacity of " + capacity +
                    " bytes was found: the best is " + std::to_string(result.layout.height) +
                    " bytes high, and none is below " + std::to_string(result.bound) +
                    "; raise the capacity or the time limit");
  }
  verify::validate(problem, result.layout);
  result.seconds = std::chrono::duration<double>(Clock::now() - began).count();
  return result;
}

}  // namespace stalloc::solve
