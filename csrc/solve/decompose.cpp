#include "solve/decompose.h"

#include <algorithm>
#include <utility>

#include "base/align.h"
#include "solve/core/origin.h"
#include "solve/core/timeline.h"

namespace stalloc::solve {
namespace {

// Limits the depth: nested lifetimes could be peeled one by one, each with a pass over the rest.
constexpr int kDeepest = 4;

struct Piece {
  Part part;
  int depth = 0;
};

// Marks the moments that share no buffer with the moments before.
std::vector<bool> find_cuts(const Timeline& timeline) {
  std::vector<std::int32_t> crossing(static_cast<std::size_t>(timeline.moments()) + 1, 0);
  for (const Span& span : timeline.spans()) {
    if (span.empty()) continue;
    ++crossing[span.begin + 1];
    --crossing[span.end];
  }
  std::vector<bool> cuts(timeline.moments(), false);
  std::int32_t now = 0;
  for (Moment m = 0; m < timeline.moments(); ++m) {
    now += crossing[m];
    cuts[m] = m > 0 && now == 0;
  }
  return cuts;
}

// Moves buffers that live throughout to the bottom. Returns true if there was one.
bool peel(Part& part, const Timeline& timeline, std::vector<Offset>& offsets) {
  std::vector<Buffer>& buffers = part.problem.buffers;
  std::size_t kept = 0;
  for (std::size_t i = 0; i < buffers.size(); ++i) {
    const Span& span = timeline.span(i);
    if (span.begin == 0 && span.end == timeline.moments()) {
      offsets[part.buffers[i]] = part.base;
      part.base += align_up(buffers[i].size, part.problem.alignment);
    } else {
      buffers[kept] = buffers[i];
      part.buffers[kept] = part.buffers[i];
      ++kept;
    }
  }
  const bool peeled = kept < buffers.size();
  buffers.resize(kept);
  part.buffers.resize(kept);
  return peeled;
}

std::vector<Part> split(Part part, const Timeline& timeline, const std::vector<bool>& cuts) {
  std::vector<std::size_t> stretch(cuts.size());
  std::size_t count = 0;
  for (std::size_t m = 0; m < cuts.size(); ++m) stretch[m] = cuts[m] ? ++count : count;
  std::vector<Part> parts(count + 1);
  for (Part& p : parts) {
    p.problem.alignment = part.problem.alignment;
    p.base = part.base;
  }
  for (std::size_t i = 0; i < part.buffers.size(); ++i) {
    Part& p = parts[stretch[timeline.span(i).begin]];
    p.problem.buffers.push_back(part.problem.buffers[i]);
    p.buffers.push_back(part.buffers[i]);
  }
  return parts;
}

}  // namespace

std::vector<Part> decompose(const Problem& problem, std::vector<Offset>& offsets) {
  std::vector<Piece> pending(1);
  Part& whole = pending.front().part;
  whole.problem = problem.period > 0 ? with_origin(problem, lightest_tick(problem)) : problem;
  std::vector<Buffer>& buffers = whole.problem.buffers;
  std::size_t kept = 0;
  for (std::size_t i = 0; i < buffers.size(); ++i) {
    offsets[i] = 0;
    if (buffers[i].size == 0 || buffers[i].upper <= buffers[i].lower) continue;
    buffers[kept++] = buffers[i];
    whole.buffers.push_back(static_cast<std::int32_t>(i));
  }
  buffers.resize(kept);

  std::vector<Part> parts;
  while (!pending.empty()) {
    Piece piece = std::move(pending.back());
    pending.pop_back();
    Part& part = piece.part;
    Timeline timeline(part.problem);
    while (piece.depth < kDeepest && peel(part, timeline, offsets)) {
      ++piece.depth;
      timeline = Timeline(part.problem);
    }
    if (part.buffers.empty()) continue;
    if (piece.depth < kDeepest && part.problem.period == 0) {
      const std::vector<bool> cuts = find_cuts(timeline);
      if (std::find(cuts.begin(), cuts.end(), true) != cuts.end()) {
        for (Part& p : split(std::move(part), timeline, cuts)) {
          pending.push_back({std::move(p), piece.depth + 1});
        }
        continue;
      }
    }
    const std::vector<Bytes> load = timeline.load(part.problem);
    part.load = *std::max_element(load.begin(), load.end());
    parts.push_back(std::move(part));
  }
  std::stable_sort(parts.begin(), parts.end(),
                   [](const Part& a, const Part& b) { return a.base + a.load > b.base + b.load; });
  return parts;
}

}  // namespace stalloc::solve
