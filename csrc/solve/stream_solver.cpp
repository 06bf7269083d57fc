#include "solve/stream_solver.h"

#include <algorithm>
#include <limits>
#include <thread>
#include <utility>

#include "base/align.h"
#include "solve/attempts.h"
#include "solve/core/bound.h"
#include "solve/core/timeline.h"
#include "solve/decompose.h"
#include "solve/exact/exact_planner.h"
#include "solve/exact/peak_core.h"
#include "solve/greedy/greedy.h"
#include "solve/pipeline/chain.h"
#include "solve/pipeline/two_stacks.h"
#include "solve/pipeline/walk.h"
#include "solve/search/ejection.h"
#include "solve/search/gaps.h"
#include "solve/search/multilevel.h"
#include "solve/search/tight_moments.h"

namespace stalloc::solve {
namespace {

// Buffers in the order of an older layout's addresses, lowest first. First fit then puts none
// higher than it was. Buffers that the layout does not have come last, in the order of `fallback`.
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
  std::int64_t placements = 0;  // the cost, in first-fit placements of a buffer
};

class Solver {
 public:
  Solver(const PortfolioOptions& options, const Budget& budget)
      : options_(options),
        budget_(budget),
        threads_(options.threads > 0
                     ? options.threads
                     : std::max(1, static_cast<int>(std::thread::hardware_concurrency()))) {}

  Solution solve(const Problem& problem, const std::vector<Offset>& warm) {
    Solution solution = solve_all(problem, warm);
    const Bytes capacity = problem.capacity;
    if (solution.layout.height > capacity && capacity >= std::max<Bytes>(solution.bound, 1) &&
        !budget_.is_late()) {
      // Searches that aim at the bound may end within a capacity that was missed.
      Problem open = problem;
      open.capacity = 0;
      Solution lower = solve_all(open, warm);
      lower.bound = std::max(lower.bound, solution.bound);
      if (lower.layout.height < solution.layout.height) solution = std::move(lower);
    }
    solution.work = done_;
    return solution;
  }

 private:
  Solution solve_all(const Problem& problem, const std::vector<Offset>& warm) {
    Budget budget = budget_;
    budget.target = std::max(budget_.target, load_bound(problem));
    Work work{.limit = options_.work};
    if (!options_.algorithm.empty() || !problem.idle.empty()) budget.work = &work;
    if (!options_.algorithm.empty()) {
      const Planner& only = planner(options_.algorithm);
      Layout layout = only.plan(problem, budget);
      done_ += work.done;
      return {std::move(layout), std::string(only.name()), load_bound(problem)};
    }
    if (!problem.idle.empty()) {
      budget.target = std::max(budget.target, problem.capacity);
      Minimum minimum = plan_gaps(problem, warm, budget);
      done_ += work.done;
      return {std::move(minimum.layout), "gaps", minimum.bound};
    }
    if (!problem.holds.empty()) return place_with_holds(problem, budget);
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
      // The highest part comes first: no other part need be lower than that.
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

  // Runs the planners that keep holds: those that place one buffer after another.
  Solution place_with_holds(const Problem& problem, const Budget& budget) {
    const Timeline timeline(problem);
    const auto buffers = static_cast<std::int64_t>(problem.buffers.size());
    std::vector<Attempt> first;
    std::vector<CostedAttempt> more;
    for (const GreedyPlanner& greedy : greedy_planners()) {
      if (!greedy.suits(problem)) continue;
      Attempt attempt = attempt_of(greedy, problem, timeline);
      if (first.empty()) {
        first.push_back(std::move(attempt));
      } else {
        more.push_back({std::move(attempt), greedy.placements(buffers)});
      }
    }
    Winner winner;
    Budget unhurried = budget;
    unhurried.deadline = std::chrono::steady_clock::time_point::max();
    run_attempts(first, threads_, unhurried, winner);
    run_while_worthwhile(std::move(more), buffers, budget, winner);
    return {std::move(winner.layout), std::move(winner.name), load_bound(problem)};
  }

  static Attempt attempt_of(const GreedyPlanner& greedy, const Problem& problem,
                            const Timeline& timeline) {
    return {std::string(greedy.name()), [&](const Budget& b, const std::atomic<Bytes>& limit) {
              return greedy.attempt(problem, timeline, b, &limit);
            }};
  }

  // Runs the cheap planners first, and the exact search only if none meets the target. With a
  // capacity (0: none), the search stops at the first layout within it.
  Solution run_all(const Problem& problem, const std::vector<Offset>& warm, Bytes capacity,
                   const Budget& budget) {
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
    const auto attempt = [&](const GreedyPlanner& greedy) {
      return attempt_of(greedy, problem, timeline);
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
      if (k == kGreedyBeforeWalk) {
        quick.push_back({{"walk",
                          [&](const Budget& b, const std::atomic<Bytes>& limit) {
                            return plan_walk(problem, timeline, b, &limit);
                          }},
                         buffers});
      }
      const GreedyPlanner& greedy = greedy_planners()[k];
      if (!greedy.suits(problem)) continue;
      (k < kQuickGreedy ? quick : more).push_back({attempt(greedy), greedy.placements(buffers)});
    }
    quick.push_back({{"two-stacks",
                      [&](const Budget& b, const std::atomic<Bytes>& limit) {
                        return plan_two_stacks(problem, timeline, b, &limit);
                      }},
                     2 * buffers});
    Budget enough = budget;
    enough.target = std::max(budget.target, capacity);
    Winner winner;
    // The first attempt has no deadline: an interrupted one is as high as all the rest stacked up.
    Budget unhurried = budget;
    unhurried.deadline = std::chrono::steady_clock::time_point::max();
    run_attempts(first, threads_, unhurried, winner);
    run_while_worthwhile(std::move(quick), buffers, budget, winner);
    Bytes bound = 0;
    const double before = patience(winner, enough);
    if (buffers >= kMultilevelBuffers && before > kMultilevelPatience) {
      search("multilevel", search_multilevel, problem, kMultilevelPlacements, enough, winner,
             bound);
    }
    // Peak-core and the planners left place all buffers in an order, with repair. They do not come
    // as low as the multilevel search where that leaves all orders behind.
    const bool is_coarse_best = patience(winner, enough) < before / 2;
    const bool is_small = problem.buffers.size() <= kSearchable;
    if (is_small) search("exact", minimise_height, problem, kFirstSteps, enough, winner, bound);
    if (!is_coarse_best && is_worthwhile(kPeakCorePlacements * buffers, winner, budget)) {
      search("peak-core", solve_peak_core, problem, kFirstSteps, enough, winner, bound);
    }
    enough.target = std::max(enough.target, bound);
    if (!is_coarse_best) run_while_worthwhile(std::move(more), buffers, enough, winner);
    // A layout above the capacity is of no use, so time alone limits the search for one within it.
    const bool must_fit = winner.layout.height > capacity && capacity >= std::max<Bytes>(bound, 1);
    if (is_small && must_fit) {
      search("exact", fit_target, problem, std::numeric_limits<std::int64_t>::max(), enough, winner,
             bound);
    } else if (is_small) {
      const auto steps = static_cast<std::int64_t>(kSearchPatience * patience(winner, enough));
      search("exact", minimise_height, problem, steps, enough, winner, bound);
    }
    // After the others: they are faster where they meet the bound.
    enough.target = std::max(enough.target, bound);
    if (patience(winner, enough) > kTightPatience && kTightRounds * buffers <= kTightPlacements) {
      search_tight_moments(problem, timeline, enough, winner);
    }
    if (buffers <= kLastResortBuffers) {
      const double most = std::min(kLastResortPatience * patience(winner, enough),
                                   static_cast<double>(kLastResortPlacements));
      search("multilevel", search_multilevel, problem, static_cast<std::int64_t>(most), enough,
             winner, bound);
    }
    if (patience(winner, enough) > kEjectionPatience) {
      const auto puts = static_cast<std::int64_t>(kEjectionPuts * patience(winner, enough));
      const std::int64_t most = std::max(kEjectionScans / buffers, kLeastEjectionPuts);
      search("ejection", search_ejections, problem, std::min(puts, most), enough, winner, bound);
    }
    return {std::move(winner.layout), std::move(winner.name), bound};
  }

  // The factor by which a gap of the best layout raises the effort that a search may take: 1
  // without a gap.
  static double patience(const Winner& winner, const Budget& budget) {
    const auto target = static_cast<double>(std::max<Bytes>(budget.target, 1));
    return 1.0 + (static_cast<double>(winner.layout.height) / target - 1.0) / kSmallGap;
  }

  static bool is_worthwhile(std::int64_t placements, const Winner& winner, const Budget& budget) {
    return static_cast<double>(placements) <= kPatience * patience(winner, budget);
  }

  // Runs as many attempts at a time as are worthwhile together, until they bring no improvement.
  // The choice depends on the problem only, not on the machine or the number of threads.
  void run_while_worthwhile(std::vector<CostedAttempt> attempts, std::int64_t buffers,
                            const Budget& budget, Winner& winner) {
    std::int64_t left = std::max(kMostPlacements, kMostRounds * buffers);
    for (std::size_t begin = 0; begin < attempts.size();) {
      if (winner.layout.height <= budget.target) return;
      const Bytes height = winner.layout.height;
      std::vector<Attempt> batch;
      std::int64_t cost = 0;
      for (; begin < attempts.size(); ++begin) {
        cost += attempts[begin].placements;
        if (cost > left || !is_worthwhile(cost, winner, budget)) break;
        if ((std::ssize(batch) + 1) * buffers > work_left()) break;
        batch.push_back(std::move(attempts[begin].attempt));
      }
      run_metered(batch, buffers, budget, winner);
      left -= cost;
      if (batch.empty() || winner.layout.height == height) return;
    }
  }

  std::int64_t work_left() const { return std::max<std::int64_t>(options_.work - done_, 0); }

  // Runs attempts that share the work that is left. Each counts as `least` at least. Those after
  // one that meets the target count as no more, since they may have been stopped at any time.
  void run_metered(const std::vector<Attempt>& attempts, std::int64_t least, const Budget& budget,
                   Winner& winner) {
    if (attempts.empty()) return;
    const std::int64_t share = work_left() / std::ssize(attempts);
    std::vector<Work> works(attempts.size(), {.limit = share});
    std::vector<Attempt> metered;
    for (std::size_t k = 0; k < attempts.size(); ++k) {
      metered.push_back(
          {attempts[k].name, [&, k](const Budget& b, const std::atomic<Bytes>& limit) {
             Budget own = b;
             own.work = &works[k];
             return attempts[k].run(own, limit);
           }});
    }
    run_attempts(metered, threads_, budget, winner);
    const bool is_met = winner.layout.height <= budget.target;
    bool is_after = false;
    for (std::size_t k = 0; k < attempts.size(); ++k) {
      done_ += is_after ? least : std::max(works[k].done, least);
      is_after = is_after || (is_met && attempts[k].name == winner.name);
    }
  }

  void search_tight_moments(const Problem& problem, const Timeline& timeline, const Budget& budget,
                            Winner& winner) {
    std::vector<Attempt> attempts;
    const std::int64_t most = std::min(kTightPlacements, options_.search_steps);
    // The starts run at once, and `limit` falls meanwhile. The result must not depend on that.
    const Bytes incumbent = winner.layout.height;
    for (const TightStart& start : tight_starts()) {
      attempts.push_back({std::string(start.name),
                          [&, most, incumbent](const Budget& b, const std::atomic<Bytes>& limit) {
                            return plan_tight_moments(problem, timeline, start, incumbent, most, b,
                                                      &limit);
                          }});
    }
    if (std::ssize(attempts) * kTightRounds * std::ssize(problem.buffers) > work_left()) return;
    run_metered(attempts, 0, budget, winner);
  }

  // Runs a search that may find a lower layout than the greedy planners, or prove that there is
  // none: it raises `bound` if it can.
  template <typename Minimise>
  void search(std::string name, Minimise minimise, const Problem& problem, std::int64_t steps,
              Budget budget, Winner& winner, Bytes& bound) {
    budget.target = std::max(budget.target, bound);
    if (work_left() == 0) return;
    Work work{.limit = work_left()};
    const Layout start = winner.layout;
    run_attempts({{std::move(name),
                   [&](Budget b, const std::atomic<Bytes>& limit) -> std::optional<Layout> {
                     b.work = &work;
                     Minimum minimum =
                         minimise(problem, start, std::min(steps, options_.search_steps), b);
                     bound = std::max(bound, minimum.bound);
                     if (minimum.layout.height >= limit) return std::nullopt;
                     return std::move(minimum.layout);
                   }}},
                 1, budget, winner);
    done_ += work.done;
  }

  // Greedy planners. One of the first kQuickGreedy usually meets the bound.
  static constexpr std::size_t kQuickGreedy = 10;
  static constexpr std::size_t kGreedyBeforeWalk = 3;
  // Placements without improvement at no gap. patience() scales it.
  static constexpr double kPatience = 400'000;
  // The most placements at any gap (one to two seconds), or of each buffer if that is more.
  static constexpr std::int64_t kMostPlacements = 2'500'000;
  static constexpr std::int64_t kMostRounds = 4;
  // Steps of the last exact search at no gap. patience() scales it.
  static constexpr double kSearchPatience = 20'000;
  // With fewer buffers, other planners meet the bound as fast as the multilevel search.
  static constexpr std::int64_t kMultilevelBuffers = 20'000;
  static constexpr double kMultilevelPatience = 5;                  // a gap of 0.2 %
  static constexpr std::int64_t kMultilevelPlacements = 2'400'000;  // of blocks: one second
  static constexpr std::int64_t kTightRounds = 4;                   // fewer gain nothing
  static constexpr double kTightPatience = 5;                       // a gap of 0.2 %
  static constexpr std::int64_t kTightPlacements = 1'200'000;       // of each start: half a second
  // The multilevel search as the last resort: with more buffers, it costs more than it gains.
  static constexpr std::int64_t kLastResortBuffers = 5'000;
  static constexpr std::int64_t kLastResortPlacements = 1'200'000;
  static constexpr double kLastResortPatience = 300'000;     // its placements at no gap
  static constexpr double kEjectionPatience = 3;             // a gap of 0.1 %
  static constexpr double kEjectionPuts = 15;                // of a chain, at no gap
  static constexpr std::int64_t kEjectionScans = 4'000'000;  // of a buffer in a chain: 0.2 s
  static constexpr std::int64_t kLeastEjectionPuts = 100;
  static constexpr double kSmallGap = 0.0005;             // the gap that doubles the effort
  static constexpr std::int64_t kPeakCorePlacements = 8;  // of each buffer, about
  static constexpr std::size_t kSearchable = 2000;        // buffers; the exact search fails above
  static constexpr std::int64_t kFirstSteps = 2'000;

  const PortfolioOptions& options_;
  const Budget& budget_;
  int threads_;
  std::int64_t done_ = 0;  // work of all planners, but for the first
};

}  // namespace

bool has_fixed(const Problem& problem) {
  return std::any_of(problem.buffers.begin(), problem.buffers.end(),
                     [](const Buffer& b) { return b.fixed != kUnplaced; });
}

Solution solve_stream(const Problem& problem, const std::vector<Offset>& warm,
                      const PortfolioOptions& options, const Budget& budget) {
  return Solver(options, budget).solve(problem, warm);
}

}  // namespace stalloc::solve
