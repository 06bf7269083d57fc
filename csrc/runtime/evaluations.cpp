#include "runtime/evaluations.h"

#include <algorithm>
#include <utility>

#include "base/align.h"
#include "profile/size_law.h"
#include "solve/greedy/greedy.h"
#include "trace/trace.h"

namespace stalloc::runtime {
namespace {

// A part with more requests is not planned.
constexpr std::size_t kMostRequests = std::size_t{1} << 16;

// A size that is so many times the known one belongs to another program, such as the prompt of a
// generation after its steps.
constexpr Bytes kMostGrowth = 8;

// The number of layouts of a program: one whose requests keep changing gets no more.
constexpr int kMostLayouts = 64;

// A layout changes within a part as long as one part in so many of it is live.
constexpr Bytes kLateParts = 16;

// A part goes on at most so many positions further ahead.
constexpr std::size_t kLookAhead = 64;

}  // namespace

void Evaluations::begin(Part part) {
  program_ = &programs_[static_cast<std::size_t>(part)];
  has_returned_ = false;
  if (part == Part::kForward) ++forwards_;
  if (part == Part::kBeginning && forwards_ > 0) {
    usual_forwards_ = std::exchange(forwards_, 0);
  }
  if (part == Part::kBeginning) {
    left_.clear();
    left_bytes_ = 0;
  }
  now_.clear();
  live_.clear();
  alike_ = at_ = next_ = 0;
  resync_ = kNowhere;
  active_ = true;
}

void Evaluations::end() {
  if (!std::exchange(active_, false)) return;
  for (const auto& [p, i] : live_) {
    if (left_.size() == kMostRequests) break;
    const Bytes size = now_[static_cast<std::size_t>(i)].size;
    if (left_.emplace(p, size).second) left_bytes_ += size;
  }
  live_.clear();
  if (now_.empty() || now_.size() >= kMostRequests) return;
  learn_numbers();
  if (program_->layouts == kMostLayouts) return;
  observe();
  if (learn()) lay_out();
}

bool Evaluations::enlarge(Bytes size, StreamId stream) {
  const std::size_t at = program_->first_varying;
  if (next_ != at || program_->layouts == kMostLayouts) return false;
  std::vector<Request>& known = program_->known;
  if (at >= known.size() || size <= known[at].size || stream != known[at].stream) return false;
  const Bytes before = known[at].size;
  if (size / kMostGrowth > before || is_late()) return false;
  for (std::size_t i = at; i < known.size(); ++i) {
    if (known[i].size <= kNumber) continue;
    // In proportion at most: a part with other requests may have taught wrong sizes.
    const Bytes most = profile::in_proportion(known[i].size, size, before);
    known[i].size = std::clamp(size_at(i, size), known[i].size, most);
  }
  lay_out();
  return true;
}

// True if the part's live requests take up much of the layout: another one has no room beside them.
bool Evaluations::is_late() const {
  Bytes live = 0;
  for (const auto& [p, i] : live_) live += now_[static_cast<std::size_t>(i)].size;
  return live > program_->height / kLateParts;
}

Offset Evaluations::next(Bytes size, StreamId stream) {
  if (now_.size() == kMostRequests) {
    at_ = kNowhere;
    return kUnplaced;
  }
  at_ = find_position(size, stream);
  next_ = at_ + 1;
  now_.push_back({.size = size, .stream = stream, .at = at_});
  if (!is_known()) return kUnplaced;
  const Request& known = program_->known[at_];
  if (size > known.size || stream != known.stream) return kUnplaced;
  ++alike_;
  return fits(at_, size, stream) ? known.offset : kUnplaced;
}

// The known position of the next request; see the head of the header. O(look-ahead).
std::size_t Evaluations::find_position(Bytes size, StreamId stream) {
  const std::size_t resync = std::exchange(resync_, kNowhere);
  if (resync != kNowhere && fits(resync, size, stream)) return resync;
  if (size > kNumber || fits(next_, size, stream)) return next_;
  const std::size_t end = std::min(program_->known.size(), next_ + kLookAhead);
  for (std::size_t i = next_ + 1; i < end; ++i) {
    if (!fits(i, size, stream)) continue;
    resync_ = i + 1;
    break;
  }
  return next_;
}

// True if a request may be the known one at a position: it is no larger, and a number only where
// that is one of its size.
bool Evaluations::fits(std::size_t position, Bytes size, StreamId stream) const {
  if (position >= program_->known.size()) return false;
  const Request& known = program_->known[position];
  if (stream != known.stream) return false;
  return std::min(size, known.size) <= kNumber ? size == known.size : size <= known.size;
}

bool Evaluations::outlives(Bytes below) const {
  if (now_.empty() || !is_known()) return false;
  const Request& known = program_->known[at_];
  return known.freed_at == kNone && known.size < below;
}

void Evaluations::serve(const void* p) {
  forget_left(p);  // it was freed between two stretches
  if (now_.size() < kMostRequests) live_[p] = static_cast<std::int32_t>(now_.size() - 1);
}

void Evaluations::release(const void* p) {
  const auto at = live_.find(p);
  if (at == live_.end()) {
    forget_left(p);
    return;
  }
  now_[static_cast<std::size_t>(at->second)].freed_at = static_cast<std::int32_t>(now_.size());
  live_.erase(at);
}

void Evaluations::forget_left(const void* p) {
  const auto at = left_.find(p);
  if (at == left_.end()) return;
  left_bytes_ -= at->second;
  left_.erase(at);
}

void Evaluations::observe() {
  auto& [first, second] = program_->observed;
  if (program_->first_varying != kNowhere) return;
  second.clear();
  for (const Request& r : now_) second.push_back(r.size);
  if (first.empty()) {
    first.swap(second);
    return;
  }
  const auto [a, b] = std::ranges::mismatch(first, second);
  // Another program has other requests.
  const auto [fewer, more] = std::minmax({first.size(), second.size()});
  if (2 * fewer > more && a != first.end() && b != second.end()) {
    program_->first_varying = static_cast<std::size_t>(a - first.begin());
  }
}

// The size at a position in a part whose first varying size is `first`: an affine function of it.
Bytes Evaluations::size_at(std::size_t position, Bytes first) const {
  const auto& [a, b] = program_->observed;
  if (position >= a.size() || position >= b.size()) return 0;
  const std::size_t at = program_->first_varying;
  const __int128 rise = static_cast<__int128>(b[position] - a[position]) * (first - a[at]);
  const Bytes run = b[at] - a[at];
  const __int128 size = a[position] + rise / run + 1;
  return static_cast<Bytes>(std::clamp<__int128>(size, 0, trace::kLargestRequest));
}

// A number that outlives its part takes its place from those to come, whatever else the part had.
void Evaluations::learn_numbers() {
  for (const Request& r : now_) {
    if (r.freed_at != kNone || r.size > kNumber || !fits(r.at, r.size, r.stream)) continue;
    Request& known = program_->known[r.at];
    known.freed_at = kNone;
    known.offset = kUnplaced;
  }
}

// True if the layout has to change.
bool Evaluations::learn() {
  const bool went_on_ahead = next_ != now_.size();
  if (went_on_ahead || now_.size() != program_->known.size()) {
    if (2 * alike_ > now_.size()) return false;
    program_->known = now_;
    program_->forget_sizes();
    observe();
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
