// The iterations of a trace side by side: which request of one is which of another.
//
// The last complete iteration is the reference. Its requests are aligned, phase by phase and thread
// by thread, with those of the iterations before it. The first, a warm-up, is left out when there
// are three or more; and so are two or more at the beginning that are of another program (another
// model, or batch), of which the first of those that are not is a warm-up again. Those of the
// training thread that have a counterpart in all of them are numbered 0, 1, 2, ... in order of
// allocation; the numbers are a clock that all iterations share: a moment of any of them is told by
// the newest number allocated before it.
//
// Cost: O(n log n) for each iteration, and alignment.h's.
#pragma once

#include <map>
#include <vector>

#include "base/types.h"
#include "profile/alignment.h"
#include "profile/iteration_profile.h"
#include "profile/size_laws.h"
#include "trace/trace.h"

namespace stalloc::profile {

// A complete iteration: [begin, end) in ticks and the requests born in it.
struct Turn {
  Tick begin = 0;
  Tick end = 0;
  std::int32_t first = 0;  // index into Trace::requests
  std::int32_t count = 0;
};

// The reference's phases, one for each key, and which of them it is at any tick.
class Phases {
 public:
  // `turn` is the trace's complete iteration number `iteration`.
  Phases(const trace::Trace& trace, const Turn& turn, std::int32_t iteration);

  // The phase at `tick` of the iteration; before the first and after the last, that one.
  PhaseIndex at(Tick tick) const;
  // The phase of that key, or kNone.
  PhaseIndex find(const trace::PhaseKey& key) const;
  const std::vector<ProfiledPhase>& list() const { return list_; }

 private:
  struct Span {
    Tick begin;
    PhaseIndex phase;
  };

  void add(const trace::PhaseKey& key, Tick begin, Tick end);
  void tell_microbatches();

  std::vector<ProfiledPhase> list_;
  std::vector<Span> spans_;
  std::map<trace::PhaseKey, PhaseIndex> index_;
};

// Iterations are told by their index among the complete ones, and requests, but for
// Trace::requests' own, by their index within their iteration. The trace has passed check() and
// outlives this.
class Counterparts {
 public:
  // `laws` are those of the trace, whose sizes are those at the envelope; they outlive this, too.
  // Throws TraceError when there is no complete iteration.
  Counterparts(const trace::Trace& trace, const SizeLaws& laws);

  const trace::Trace& trace() const { return trace_; }
  std::int32_t reference() const { return reference_; }
  std::int32_t first_compared() const { return first_compared_; }  // up to the reference
  const Turn& turn(std::int32_t t) const { return turns_[t]; }
  Tick period() const { return turns_[reference_].end - turns_[reference_].begin; }
  const Phases& phases() const { return phases_; }

  const trace::Request& request(std::int32_t t, std::int32_t index) const {
    return trace_.requests[turns_[t].first + index];
  }
  // The law of that request, or kNone.
  LawIndex law(std::int32_t t, std::int32_t index) const {
    return laws_.empty() ? kNone : laws_.of[turns_[t].first + index];
  }
  // What the request looks like to the alignment.
  Token token(std::int32_t t, std::int32_t index) const;
  // The counterpart in iteration `t` of the reference's request `i`, or kNone.
  std::int32_t match(std::int32_t t, std::int32_t i) const { return matches_[t][i]; }
  // Whether the reference's request `i` has a counterpart in every iteration.
  bool is_everywhere(std::int32_t i) const;

  // The static number of the reference's request `i`, or kNone, and the request of a number.
  std::int32_t number(std::int32_t i) const { return numbers_[reference_][i]; }
  std::int32_t request_of(std::int32_t number) const { return statics_[number]; }
  // The same of a request of iteration `t`.
  std::int32_t number_in(std::int32_t t, std::int32_t index) const { return numbers_[t][index]; }

  // The largest static number that iteration `t` had allocated before `tick`, or kNone.
  std::int32_t newest_before(std::int32_t t, Tick tick) const;

  // When the reference allocates its request `i`, since it began.
  Tick birth(std::int32_t i) const {
    return request(reference_, i).lower - turns_[reference_].begin;
  }
  // The last tick of the reference, since it began, that is not after a moment with this newest
  // number in that phase (index into Trace::phases): the next number's birth or, where it comes
  // first, the end of the phase.
  Tick latest(std::int32_t newest, PhaseIndex phase) const;

 private:
  std::int32_t find_first_compared();
  void number_statics();

  const trace::Trace& trace_;
  const SizeLaws& laws_;
  std::vector<Turn> turns_;
  std::int32_t reference_;
  std::int32_t first_compared_ = 0;
  Phases phases_;
  std::vector<std::vector<std::int32_t>> matches_;  // by turn: of each of the reference's requests
  std::vector<std::vector<std::int32_t>> numbers_;  // by turn: of each of its requests, or kNone
  std::vector<std::vector<std::int32_t>> newest_;   // by turn: after so many of its requests
  std::vector<std::int32_t> statics_;               // request of each number
};

}  // namespace stalloc::profile
