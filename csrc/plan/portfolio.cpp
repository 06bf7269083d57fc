#include "plan/portfolio.h"

#include <algorithm>
#include <limits>
#include <map>
#include <thread>
#include <utility>
#include <vector>

#include "base/align.h"
#include "base/error.h"
#include "plan/bound.h"
#include "plan/chain.h"
#include "plan/decompose.h"
#include "plan/exact_planner.h"
#include "plan/greedy.h"
#include "plan/peak_core.h"
#include "plan/race.h"
#include "plan/timeline.h"
#include "plan/validator.h"

namespace stalloc {
namespace {

using Clock = std::chrono::steady_clock;

// One stream's buffers, and where they come from.
struct Stream {
  Problem problem;
  std::vector<std::size_t> buffers;  // indices into the whole problem
};

// Where they may share addresses, all are one.
std::vector<Stream> split_by_stream(const Problem& problem) {
  std::map<StreamId, Stream> streams;
  for (std::size_t i = 0; i < problem.buffers.size(); ++i) {
    const bool separate = problem.streams == Streams::kSeparate;
    Stream& stream = streams[separate ? problem.buffers[i].stream : 0];
    stream.problem.buffers.push_back(problem.buffers[i]);
    if (!separate) stream.problem.buffers.back().stream = 0;
    stream.buffers.push_back(i);
  }
  std::vector<Stream> result;
  for (auto& [id, stream] : streams) {
    stream.problem.period = problem.period;
    stream.problem.alignment = problem.alignment;
    result.push_back(std::move(stream));
  }
  return result;
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
  fixed.streams = problem.streams;
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

// Keeps a stream off the addresses that belong to others: as buffers that are fixed there for all
// time. They are the last of the stream's buffers.
void add_obstacles(Stream& stream, std::vector<std::pair<Offset, Offset>> taken) {
  std::sort(taken.begin(), taken.end());
  Tick end = stream.problem.period;
  for (const Buffer& b : stream.problem.buffers) end = std::max(end, b.upper);
  Offset reached = 0;
  for (const auto& [from, to] : taken) {
    const Offset begin = std::max(from, reached);
    if (to <= begin) continue;
    stream.problem.buffers.push_back(
        {.size = to - begin, .lower = 0, .upper = end, .fixed = begin});
    reached = to;
  }
}

struct Solution {
  Layout layout;
  std::string algorithm;
  Bytes bound = 0;  // no layout is lower
};

// Buffers in the order of an older layout's addresses, lowest first: first fit then puts none
// higher than it was. Those the layout knows nothing of come last, in the order of `fallback`.
std::vector<BufferIndex> order_of(const std::vector<Offset>& offsets,
                                  std::vector<BufferIndex> fallback) {
  const auto key = [&](BufferIndex i) {
    return offsets[i] < 0 ? std::numeric_limits<Offset>::max() : offsets[i];
  };
  std::stable_sort(fallback.begin(), fallback.end(),
                   [&](BufferIndex a, BufferIndex b) { return key(a) < key(b); });
  return fallback;
}

struct CostedAttempt {
  Attempt attempt;
  std::int64_t placements = 0;  // of a buffer, that it takes
};

// One stream, or one part of it.
class Solver {
 public:
  Solver(const PortfolioOptions& options, const Budget& budget)
      : options_(options),
        budget_(budget),
        threads_(options.threads > 0
                     ? options.threads
                     : std::max(1, static_cast<int>(std::thread::hardware_concurrency()))) {}

  // `warm` is empty, or has an offset for every buffer. `problem.capacity` is what this stream may
  // use.
  Solution solve_stream(const Problem& problem, const std::vector<Offset>& warm) const {
    Budget budget = budget_;
    budget.target = std::max(budget_.target, load_bound(problem));
    if (!options_.algorithm.empty()) {
      const Planner& only = planner(options_.algorithm);
      return {only.plan(problem, budget), std::string(only.name()), load_bound(problem)};
    }
    if (has_fixed(problem)) return run_all(problem, warm, problem.capacity, budget);

    Solution whole;
    whole.bound = load_bound(problem);
    whole.layout.offsets.assign(problem.buffers.size(), 0);
    for (const Buffer& b : problem.buffers) {
      whole.layout.height = std::max(whole.layout.height, align_up(b.size, problem.alignment));
    }
    std::vector<Part> parts = decompose(problem, whole.layout.offsets);
    for (std::size_t i = 0; i < problem.buffers.size(); ++i) {
      const Bytes size = align_up(problem.buffers[i].size, problem.alignment);
      whole.layout.height = std::max(whole.layout.height, whole.layout.offsets[i] + size);
    }
    for (const Part& part : parts) {
      // Highest first: no part need be lower than what another one needs anyway.
      Budget part_budget = budget;
      part_budget.target = std::max(budget.target, whole.layout.height) - part.base;
      std::vector<Offset> part_warm;
      if (!warm.empty()) {
        for (const std::int32_t i : part.buffers) part_warm.push_back(warm[i]);
      }
      const Bytes capacity = std::max<Bytes>(problem.capacity - part.base, 0);
      Solution solution = run_all(part.problem, part_warm, capacity, part_budget);
      for (std::size_t k = 0; k < part.buffers.size(); ++k) {
        whole.layout.offsets[part.buffers[k]] = part.base + solution.layout.offsets[k];
      }
      const Bytes height = part.base + solution.layout.height;
      if (height > whole.layout.height || whole.algorithm.empty()) {
        whole.algorithm = solution.algorithm;
      }
      whole.layout.height = std::max(whole.layout.height, height);
      whole.bound = std::max(whole.bound, part.base + solution.bound);
    }
    if (whole.algorithm.empty()) whole.algorithm = "stacked";  // everything lives throughout
    return whole;
  }

 private:
  // The cheap planners first. Only where they leave the target unmet the search that can take
  // forever; it is content with any layout within the capacity (0: none).
  Solution run_all(const Problem& problem, const std::vector<Offset>& warm, Bytes capacity,
                   const Budget& budget) const {
    const Timeline timeline(problem);
    const auto buffers = static_cast<std::int64_t>(problem.buffers.size());
    std::vector<Attempt> first;
    if (!warm.empty()) {
      first.push_back({"warm-start", [&](const Budget& b, const std::atomic<Bytes>& limit) {
                         return place_in_order(
                             problem, timeline,
                             order_of(warm, ordered(problem, timeline, Order::kPeakRankSize)),
                             Fit::kFirst, b, &limit);
                       }});
    }
    const auto attempt = [&](const GreedyPlanner& greedy) -> Attempt {
      return {std::string(greedy.name()), [&](const Budget& b, const std::atomic<Bytes>& limit) {
                return greedy.attempt(problem, timeline, b, &limit);
              }};
    };
    first.push_back(attempt(greedy_planners().front()));
    std::vector<CostedAttempt> quick;
    std::vector<CostedAttempt> more;
    quick.push_back({{"chain",
                      [&](const Budget& b, const std::atomic<Bytes>& limit) {
                        return plan_chain(problem, timeline, b, &limit);
                      }},
                     buffers});
    for (std::size_t k = 1; k < greedy_planners().size(); ++k) {
      const GreedyPlanner& greedy = greedy_planners()[k];
      (k < kQuickGreedy ? quick : more).push_back({attempt(greedy), greedy.placements(buffers)});
    }
    Budget enough = budget;
    enough.target = std::max(budget.target, capacity);
    Winner winner;
    race(first, threads_, budget, winner);
    race_while_worthwhile(std::move(quick), budget, winner);
    Bytes bound = 0;
    const bool is_small = problem.buffers.size() <= kSearchable;
    if (is_small) search("exact", minimise_height, problem, kFirstSteps, enough, winner, bound);
    if (is_worthwhile(kPeakCorePlacements * buffers, winner, budget)) {
      search("peak-core", solve_peak_core, problem, kFirstSteps, enough, winner, bound);
    }
    enough.target = std::max(enough.target, bound);
    race_while_worthwhile(std::move(more), enough, winner);
    if (is_small) {
      const auto steps = static_cast<std::int64_t>(kSearchPatience * patience(winner, enough));
      search("exact", minimise_height, problem, steps, enough, winner, bound);
    }
    return {std::move(winner.layout), std::move(winner.name), bound};
  }

  // How much more than nothing the hope of something better is worth: the further the best layout
  // is above the target, the more.
  static double patience(const Winner& winner, const Budget& budget) {
    const auto target = static_cast<double>(std::max<Bytes>(budget.target, 1));
    return 1.0 + (static_cast<double>(winner.layout.height) / target - 1.0) / kSmallGap;
  }

  static bool is_worthwhile(std::int64_t placements, const Winner& winner, const Budget& budget) {
    return static_cast<double>(placements) <= kPatience * patience(winner, budget);
  }

  // As many attempts at a time as are worthwhile together, until they bring nothing. What is tried
  // depends on the problem only, and not on the machine or the number of threads.
  void race_while_worthwhile(std::vector<CostedAttempt> attempts, const Budget& budget,
                             Winner& winner) const {
    for (std::size_t begin = 0; begin < attempts.size();) {
      if (winner.layout.height <= budget.target) return;
      const Bytes height = winner.layout.height;
      std::vector<Attempt> batch;
      std::int64_t cost = 0;
      for (; begin < attempts.size(); ++begin) {
        cost += attempts[begin].placements;
        if (!is_worthwhile(cost, winner, budget)) break;
        batch.push_back(std::move(attempts[begin].attempt));
      }
      race(batch, threads_, budget, winner);
      if (batch.empty() || winner.layout.height == height) return;
    }
  }

  // Looks for what greed cannot find, and for the proof that there is nothing more to find: raises
  // `bound` where it can.
  template <typename Minimise>
  void search(std::string name, Minimise minimise, const Problem& problem, std::int64_t steps,
              Budget budget, Winner& winner, Bytes& bound) const {
    budget.target = std::max(budget.target, bound);
    const Layout start = winner.layout;
    race({{std::move(name),
           [&](const Budget& b, const std::atomic<Bytes>& limit) -> std::optional<Layout> {
             Minimum minimum = minimise(problem, start, std::min(steps, options_.search_steps), b);
             bound = std::max(bound, minimum.bound);
             if (minimum.layout.height >= limit) return std::nullopt;
             return std::move(minimum.layout);
           }}},
         1, budget, winner);
  }

  static constexpr std::size_t kQuickGreedy = 7;  // planners of which one mostly meets the bound
  static constexpr double kPatience = 400'000;    // placements without anything better, at no gap
  static constexpr double kSearchPatience = 20'000;       // steps of the last search, at no gap
  static constexpr double kSmallGap = 0.0005;             // doubles these, twice of it trebles them
  static constexpr std::int64_t kPeakCorePlacements = 8;  // of each buffer, about
  static constexpr std::size_t kSearchable = 2000;        // buffers: there is no hope above
  static constexpr std::int64_t kFirstSteps = 2'000;

  const PortfolioOptions& options_;
  const Budget& budget_;
  int threads_;
};

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
  // Every race begins at nothing done; those who watch see the furthest that one has come.
  double furthest = 0;
  Budget watched = budget;
  if (budget.progress) {
    watched.progress = [&](double fraction) {
      furthest = std::max(furthest, fraction);
      budget.progress(furthest);
    };
  }
  const Solver solver(options, watched);
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
    const Solution solution = solver.solve_stream(stream.problem, warm);
    for (std::size_t k = 0; k < stream.buffers.size(); ++k) {
      result.layout.offsets[stream.buffers[k]] = base + solution.layout.offsets[k];
    }
    result.layout.height = std::max(result.layout.height, base + solution.layout.height);
    proven = fixed ? std::max(proven, solution.bound) : proven + solution.bound;
    if (!result.algorithm.empty()) result.algorithm += "+";
    result.algorithm += solution.algorithm;
  }
  result.bound = std::max(result.bound, proven);
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
  validate(problem, result.layout);
  result.seconds = std::chrono::duration<double>(Clock::now() - began).count();
  return result;
}

}  // namespace stalloc
