#include "solve/core/stream_placement.h"

#include <algorithm>

namespace stalloc::solve {

StreamPlacement::StreamPlacement(const Problem& problem, const Timeline& timeline)
    : problem_(problem), timeline_(timeline) {
  if (problem.holds.empty()) {
    all_.emplace_back(timeline.moments());
    return;
  }
  for (const Buffer& b : problem.buffers) streams_.push_back(b.stream);
  for (const Hold& h : problem.holds) streams_.push_back(h.stream);
  std::ranges::sort(streams_);
  streams_.erase(std::unique(streams_.begin(), streams_.end()), streams_.end());
  for (std::size_t s = 0; s < streams_.size(); ++s) {
    all_.emplace_back(timeline.moments());
    own_.emplace_back(timeline.moments());
  }
  std::size_t next = 0;
  for (std::size_t i = 0; i <= problem.buffers.size(); ++i) {
    while (next < problem.holds.size() &&
           static_cast<std::size_t>(problem.holds[next].buffer) < i) {
      ++next;
    }
    first_hold_.push_back(next);
  }
}

std::size_t StreamPlacement::place_of(StreamId stream) const {
  return std::ranges::lower_bound(streams_, stream) - streams_.begin();
}

void StreamPlacement::visit_holds(std::size_t i, auto visit) const {
  for (std::size_t k = first_hold_[i]; k < first_hold_[i + 1]; ++k) {
    visit(place_of(problem_.holds[k].stream), timeline_.held()[k]);
  }
}

const std::vector<Placement::Search>& StreamPlacement::searches(std::size_t i) const {
  searches_.clear();
  searches_.push_back({&all_[place_of(problem_.buffers[i].stream)], timeline_.span(i)});
  visit_holds(i, [&](std::size_t stream, const HeldSpans& held) {
    searches_.push_back({&own_[stream], held.rest});
  });
  return searches_;
}

Offset StreamPlacement::first_fit(std::size_t i, Bytes size) const {
  if (own_.empty()) return all_.front().first_fit(timeline_.span(i), size);
  return Placement::first_fit(searches(i), size);
}

Offset StreamPlacement::best_fit(std::size_t i, Bytes size, Offset top) const {
  if (own_.empty()) return all_.front().best_fit(timeline_.span(i), size, top);
  return Placement::best_fit(searches(i), size, top);
}

void StreamPlacement::place(std::size_t i, Offset offset, Bytes size) {
  const Span& span = timeline_.span(i);
  if (own_.empty()) return all_.front().place(span, offset, size);
  own_[place_of(problem_.buffers[i].stream)].place(span, offset, size);
  std::size_t next = 0;
  visit_holds(i, [&](std::size_t stream, const HeldSpans& held) {
    for (; next < stream; ++next) all_[next].place(span, offset, size);
    all_[next++].place(held.whole, offset, size);
  });
  for (; next < all_.size(); ++next) all_[next].place(span, offset, size);
}

}  // namespace stalloc::solve
