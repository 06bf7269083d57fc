#include "profile/counterparts.h"

#include <algorithm>
#include <set>
#include <utility>

#include "base/error.h"

namespace stalloc::profile {
namespace {

// The fewest iterations before the reference among which a change of program can be found.
constexpr std::int32_t kFewest = 3;

// Fewer requests of a layer that some iterations go without are dynamic: hardly any are lost, and
// where many sizes are equal nobody could tell which of them are absent.
constexpr std::size_t kFewestOptional = 4;

// Iterations at the beginning run another program if each of them differs from the reference more
// than twice as much as any later one does, and by this share of the requests in addition. A
// program whose sizes always differ may fulfil this by chance. So there must also be three or more
// later iterations, or the iterations at the beginning must be like each other.
constexpr double kOtherProgram = 0.1;

std::int32_t first_request_at(const trace::Trace& trace, Tick tick) {
  const auto it = std::ranges::lower_bound(trace.requests, tick, {}, &trace::Request::lower);
  return static_cast<std::int32_t>(it - trace.requests.begin());
}

std::vector<IterationSpan> complete_iterations(const trace::Trace& trace) {
  std::vector<IterationSpan> iterations;
  for (std::size_t i = 1; i < trace.iterations.size(); ++i) {
    IterationSpan iteration{trace.iterations[i - 1], trace.iterations[i]};
    iteration.first = first_request_at(trace, iteration.begin);
    iteration.count = first_request_at(trace, iteration.end) - iteration.first;
    iterations.push_back(iteration);
  }
  return iterations;
}

// The planned requests of one iteration by phase and thread, each list in order.
using SequenceKey = std::pair<trace::PhaseKey, ThreadOrdinal>;
struct Sequence {
  std::vector<Token> tokens;
  std::vector<std::int32_t> requests;  // relative to IterationSpan::first
  std::vector<bool> outlives;          // true for those that are freed after the iteration
};

std::map<SequenceKey, Sequence> by_key(const Counterparts& all, std::int32_t t) {
  const trace::Trace& trace = all.trace();
  const IterationSpan& iteration = all.iteration(t);
  std::map<SequenceKey, Sequence> sequences;
  Sequence* current = nullptr;
  PhaseIndex phase = kNone;
  ThreadOrdinal thread = kNone;
  for (std::int32_t i = 0; i < iteration.count; ++i) {
    const trace::Request& r = trace.requests[iteration.first + i];
    const trace::PhaseKey& key = trace[r.phase_begin].key;
    // A tagged request must not become the counterpart of a static one of the same size.
    if (key.kind == trace::PhaseKind::kUnplanned || r.dynamic) continue;
    if (!current || r.phase_begin != phase || r.thread != thread) {
      phase = r.phase_begin;
      thread = r.thread;
      current = &sequences[{key, thread}];
    }
    current->tokens.push_back(all.token(t, i));
    current->requests.push_back(i);
    current->outlives.push_back(r.upper >= iteration.end);
  }
  return sequences;
}

// Moves matches to a neighbour of the same token that lives alike. A buffer that a program enlarges
// now and then, and keeps, would else be the counterpart of a temporary of its size:
//
//   ours           a b c            a b c
//                 / / /      ->     | | |
//   theirs     kept a b c      kept a b c      all of one token
void match_lives(const Sequence& ours, const Sequence& theirs, std::vector<std::int32_t>& matches) {
  const auto count = static_cast<std::int32_t>(theirs.tokens.size());
  std::vector<std::int32_t> taken(theirs.tokens.size() + 1, kNone);
  for (std::size_t i = 0; i < matches.size(); ++i) {
    if (matches[i] != kNone) taken[matches[i]] = static_cast<std::int32_t>(i);
  }
  for (std::size_t i = 0; i < matches.size(); ++i) {
    if (matches[i] == kNone || ours.outlives[i] || !theirs.outlives[matches[i]]) continue;
    // The chain of matches that have to move by one each.
    std::size_t end = i;
    const auto moves = [&](std::size_t k) {
      const std::int32_t to = matches[k] + 1;
      return to < count && theirs.tokens[to] == ours.tokens[k] &&
             ours.outlives[k] == theirs.outlives[to];
    };
    bool fits = moves(end);
    while (fits && taken[matches[end] + 1] != kNone) {
      end = static_cast<std::size_t>(taken[matches[end] + 1]);
      fits = moves(end);
    }
    if (!fits) continue;
    for (std::size_t k = end + 1; k-- > i;) {
      if (matches[k] == kNone) continue;
      taken[matches[k]] = kNone;
      taken[++matches[k]] = static_cast<std::int32_t>(k);
    }
  }
}

// For each of the `count` requests of iteration `a`, its counterpart in iteration `b`, or kNone.
// All relative to IterationSpan::first.
std::vector<std::int32_t> counterparts(const std::map<SequenceKey, Sequence>& a, std::int32_t count,
                                       const std::map<SequenceKey, Sequence>& b) {
  std::vector<std::int32_t> result(count, kNone);
  for (const auto& [key, ours] : a) {
    const auto theirs = b.find(key);
    if (theirs == b.end()) continue;
    std::vector<std::int32_t> matches = align_sequences(ours.tokens, theirs->second.tokens);
    match_lives(ours, theirs->second, matches);
    for (std::size_t i = 0; i < matches.size(); ++i) {
      if (matches[i] != kNone) result[ours.requests[i]] = theirs->second.requests[matches[i]];
    }
  }
  return result;
}

// The share of an iteration's requests that have no counterpart in another one.
double share_without(const std::map<SequenceKey, Sequence>& sequences,
                     const std::vector<std::int32_t>& matches) {
  std::int64_t all = 0;
  std::int64_t without = 0;
  for (const auto& [key, sequence] : sequences) {
    for (const std::int32_t i : sequence.requests) {
      ++all;
      without += matches[i] == kNone;
    }
  }
  return all > 0 ? static_cast<double>(without) / static_cast<double>(all) : 0.0;
}

std::int32_t last(const std::vector<IterationSpan>& iterations) {
  if (iterations.empty()) {
    throw TraceError(
        "the trace holds no complete iteration: profile at least one, better three, and mark the "
        "end of each with step()");
  }
  return static_cast<std::int32_t>(iterations.size()) - 1;
}

}  // namespace

Phases::Phases(const trace::Trace& trace, const IterationSpan& iteration, std::int32_t index) {
  for (const trace::PhaseSpan& span : trace.phases) {
    // An empty phase on the boundary of two iterations is one's last or the other's first.
    const bool is_own = span.iteration == index && iteration.begin <= span.begin;
    const bool lies_within = span.begin == span.end
                                 ? is_own && span.end <= iteration.end
                                 : span.begin < iteration.end && iteration.begin < span.end;
    if (!lies_within) continue;
    add(span.key, std::max(span.begin, iteration.begin) - iteration.begin,
        std::min(span.end, iteration.end) - iteration.begin);
  }
  if (list_.empty()) add({}, 0, iteration.end - iteration.begin);
  tell_microbatches(list_, iteration.end - iteration.begin);
}

PhaseIndex Phases::at(Tick tick) const {
  const auto after = std::ranges::upper_bound(spans_, tick, {}, &Span::begin);
  return after == spans_.begin() ? spans_.front().phase : std::prev(after)->phase;
}

PhaseIndex Phases::find(const trace::PhaseKey& key) const {
  const auto it = index_.find(key);
  return it == index_.end() ? kNone : it->second;
}

void Phases::add(const trace::PhaseKey& key, Tick begin, Tick end) {
  const auto [it, is_new] = index_.try_emplace(key, list_.size());
  if (is_new) list_.push_back({key, begin, end});
  list_[it->second.position()].end = end;
  spans_.push_back({begin, it->second});
}

Counterparts::Counterparts(const trace::Trace& trace, const SizeLaws& laws,
                           const trace::Trace& recorded)
    : trace_(trace),
      laws_(laws),
      recorded_(recorded),
      iterations_(complete_iterations(trace)),
      reference_(last(iterations_)),
      phases_(trace, iterations_[reference_], reference_) {
  first_compared_ = find_first_compared();
  number_statics();
}

// Aligns the reference with the iterations before it. Returns the first that runs its program.
std::int32_t Counterparts::find_first_compared() {
  const std::int32_t usual = reference_ >= 2 ? 1 : 0;
  std::vector<std::map<SequenceKey, Sequence>> sequences;
  made_in_.resize(iterations_.size());
  for (std::int32_t t = 0; t <= reference_; ++t) {
    sequences.push_back(by_key(*this, t));
    for (const auto& [key, sequence] : sequences.back()) {
      if (key.second == 0) made_in_[t].insert(key.first);
    }
  }
  const auto align = [&](std::int32_t a, std::int32_t b) {
    return counterparts(sequences[a], iterations_[a].count, sequences[b]);
  };
  matches_.resize(iterations_.size());
  const std::int32_t first = reference_ >= kFewest ? 0 : usual;
  for (std::int32_t t = first; t <= reference_; ++t) matches_[t] = align(reference_, t);
  if (first == usual) return usual;
  std::vector<double> unlike;  // by iteration: how much the reference differs from it
  for (const auto& matches : matches_)
    unlike.push_back(share_without(sequences[reference_], matches));
  for (std::int32_t begin = 2; begin < reference_; ++begin) {
    const auto rest = unlike.begin() + begin;
    const double most_alike = *std::min_element(unlike.begin(), rest);
    const double least_alike = *std::max_element(rest, unlike.end());
    if (most_alike < 2 * least_alike + kOtherProgram) continue;
    if (reference_ - begin >= 2) return begin + 1;
    bool alike = true;  // the iterations at the beginning
    for (std::int32_t t = 1; t < begin && alike; ++t) {
      alike = share_without(sequences[t], align(t, t - 1)) <= least_alike + kOtherProgram;
    }
    if (alike) return begin;
  }
  return usual;
}

Token Counterparts::token(std::int32_t t, std::int32_t index) const {
  const trace::Request& r = request(t, index);
  Token token{r.size, r.stream, law(t, index)};
  // A constant size needs no law to be alike.
  if (token.law != kNone) {
    const SizeLaw& law = laws_[token.law];
    if (law.terms.empty() && law.proof != LawProof::kUnexplained) token.law = kNone;
  }
  return token;
}

bool Counterparts::is_everywhere(std::int32_t i) const {
  if (matches_[reference_][i] == kNone) return false;
  const trace::PhaseKey& phase = trace_[request(reference_, i).phase_begin].key;
  bool is_seen = first_compared_ == reference_;  // there is nothing to compare with
  for (std::int32_t t = first_compared_; t < reference_; ++t) {
    if (matches_[t][i] == kNone && made_in_[t].contains(phase)) return false;
    is_seen = is_seen || matches_[t][i] != kNone;
  }
  return is_seen;
}

// True if the reference's request `i` follows a law, and every iteration has a counterpart or makes
// no request in the phase that the reference does not make, too.
bool Counterparts::may_be_absent(std::int32_t i) const {
  const LawIndex known = law(reference_, i);
  if (known == kNone || matches_[reference_][i] == kNone || is_everywhere(i)) return false;
  if (laws_[known].proof == LawProof::kUnexplained) return false;
  const trace::Request& r = request(reference_, i);
  bool is_seen = false;
  for (std::int32_t t = first_compared_; t < reference_; ++t) {
    is_seen = is_seen || matches_[t][i] != kNone;
    if (matches_[t][i] == kNone && others_[t].contains(trace_[r.phase_begin].key)) {
      return false;
    }
  }
  return is_seen;
}

void Counterparts::find_optional() {
  const std::int32_t count = iterations_[reference_].count;
  optional_.assign(count, false);
  if (laws_.empty()) return;
  others_.resize(iterations_.size());
  for (std::int32_t t = first_compared_; t < reference_; ++t) {
    std::set<std::int32_t> matched(matches_[t].begin(), matches_[t].end());
    for (std::int32_t index = 0; index < iterations_[t].count; ++index) {
      const trace::Request& r = request(t, index);
      if (r.thread != 0 || matched.contains(index)) continue;
      others_[t].insert(trace_[r.phase_begin].key);
    }
  }
  std::map<std::pair<trace::PhaseKey, LayerIndex>, std::vector<std::int32_t>> absent;
  for (std::int32_t i = 0; i < count; ++i) {
    const trace::Request& r = request(reference_, i);
    if (r.thread != 0 || !may_be_absent(i)) continue;
    absent[{trace_[r.phase_begin].key, r.layer_begin}].push_back(i);
  }
  for (const auto& [stay, requests] : absent) {
    if (requests.size() < kFewestOptional) continue;
    for (const std::int32_t i : requests) optional_[i] = true;
  }
}

void Counterparts::number_statics() {
  find_optional();
  for (std::int32_t i = 0; i < iterations_[reference_].count; ++i) {
    if (request(reference_, i).thread != 0) continue;
    if (is_everywhere(i) || is_optional(i)) statics_.push_back(i);
  }
  numbers_.resize(iterations_.size());
  newest_.resize(iterations_.size());
  for (std::int32_t t = first_compared_; t <= reference_; ++t) {
    auto& numbers = numbers_[t];
    numbers.assign(iterations_[t].count, kNone);
    for (std::size_t n = 0; n < statics_.size(); ++n) {
      const std::int32_t index = matches_[t][statics_[n]];
      if (index != kNone) numbers[index] = static_cast<std::int32_t>(n);
    }
    auto& newest = newest_[t];
    newest.reserve(numbers.size() + 1);
    newest.push_back(kNone);
    for (const std::int32_t n : numbers) newest.push_back(std::max(newest.back(), n));
  }
}

std::int32_t Counterparts::newest_before(std::int32_t t, Tick tick) const {
  const std::int32_t allocated = first_request_at(trace_, tick) - iterations_[t].first;
  return newest_[t][std::clamp(allocated, 0, iterations_[t].count)];
}

Tick Counterparts::latest(std::int32_t newest, PhaseIndex phase) const {
  const auto next = static_cast<std::size_t>(newest + 1);
  const Tick latest = next < statics_.size() ? birth(statics_[next]) : period();
  const Tick earliest = newest == kNone ? 0 : birth(statics_[newest]) + 1;
  const PhaseIndex known = phases_.find(trace_[phase].key);
  const Tick phase_end = known == kNone ? latest : phases_.list()[known.position()].end;
  return phase_end >= earliest ? std::min(latest, phase_end) : latest;
}

}  // namespace stalloc::profile
