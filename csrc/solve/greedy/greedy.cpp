#include "solve/greedy/greedy.h"

#include <algorithm>

#include "solve/greedy/repair.h"

namespace stalloc::solve {
namespace {

// The placements that repair may use: about a second.
constexpr std::int64_t kRepairedBuffers = 1'200'000;

int repairs(std::int64_t buffers) {
  return static_cast<int>(std::clamp<std::int64_t>(kRepairedBuffers / (buffers + 1), 3, 30));
}

}  // namespace

GreedyPlanner::GreedyPlanner(Order order, Fit fit, bool repairs)
    : order_(order), fit_(fit), repairs_(repairs) {
  if (repairs) name_ += "repaired-";
  name_ += fit == Fit::kFirst ? "first-fit-" : "best-fit-";
  name_ += to_string(order);
}

Layout GreedyPlanner::plan(const Problem& problem, const Budget& budget) const {
  return *attempt(problem, Timeline(problem), budget, nullptr);
}

std::optional<Layout> GreedyPlanner::attempt(const Problem& problem, const Timeline& timeline,
                                             const Budget& budget,
                                             const std::atomic<Bytes>* limit) const {
  std::vector<BufferIndex> order = ordered(problem, timeline, order_);
  if (!repairs_) return place_in_order(problem, timeline, order, fit_, budget, limit);
  const int rounds = repairs(std::ssize(order));
  return repaired(problem, timeline, std::move(order), fit_, rounds, budget);
}

bool GreedyPlanner::suits(const Problem& problem) const {
  if (order_ != Order::kCarriedStart && order_ != Order::kCarriedCentreOutEnd) return true;
  return std::ranges::any_of(problem.buffers, is_carried);
}

std::int64_t GreedyPlanner::placements(std::int64_t buffers) const {
  const std::int64_t each = fit_ == Fit::kFirst ? 1 : 2;  // best fit searches longer
  if (!repairs_) return each * buffers;
  return each * buffers * (1 + repairs(buffers));
}

const std::vector<GreedyPlanner>& greedy_planners() {
  static const std::vector<GreedyPlanner> all = {
      // No single order is good on all problems. These meet the bound on most training loops;
      {Order::kPeakRankStart, Fit::kFirst, false},
      {Order::kPeakRankStart, Fit::kBest, false},
      {Order::kPeakRankSize, Fit::kFirst, false},
      {Order::kPeakRankEnd, Fit::kFirst, false},
      {Order::kLargePeakRankEnd, Fit::kFirst, false},
      {Order::kCentreOutEnd, Fit::kFirst, false},
      {Order::kCentreOutSize, Fit::kFirst, false},
      {Order::kPeakRankEnd, Fit::kBest, false},
      {Order::kCarriedCentreOutEnd, Fit::kFirst, false},
      {Order::kCarriedStart, Fit::kFirst, false},
      // repair brings them close to it on others;
      {Order::kCarriedCentreOutEnd, Fit::kFirst, true},
      {Order::kPeakRankSize, Fit::kFirst, true},
      {Order::kPeakRankEnd, Fit::kFirst, true},
      {Order::kPeakRankStart, Fit::kFirst, true},
      {Order::kCentreOutEnd, Fit::kFirst, true},
      {Order::kCentreOutSize, Fit::kFirst, true},
      // and these win occasionally.
      {Order::kCentreOutEnd, Fit::kBest, false},
      {Order::kPeakRankSize, Fit::kBest, false},
      {Order::kCentreOutSize, Fit::kBest, false},
      {Order::kSize, Fit::kFirst, false},
      {Order::kArea, Fit::kFirst, false},
      {Order::kStart, Fit::kFirst, false},
      {Order::kLifetime, Fit::kFirst, false},
      {Order::kSize, Fit::kBest, false},
      {Order::kPeakRankStart, Fit::kBest, true},
      {Order::kPeakRankEnd, Fit::kBest, true},
      {Order::kCentreOutEnd, Fit::kBest, true},
      {Order::kArea, Fit::kFirst, true},
      {Order::kSize, Fit::kFirst, true},
  };
  return all;
}

}  // namespace stalloc::solve
