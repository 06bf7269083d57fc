#include "runtime/evaluations.h"

#include <algorithm>
#include <utility>

#include "base/align.h"
#include "solve/greedy/greedy.h"

namespace stalloc::runtime {
namespace {

// A part with more requests is not planned.
constexpr std::size_t kMostRequests = std::size_t{1} << 16;

// The number of layouts of a program: one whose requests keep changing gets no more.
constexpr int kMostLayouts = 64;

}  // namespace

void Evaluations::begin(Part part) {
  program_ = &programs_[static_cast<std::size_t>(part)];
  if (part == Part::kForward) ++forwards_;
  if (part == Part::kBeginning && forwards_ > 0) {
    usual_forwards_ = std::exchange(forwards_, 0);
  }
  now_.clear();
  live_.clear();
  alike_ = 0;
  active_ = true;
}

void Evaluations::end() {
  if (!std::exchange(active_, false)) return;
  live_.clear();
  if (now_.empty() || now_.size() >= kMostRequests || program_->layouts == kMostLayouts) return;
  if (learn()) lay_out();
}

Offset Evaluations::next(Bytes size, StreamId stream) {
  const std::size_t i = now_.size();
  if (i == kMostRequests) return kUnplaced;
  now_.push_back({.size = size, .stream = stream});
  if (i >= program_->known.size()) return kUnplaced;
  const Request& known = program_->known[i];
  if (size > known.size || stream != known.stream) return kUnplaced;
  ++alike_;
  return known.offset;
}

bool Evaluations::outlives(Bytes below) const {
  if (now_.empty() || now_.size() > program_->known.size()) return false;
  const Request& known = program_->known[now_.size() - 1];
  return known.freed_at == kNone && known.size < below;
}

bool Evaluations::is_brief() const { return now_.size() <= program_->known.size() && !outlives(); }

void Evaluations::serve(const void* p) {
  if (now_.size() < kMostRequests) live_[p] = static_cast<std::int32_t>(now_.size() - 1);
}

void Evaluations::release(const void* p) {
  const auto at = live_.find(p);
  if (at == live_.end()) return;
  now_[static_cast<std::size_t>(at->second)].freed_at = static_cast<std::int32_t>(now_.size());
  live_.erase(at);
}

// True if the layout has to change.
bool Evaluations::learn() {
  if (now_.size() != program_->known.size()) {
    if (2 * alike_ > now_.size()) return false;
    program_->known = now_;
    return true;
  }
  bool changed = false;
  for (std::size_t i = 0; i < now_.size(); ++i) {
    Request& known = program_->known[i];
    const bool lives_longer =
        known.freed_at != kNone && (now_[i].freed_at == kNone || now_[i].freed_at > known.freed_at);
    changed = changed || lives_longer || now_[i].size > known.size;
    if (lives_longer) known.freed_at = now_[i].freed_at;
    known.size = std::max(known.size, now_[i].size);
  }
  return changed;
}

void Evaluations::lay_out() {
  std::vector<Request>& known = program_->known;
  ++program_->layouts;
  program_->room = 0;
  solve::Problem problem{.alignment = alignment_};
  std::vector<std::size_t> placed;
  for (std::size_t i = 0; i < known.size(); ++i) {
    Request& r = known[i];
    r.offset = kUnplaced;
    if (r.freed_at == kNone) program_->room += align_up(r.size, alignment_);
    if (r.freed_at == kNone || r.stream != stream()) continue;
    problem.buffers.push_back(
        {.size = r.size, .lower = static_cast<Tick>(i), .upper = r.freed_at, .stream = r.stream});
    placed.push_back(i);
  }
  const solve::Layout layout = solve::greedy_planners().front().plan(problem, {});
  program_->height = layout.height;
  for (std::size_t i = 0; i < placed.size(); ++i) known[placed[i]].offset = layout.offsets[i];
}

}  // namespace stalloc::runtime
