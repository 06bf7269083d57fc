// The figures of the planned allocator: statistics, joint figures and the message about a shortage.
// Thread-safe.
#pragma once

#include <string>

#include "base/types.h"
#include "runtime/allocator_parts.h"
#include "runtime/joint_gauges.h"
#include "runtime/statistics.h"

namespace stalloc::runtime {

class Figures {
 public:
  explicit Figures(AllocatorParts& parts) : parts_(parts) {}

  Statistics statistics() const;
  void reset_peaks();
  // Describes the memory held, for the message about a request of `size` bytes that cannot be
  // served.
  std::string out_of_memory_message(Bytes size) const;
  // The same for a caller that holds the lock.
  std::string describe_shortage(Bytes size) const;

  // The pools' part of the joint figures; the caller's fallback has the other part.
  JointGauges joint_gauges() const;
  // With the caller's fallback: its allocator holds `figures` now. Call it after each of its
  // allocations, and after one of ours if are_behind(). The caller reads its figures without our
  // lock, so concurrent requests of other threads may make peaks inexact.
  void note_fallback(const JointGauges::Values& figures);
  // Takes no lock.
  bool are_behind() const { return parts_.accounting.is_behind(); }

 private:
  AllocatorParts& parts_;
};

}  // namespace stalloc::runtime
