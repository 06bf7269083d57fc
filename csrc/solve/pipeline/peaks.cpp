#include "solve/pipeline/peaks.h"

#include <algorithm>
#include <map>
#include <utility>

#include "base/align.h"

namespace stalloc::solve {
namespace {

constexpr Bytes kIdlePart = 10'000;  // the part of the highest load that may be idle at a peak
constexpr std::size_t kFewest = 4;   // peaks

class Finder {
 public:
  Finder(const Problem& problem, const Timeline& timeline, const std::vector<Bytes>& load)
      : problem_(problem), timeline_(timeline), load_(load) {
    const Bytes small = highest() / kSmallPart;
    for (BufferIndex i = 0; i < std::ssize(problem.buffers); ++i) {
      const bool is_large = size(i) > 0 && size(i) >= small;
      if (is_large && !span(i).empty() && span(i).wrap == 0) by_end_.push_back(i);
    }
    std::ranges::sort(by_end_, {}, [&](BufferIndex i) { return std::pair{span(i).end, i}; });
  }

  Peaks find() const {
    const std::vector<BufferIndex> needed = find_needed();
    if (needed.empty()) return {};
    std::vector<Moment> at;  // the peaks, and one moment before and one after them
    for (const BufferIndex i : needed) at.push_back(span(i).begin);
    at.insert(at.begin(), at[0] - (at[1] - at[0]) / 2);
    at.push_back(timeline_.moments());
    const Moment quiet = quiet_before(at);
    Peaks result;
    for (std::size_t t = 0; t < needed.size(); ++t) {
      auto it = std::ranges::upper_bound(by_end_, at[t + 1] - quiet, {},
                                         [&](BufferIndex i) { return span(i).end; });
      Peak peak{.needed = needed[t]};
      Bytes freed = 0;
      for (; it != by_end_.end() && span(*it).end <= at[t + 1]; ++it) {
        if (span(*it).begin >= at[t]) continue;
        peak.freed.push_back(*it);
        freed += size(*it);
      }
      if (t == 0) result.freed = freed;
      if (freed == 0 || freed != result.freed) return {};
      result.peaks.push_back(std::move(peak));
    }
    result.besides = size(needed[0]) - result.freed;
    if (result.besides <= 0 || result.besides > result.freed) return {};
    return result;
  }

 private:
  Bytes size(BufferIndex i) const { return align_up(problem_.buffers[i].size, problem_.alignment); }
  const Span& span(BufferIndex i) const { return timeline_.span(i); }
  Bytes highest() const { return load_.empty() ? 0 : *std::ranges::max_element(load_); }

  std::vector<BufferIndex> find_needed() const {
    const Bytes tight = highest() - highest() / kIdlePart;
    std::map<Bytes, std::vector<BufferIndex>> by_size;
    for (const BufferIndex i : by_end_) {
      if (load_[span(i).begin] >= tight) by_size[size(i)].push_back(i);
    }
    std::erase_if(by_size, [](const auto& same) { return same.second.size() < kFewest; });
    if (by_size.empty()) return {};
    std::vector<BufferIndex> needed = std::move(by_size.rbegin()->second);
    std::ranges::sort(needed, {}, [&](BufferIndex i) { return std::pair{span(i).begin, i}; });
    return needed;
  }

  // The least number of moments between a peak and the birth before it of the last buffer that
  // outlives it and the next peak.
  Moment quiet_before(const std::vector<Moment>& at) const {
    std::vector<Moment> last(at.size(), 0);
    for (const BufferIndex i : by_end_) {
      const auto next = std::ranges::lower_bound(at, span(i).begin + 1);
      const auto peak = static_cast<std::size_t>(next - at.begin());
      if (peak + 1 < at.size() && span(i).end > at[peak + 1]) {
        last[peak] = std::max(last[peak], span(i).begin);
      }
    }
    Moment quiet = at[1] - at[0];
    for (std::size_t t = 1; t + 2 < at.size(); ++t) {
      if (last[t] > at[t - 1]) quiet = std::min(quiet, at[t] - last[t]);
    }
    return quiet;
  }

  const Problem& problem_;
  const Timeline& timeline_;
  const std::vector<Bytes>& load_;
  std::vector<BufferIndex> by_end_;  // the large buffers
};

}  // namespace

Peaks find_peaks(const Problem& problem, const Timeline& timeline, const std::vector<Bytes>& load) {
  return Finder(problem, timeline, load).find();
}

}  // namespace stalloc::solve
