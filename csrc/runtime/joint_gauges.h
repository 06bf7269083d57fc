// Quantities that are the sum of the pool's part and another allocator's part, and the peaks of
// these sums. A caller that serves the fallback itself reports them as those of one allocator.
//
// The other part is known only from record(), since querying it is expensive. A sum can exceed its
// peak if the other part grows: the caller calls record() after each allocation of its own. Or our
// part grows: then behind() becomes true until the next record(). Between two calls of record() the
// other part can only shrink, so behind() is never late. In a run that has reached its peaks it
// stays false.
// Not thread-safe.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "base/types.h"

namespace stalloc::runtime {

class JointGauges {
 public:
  enum Quantity : std::uint8_t {
    kBlocks,        // live
    kRequested,     // bytes of live blocks, as asked for
    kRounded,       // bytes of live blocks, as they were rounded up
    kActiveBlocks,  // live, or freed while streams still use them
    kActiveBytes,   // of these, rounded
    kReserved,      // bytes held of the device
    kSegments,      // pieces held of the device
    kQuantities
  };
  using Values = std::array<std::int64_t, kQuantities>;

  void add_block(Bytes requested, Bytes rounded) {
    add(kBlocks, 1);
    add(kRequested, requested);
    add(kRounded, rounded);
    add(kActiveBlocks, 1);
    add(kActiveBytes, rounded);
  }
  void free_block(Bytes requested, Bytes rounded) {
    ours_[kBlocks] -= 1;
    ours_[kRequested] -= requested;
    ours_[kRounded] -= rounded;
  }
  // After free_block(), when no stream uses the block any more.
  void release_block(Bytes rounded) {
    ours_[kActiveBlocks] -= 1;
    ours_[kActiveBytes] -= rounded;
  }
  void set_reserved(Bytes bytes, std::int64_t segments) {
    add(kReserved, bytes - ours_[kReserved]);
    add(kSegments, segments - ours_[kSegments]);
  }

  // True if a sum may exceed its peak until record() is called.
  bool behind() const { return behind_; }

  // The other part is `other` now.
  void record(const Values& other) {
    other_ = other;
    for (std::size_t q = 0; q < kQuantities; ++q) {
      peaks_[q] = std::max(peaks_[q], ours_[q] + other_[q]);
    }
    behind_ = false;
  }

  // Starts peaks() anew; all_time_peaks() keeps their old values. Call record() next.
  void begin() {
    all_time_ = all_time_peaks();
    other_ = {};
    peaks_ = ours_;
    behind_ = true;
  }
  // Starts both anew. Call it right after record().
  void reset_peaks() {
    for (std::size_t q = 0; q < kQuantities; ++q) peaks_[q] = ours_[q] + other_[q];
    all_time_ = peaks_;
    behind_ = false;
  }

  const Values& ours() const { return ours_; }
  const Values& other() const { return other_; }
  const Values& peaks() const { return peaks_; }
  Values all_time_peaks() const {
    Values result;
    for (std::size_t q = 0; q < kQuantities; ++q) result[q] = std::max(all_time_[q], peaks_[q]);
    return result;
  }
  // The sums of everything that was ever added to our part.
  const Values& totals() const { return totals_; }

 private:
  void add(Quantity q, std::int64_t amount) {
    ours_[q] += amount;
    if (amount > 0) totals_[q] += amount;
    behind_ = behind_ || ours_[q] + other_[q] > peaks_[q];
  }

  Values ours_{};
  Values other_{};
  Values peaks_{};
  Values all_time_{};
  Values totals_{};
  bool behind_ = false;
};

}  // namespace stalloc::runtime
