// Compares the iterations of a trace: finds each request's counterparts in the other iterations.
//
// The last complete iteration is the reference. Its requests are aligned, phase by phase and thread
// by thread, with those of the iterations before it. Two kinds of iterations are left out:
//   - The first one, a warm-up, if there are three or more.
//   - Two or more at the beginning that run another program (another model, or batch). Then the
//     first iteration of the reference's program is a warm-up too.
// Requests of the training thread are numbered 0, 1, 2, ... in order of allocation if they have a
// counterpart in all compared iterations that have their phase, or are optional: they follow a size
// law, and some shapes of the batch go without several of their layer (a branch). These numbers are
// a clock that all iterations share: the newest number allocated before a moment dates it.
//
// Cost: O(n log n) for each iteration, and alignment.h's.
#pragma once

#include <map>
#include <set>
#include <span>
#include <vector>

#include "base/types.h"
#include "profile/alignment.h"
#include "profile/iteration_profile.h"
#include "profile/size_laws.h"
#include "trace/trace.h"

namespace stalloc::profile {

// A complete iteration: [begin, end) in ticks and the requests born in it.
struct IterationSpan {
  Tick begin = 0;
  Tick end = 0;
  std::int32_t first = 0;  // index into Trace::requests
  std::int32_t count = 0;
};

// The reference's phases, one for each key, and the phase at each tick.
class Phases {
 public:
  // `iteration` is the trace's complete iteration number `index`.
  Phases(const trace::Trace& trace, const IterationSpan& iteration, std::int32_t index);

  // The phase at `tick` of the iteration. Before the first phase: the first. After the last: the
  // last.
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

  std::vector<ProfiledPhase> list_;
  std::vector<Span> spans_;
  std::map<trace::PhaseKey, PhaseIndex> index_;
};

// An iteration is named by its index among the complete ones, and a request by its index within its
// iteration unless the comment says "index into Trace::requests". The trace has passed check() and
// outlives this object.
class Counterparts {
 public:
  // `laws` belong to the trace, whose sizes are those at the envelope; `recorded` has the sizes as
  // asked for. They outlive this object. Throws TraceError if there is no complete iteration.
  Counterparts(const trace::Trace& trace, const SizeLaws& laws, const trace::Trace& recorded);

  const trace::Trace& trace() const { return trace_; }
  std::int32_t reference() const { return reference_; }
  std::int32_t first_compared() const { return first_compared_; }  // up to the reference
  const IterationSpan& iteration(std::int32_t t) const { return iterations_[t]; }
  Tick period() const { return iterations_[reference_].end - iterations_[reference_].begin; }
  const Phases& phases() const { return phases_; }

  const trace::Request& request(std::int32_t t, std::int32_t index) const {
    return trace_.requests[iterations_[t].first + index];
  }
  // The size that was asked for; that of request() is the one at the envelope.
  Bytes asked(std::int32_t t, std::int32_t index) const {
    return recorded_.requests[iterations_[t].first + index].size;
  }
  // The law of that request, or kNone.
  LawIndex law(std::int32_t t, std::int32_t index) const {
    return laws_.empty() ? kNone : laws_.of[iterations_[t].first + index];
  }
  const SizeLaws& laws() const { return laws_; }
  // The extents that the request's size follows; empty if unknown.
  std::span<const Extent> extents(std::int32_t t, std::int32_t index) const {
    if (laws_.empty()) return {};
    return laws_.own[request(t, index).phase_begin.position()];
  }
  // The request's token for the alignment.
  Token token(std::int32_t t, std::int32_t index) const;
  // The counterpart in iteration `t` of the reference's request `i`, or kNone.
  std::int32_t match(std::int32_t t, std::int32_t i) const { return matches_[t][i]; }
  // True if the reference's request `i` has a counterpart in every compared iteration that has its
  // phase, and in another one than the reference.
  bool is_everywhere(std::int32_t i) const;
  // True if the reference's request `i` is optional, see above.
  bool is_optional(std::int32_t i) const { return optional_[i]; }

  // The static number of the reference's request `i`, or kNone, and the request of a number.
  std::int32_t number(std::int32_t i) const { return numbers_[reference_][i]; }
  std::int32_t request_of(std::int32_t number) const { return statics_[number]; }
  // The same for a request of iteration `t`.
  std::int32_t number_in(std::int32_t t, std::int32_t index) const { return numbers_[t][index]; }

  // The largest static number that iteration `t` had allocated before `tick`, or kNone.
  std::int32_t newest_before(std::int32_t t, Tick tick) const;

  // The tick, since the reference began, at which it allocates its request `i`.
  Tick birth(std::int32_t i) const {
    return request(reference_, i).lower - iterations_[reference_].begin;
  }
  // Maps a moment to the reference. The moment has this newest number and lies in that phase (index
  // into Trace::phases). Returns the last tick, since the reference began, that is not after it:
  // the next number's birth, or the end of the phase if that comes first.
  Tick latest(std::int32_t newest, PhaseIndex phase) const;

 private:
  std::int32_t find_first_compared();
  void number_statics();
  bool may_be_absent(std::int32_t i) const;
  void find_optional();

  const trace::Trace& trace_;
  const SizeLaws& laws_;
  const trace::Trace& recorded_;
  std::vector<IterationSpan> iterations_;
  std::int32_t reference_;
  std::int32_t first_compared_ = 0;
  Phases phases_;
  // By iteration:
  std::vector<std::vector<std::int32_t>> matches_;  // counterpart of each of the reference's
  std::vector<std::set<trace::PhaseKey>> made_in_;  // phases in which it makes requests
  std::vector<std::vector<std::int32_t>> numbers_;  // number of each of its requests, or kNone
  std::vector<std::vector<std::int32_t>> newest_;   // newest number after its first n requests
  std::vector<std::int32_t> statics_;               // by number: the reference's request
  std::vector<bool> optional_;                      // by the reference's request
  // By iteration: the phases in which it makes requests that the reference does not make.
  std::vector<std::set<trace::PhaseKey>> others_;
};

}  // namespace stalloc::profile
