#include "solve/core/timeline.h"

#include <algorithm>

#include "base/align.h"

namespace stalloc::solve {
namespace {

// Numbers the ticks at which something happens, in order: by a table if the ticks are dense, by
// search otherwise.
class TickIndex {
 public:
  explicit TickIndex(const Problem& problem) {
    Tick last = 0;
    for (const Buffer& b : problem.buffers) last = std::max(last, b.upper);
    for (const Hold& h : problem.holds) last = std::max(last, h.until);
    last = std::max(last, problem.period);
    dense_ = last / 8 <= static_cast<Tick>(problem.buffers.size()) + 1024;
    if (dense_) {
      size_ = static_cast<std::size_t>(last) + 1;
      return;
    }
    ticks_.reserve(2 * problem.buffers.size() + 2);
    for (const Buffer& b : problem.buffers) {
      ticks_.push_back(b.lower);
      const bool wraps = problem.period > 0 && b.upper > problem.period;
      ticks_.push_back(wraps ? b.upper - problem.period : b.upper);
    }
    for (const Hold& h : problem.holds) {
      const bool wraps = problem.period > 0 && h.until > problem.period;
      ticks_.push_back(wraps ? h.until - problem.period : h.until);
    }
    ticks_.push_back(0);
    ticks_.push_back(problem.period);
    std::sort(ticks_.begin(), ticks_.end());
    ticks_.erase(std::unique(ticks_.begin(), ticks_.end()), ticks_.end());
    size_ = ticks_.size();
  }

  std::size_t size() const { return size_; }
  std::size_t operator()(Tick tick) const {
    if (dense_) return static_cast<std::size_t>(tick);
    return std::lower_bound(ticks_.begin(), ticks_.end(), tick) - ticks_.begin();
  }

 private:
  bool dense_ = false;
  std::size_t size_ = 0;
  std::vector<Tick> ticks_;
};

}  // namespace

Timeline::Timeline(const Problem& problem)
    : spans_(problem.buffers.size()), held_(problem.holds.size()) {
  enum : std::uint8_t { kAllocates = 1, kFrees = 2 };
  const TickIndex index(problem);
  std::vector<std::uint8_t> happens(index.size(), 0);
  // The spans first hold tick indices, then moments.
  const auto enter = [&](Tick lower, Tick upper, Span& span) {
    if (upper <= lower) return;
    const bool wraps = problem.period > 0 && upper > problem.period;
    span.begin = static_cast<Moment>(index(lower));
    span.end = static_cast<Moment>(index(wraps ? problem.period : upper));
    span.wrap = wraps ? static_cast<Moment>(index(upper - problem.period)) : 0;
    happens[span.begin] |= kAllocates;
    happens[span.end] |= kFrees;
    if (wraps) {
      happens[0] |= kAllocates;
      happens[span.wrap] |= kFrees;
    }
  };
  for (std::size_t i = 0; i < spans_.size(); ++i) {
    enter(problem.buffers[i].lower, problem.buffers[i].upper, spans_[i]);
  }
  for (std::size_t k = 0; k < held_.size(); ++k) {
    const Hold& h = problem.holds[k];
    const Buffer& b = problem.buffers[h.buffer];
    const Tick passed = problem.period > 0 && b.upper >= problem.period ? problem.period : 0;
    enter(b.lower, h.until, held_[k].whole);
    enter(b.upper - passed, h.until - passed, held_[k].rest);
  }
  std::vector<Moment> moment_of(index.size());  // how many moments lie before the tick
  bool grown = false;
  for (std::size_t t = 0; t < happens.size(); ++t) {
    if ((happens[t] & kFrees) && grown) {
      ++moments_;
      grown = false;
    }
    moment_of[t] = moments_;
    if (happens[t] & kAllocates) grown = true;
  }
  const auto settle = [&](Span& span) {
    if (span.empty()) return;
    span = {moment_of[span.begin], moment_of[span.end], span.wrap ? moment_of[span.wrap] : 0};
    if (span.wrap >= span.begin) span = {0, span.end, 0};  // the whole circle
  };
  for (Span& span : spans_) settle(span);
  for (HeldSpans& h : held_) {
    settle(h.whole);
    settle(h.rest);
  }
}

std::vector<Bytes> Timeline::load(const Problem& problem) const {
  std::vector<Bytes> load(static_cast<std::size_t>(moments_) + 1, 0);
  for (std::size_t i = 0; i < spans_.size(); ++i) {
    const Span& span = spans_[i];
    if (span.empty()) continue;
    const Bytes size = align_up(problem.buffers[i].size, problem.alignment);
    load[span.begin] += size;
    load[span.end] -= size;
    if (span.wrap > 0) {
      load[0] += size;
      load[span.wrap] -= size;
    }
  }
  for (Moment m = 1; m < moments_; ++m) load[m] += load[m - 1];
  load.pop_back();
  return load;
}

}  // namespace stalloc::solve
