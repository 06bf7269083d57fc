#include "solve/core/order.h"

#include <algorithm>
#include <array>
#include <numeric>

#include "solve/core/range_minimum.h"

namespace stalloc::solve {
namespace {

// Sorted by `first`, then `second`, then index, all ascending.
struct Key {
  double first = 0;
  std::int64_t second = 0;
  BufferIndex buffer = 0;

  bool operator<(const Key& other) const {
    if (first != other.first) return first < other.first;
    if (second != other.second) return second < other.second;
    return buffer < other.buffer;
  }
};

// For each moment its rank by load, highest first.
std::vector<Moment> rank_moments(const std::vector<Bytes>& load) {
  std::vector<Moment> by_load(load.size());
  std::iota(by_load.begin(), by_load.end(), 0);
  std::stable_sort(by_load.begin(), by_load.end(),
                   [&](Moment a, Moment b) { return load[a] > load[b]; });
  std::vector<Moment> rank(load.size());
  for (std::size_t i = 0; i < by_load.size(); ++i) rank[by_load[i]] = static_cast<Moment>(i);
  return rank;
}

std::vector<double> best_ranks(const Problem& problem, const Timeline& timeline) {
  const RangeMinimum least(rank_moments(timeline.load(problem)));
  std::vector<double> keys(problem.buffers.size());
  for (std::size_t i = 0; i < keys.size(); ++i) {
    const Span& span = timeline.span(i);
    if (span.empty()) continue;
    keys[i] = least(span);
  }
  return keys;
}

Bytes large_from(const Problem& problem, const Timeline& timeline) {
  constexpr Bytes kLargeShare = 2000;  // of the peak
  const std::vector<Bytes> load = timeline.load(problem);
  return load.empty() ? 0 : *std::ranges::max_element(load) / kLargeShare;
}

std::vector<double> distances(const Problem& problem, const Timeline& timeline) {
  const std::vector<Bytes> load = timeline.load(problem);
  const auto peak = static_cast<Moment>(std::max_element(load.begin(), load.end()) - load.begin());
  const Moment all = timeline.moments();
  const auto distance = [&](Moment begin, Moment end) {
    if (peak >= begin && peak < end) return 0;
    Moment d = peak < begin ? begin - peak : peak - end + 1;
    if (problem.period > 0) {  // in the other direction on the circle
      d = std::min(d, peak < begin ? peak + all - end + 1 : begin + all - peak);
    }
    return d;
  };
  std::vector<double> keys(problem.buffers.size());
  for (std::size_t i = 0; i < keys.size(); ++i) {
    const Span& span = timeline.span(i);
    if (span.empty()) continue;
    Moment d = distance(span.begin, span.end);
    if (span.wrap > 0) d = std::min(d, distance(0, span.wrap));
    keys[i] = d;
  }
  return keys;
}

}  // namespace

std::string_view to_string(Order order) {
  static constexpr std::array<std::string_view, kOrders> kNames = {
      "size",           "lifetime",        "area",           "start",
      "peak-rank-end",  "peak-rank-start", "peak-rank-size", "large-peak-rank-end",
      "centre-out-end", "centre-out-size", "carried-start",  "carried-centre-out-end"};
  return kNames[static_cast<std::size_t>(order)];
}

std::vector<BufferIndex> ordered(const Problem& problem, const Timeline& timeline, Order order) {
  std::vector<double> first;
  switch (order) {
    case Order::kPeakRankEnd:
    case Order::kPeakRankStart:
    case Order::kPeakRankSize:
    case Order::kLargePeakRankEnd:
      first = best_ranks(problem, timeline);
      break;
    case Order::kCentreOutEnd:
    case Order::kCentreOutSize:
    case Order::kCarriedCentreOutEnd:
      first = distances(problem, timeline);
      break;
    default:
      break;
  }
  std::vector<Key> keys;
  keys.reserve(problem.buffers.size());
  for (std::size_t i = 0; i < problem.buffers.size(); ++i) {
    const Buffer& b = problem.buffers[i];
    if (b.size == 0 || timeline.span(i).empty()) continue;
    const Tick lifetime = b.upper - b.lower;
    Key key{first.empty() ? 0.0 : first[i], 0, static_cast<BufferIndex>(i)};
    switch (order) {
      case Order::kSize:
        key.first = -static_cast<double>(b.size);
        key.second = -lifetime;
        break;
      case Order::kLifetime:
        key.first = -static_cast<double>(lifetime);
        key.second = -b.size;
        break;
      case Order::kArea:
        key.first = -static_cast<double>(b.size) * static_cast<double>(lifetime);
        key.second = -b.size;
        break;
      case Order::kStart:
      case Order::kCarriedStart:
        key.first = static_cast<double>(b.lower);
        key.second = -b.size;
        break;
      case Order::kPeakRankEnd:
      case Order::kLargePeakRankEnd:
      case Order::kCentreOutEnd:
      case Order::kCarriedCentreOutEnd:
        key.second = -b.upper;
        break;
      case Order::kPeakRankStart:
        key.second = b.lower;
        break;
      case Order::kPeakRankSize:
      case Order::kCentreOutSize:
        key.second = -b.size;
        break;
    }
    keys.push_back(key);
  }
  std::sort(keys.begin(), keys.end());
  std::vector<BufferIndex> result;
  result.reserve(keys.size());
  for (const Key& key : keys) result.push_back(key.buffer);
  if (order == Order::kCarriedStart || order == Order::kCarriedCentreOutEnd) {
    std::ranges::stable_partition(result,
                                  [&](BufferIndex i) { return is_carried(problem.buffers[i]); });
  }
  if (order == Order::kLargePeakRankEnd) {
    const Bytes large = large_from(problem, timeline);
    std::ranges::stable_partition(result,
                                  [&](BufferIndex i) { return problem.buffers[i].size >= large; });
  }
  return result;
}

}  // namespace stalloc::solve
