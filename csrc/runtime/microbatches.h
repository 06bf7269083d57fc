// The extents of the microbatches of a run. They are reported when a forward begins, kept until its
// backward is over, and returned in the order of the plan's names.
//
// A run may change a dimension that never changed while it was profiled: the last batch of an epoch
// has fewer rows. No law of the plan uses such a dimension. The runtime keeps its share of the
// largest value: most sizes are proportional to one dimension, or to none.
//
// Cost: O(names) for each forward, O(microbatches in the iteration) for each other phase. Not
// thread-safe, and neither copied nor moved.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "base/types.h"
#include "plan/plan.h"
#include "profile/derived_extent.h"

namespace stalloc::runtime {

// The share of the planned extents that a microbatch has: factor / divisor, below 1.
struct Share {
  profile::Extent factor = 1;
  profile::Extent divisor = 1;
};

class Microbatches {
 public:
  explicit Microbatches(const plan::Plan& plan)
      : names_(plan.extent_names),
        unknown_(plan.extent_names.size(), kNone),
        fixed_(plan.fixed_extents) {
    latest_.extents = unknown_;
  }
  Microbatches(const Microbatches&) = delete;
  Microbatches& operator=(const Microbatches&) = delete;

  struct Row {
    std::int32_t microbatch = kNone;
    std::int32_t chunk = 0;
    std::vector<profile::Extent> extents;  // by the plan's names; kNone where unknown
    std::vector<Share> shares;             // of dimensions that the plan does not name
  };

  // Sets the extents of the current forward if it has none yet, else of the next one. There is one
  // value for each name.
  void set(std::span<const std::string> names, std::span<const std::int64_t> values);

  // Begins a phase. now() returns its extents.
  void enter_phase(trace::PhaseKind kind, std::int32_t microbatch, std::int32_t chunk);

  void end_iteration() {
    in_flight_.clear();
    waits_ = false;
    now_ = &latest_;
  }

  // The extents of the current phase: a forward has its own, a backward those of its forward, any
  // other phase those of the forward that began last.
  const Row& now() const { return *now_; }
  // True if the extents of the current phase were reported.
  bool is_told() const { return told_; }
  // True if those of the next forward were reported.
  bool knows_next() const { return has_next_; }

 private:
  Row row_of(std::span<const std::string> names, std::span<const std::int64_t> values);
  void take(Row row);

  const std::vector<std::string> names_;
  const std::vector<profile::Extent> unknown_;
  const std::map<std::string, profile::Extent> fixed_;
  // By reported name: the name, and the largest value if the plan does not name it, else kNone.
  std::vector<std::string> told_names_;
  std::vector<profile::Extent> largest_;
  struct Source {  // of a plan's extent
    std::size_t told = 0;
    std::size_t planned = 0;
    profile::ExtentForm form;
  };
  std::vector<Source> sources_;
  std::vector<Row> in_flight_;  // of this iteration
  Row latest_;
  Row next_;  // reported ahead of its forward
  bool has_next_ = false;
  bool waits_ = false;  // the current forward has no extents yet
  bool told_ = false;
  const Row* now_ = &latest_;
};

}  // namespace stalloc::runtime
