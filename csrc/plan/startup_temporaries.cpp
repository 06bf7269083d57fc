#include "plan/startup_temporaries.h"

#include <algorithm>
#include <functional>
#include <set>
#include <utility>
#include <vector>

#include "base/align.h"
#include "base/range_set.h"
#include "solve/greedy/greedy.h"

namespace stalloc::plan {
namespace {

// Temporaries are left out for one part in so many of what start-up needs, up to the ends of the
// largest ones that have no place.
constexpr Bytes kLeastSaved = 200;
constexpr std::size_t kMostEnds = 32;

// Places the temporaries of start-up.
class Temporaries {
 public:
  Temporaries(Plan& plan, const profile::Startup& startup, std::span<const DecisionIndex> row_of)
      : plan_(plan), startup_(startup) {
    for (std::size_t i = 0; i < plan.startup.size(); ++i) {
      const StartupRequest& r = plan.startup[i];
      if (r.stays() || r.upper > startup.end) continue;
      rows_.push_back(i);
      streams_.insert(r.stream);
      last_ = std::max(last_, r.upper);
    }
    for (const profile::StartupStay& stay : startup.stays) {
      if (stay.lower < last_) stays_.push_back({row_of[stay.request], stay.lower, stay.upper});
    }
  }

  void place() {
    for (const StreamId stream : streams_) {
      fit(stream, 0, plan_.pool);
      fit(stream, plan_.pool, plan_.pool + plan_.resident);
    }
    leave_out();
  }

 private:
  struct Stay {
    DecisionIndex decision;
    Tick lower;
    Tick upper;
  };

  // Addresses that are used from a tick on, or bytes beside them.
  struct Use {
    Tick tick = 0;
    Bytes beside = 0;  // negative: they are freed
    Range addresses = {};
  };

  // See Note [Left out].
  void leave_out() {
    const Bytes all = plan_.pool + plan_.resident;
    Bytes least = std::max(all, needed(/*end=*/0));
    if (least <= all + all / kLeastSaved) return;
    Tick best = 0;
    for (const Tick end : ends()) {
      const Bytes bytes = std::max(all, needed(end));
      if (bytes >= least - least / kLeastSaved) continue;
      least = bytes;
      best = end;
    }
    for (const std::size_t row : rows_) {
      if (plan_.startup[row].lower < best) plan_.startup[row].offset = kUnplaced;
    }
  }

  // The ticks, ascending, up to which temporaries may be left out.
  std::vector<Tick> ends() const {
    std::vector<StartupRequest> beside;
    for (const std::size_t row : rows_) {
      if (plan_.startup[row].offset == kUnplaced) beside.push_back(plan_.startup[row]);
    }
    std::ranges::sort(beside, std::greater{}, &StartupRequest::size);
    beside.resize(std::min(beside.size(), kMostEnds));
    std::vector<Tick> ends{startup_.work};
    for (const StartupRequest& r : beside) ends.push_back(r.upper);
    std::ranges::sort(ends);
    return ends;
  }

  // The most bytes that start-up needs at once, if temporaries that begin before `end` are left
  // out.
  Bytes needed(Tick end) const {
    Bytes used_bytes = 0, beside = 0, held_beside = 0, most = 0;
    RangeSet used;
    for (const Use& use : uses(end)) {
      beside += use.beside;
      held_beside = use.tick < startup_.work ? std::max(held_beside, beside) : beside;
      if (use.addresses.size() > 0) {
        visit_outside(used, use.addresses, [&](Range r) { used_bytes += r.size(); });
        used.remove(use.addresses);
        used.insert_merged(use.addresses);
      }
      most = std::max(most, used_bytes + held_beside);
    }
    return most;
  }

  std::vector<Use> uses(Tick end) const {
    std::vector<Use> uses;
    const auto add = [&](Tick tick, Offset offset, Bytes size) {
      uses.push_back({tick, 0, {offset, offset + align_up(size, plan_.alignment)}});
    };
    for (const std::size_t row : rows_) {
      const StartupRequest& r = plan_.startup[row];
      if (r.offset != kUnplaced && r.lower >= end) {
        add(r.lower, r.offset, r.size);
        continue;
      }
      uses.push_back({r.lower, r.size});
      uses.push_back({r.upper, -r.size});
    }
    for (const StartupRequest& r : plan_.startup) {
      if (r.stays() && r.offset != kUnplaced) add(r.lower, r.offset, r.size);
    }
    for (const Stay& s : stays_) add(s.lower, plan_[s.decision].offset, plan_[s.decision].size);
    std::ranges::sort(uses, {}, [](const Use& u) { return std::pair{u.tick, u.beside}; });
    return uses;
  }

  // Gives addresses in [begin, end) to the stream's unplaced temporaries that fit there.
  void fit(StreamId stream, Offset begin, Offset end) {
    solve::Problem problem;
    problem.alignment = plan_.alignment;
    std::vector<std::size_t> rows;
    for (const std::size_t row : rows_) {
      const StartupRequest& r = plan_.startup[row];
      if (r.stream != stream || r.offset != kUnplaced) continue;
      rows.push_back(row);
      problem.buffers.push_back({.size = r.size, .lower = r.lower, .upper = r.upper});
    }
    if (rows.empty() || begin == end) return;
    add_obstacles(problem, stream, begin);
    const solve::Timeline timeline(problem);
    const auto layout = solve::place_in_order(
        problem, timeline, solve::ordered(problem, timeline, solve::Order::kSize),
        solve::Fit::kFirst, solve::Budget{});
    for (std::size_t i = 0; i < rows.size(); ++i) {
      const Offset offset = layout->offsets[i];
      if (offset + align_up(problem.buffers[i].size, plan_.alignment) <= end) {
        plan_.startup[rows[i]].offset = offset;
      }
    }
  }

  void add_obstacles(solve::Problem& problem, StreamId stream, Offset begin) const {
    const auto add = [&](Bytes size, Offset offset, Tick lower, Tick upper, StreamId of) {
      const bool ours = of == stream;
      problem.buffers.push_back({.size = size,
                                 .lower = ours ? lower : 0,
                                 .upper = ours ? std::min(upper, last_) : last_,
                                 .fixed = offset});
    };
    if (begin > 0) add(begin, 0, 0, last_, stream);
    for (const StartupRequest& r : plan_.startup) {
      if (r.offset != kUnplaced) add(r.size, r.offset, r.lower, r.upper, r.stream);
    }
    for (const Stay& s : stays_) {
      const Decision& d = plan_[s.decision];
      if (d.stream == stream && d.slots == kNone) add(d.size, d.offset, s.lower, s.upper, d.stream);
    }
    for (const Decision& d : plan_.decisions) {
      if (d.stream != stream) add(d.size, d.offset, 0, last_, d.stream);
    }
    for (const SlotClass& c : plan_.slots) {
      add(c.size * c.count, c.offset, 0, last_, c.stream);
    }
    for (const DynamicGroup& g : plan_.groups) {
      if (g.size > 0) add(g.size, g.offset, std::min(startup_.work, last_), last_, g.stream);
    }
  }

  Plan& plan_;
  const profile::Startup& startup_;
  std::vector<std::size_t> rows_;  // of the temporaries, in Plan::startup
  std::set<StreamId> streams_;     // of the temporaries
  Tick last_ = 0;                  // no temporary is live from this tick on
  std::vector<Stay> stays_;        // lifetimes of decisions before this tick
};

}  // namespace

void place_temporaries(Plan& plan, const profile::Startup& startup,
                       std::span<const DecisionIndex> row_of) {
  Temporaries(plan, startup, row_of).place();
}

}  // namespace stalloc::plan
