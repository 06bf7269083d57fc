// Keeps the figures of a planned run: its statistics and, where the caller serves the fallback, the
// joint figures of both allocators.
//
// Not thread-safe, but for is_behind(): PlannedAllocator locks.
#pragma once

#include <algorithm>
#include <atomic>
#include <utility>

#include "base/types.h"
#include "runtime/joint_gauges.h"
#include "runtime/static_pool.h"
#include "runtime/statistics.h"

namespace stalloc::runtime {

class Accounting {
 public:
  // `joint`: the caller serves the fallback, and reports its figures with note_fallback().
  explicit Accounting(bool joint) : joint_(joint) {}

  // The counters, for the parts that serve.
  Statistics& counts() { return stats_; }
  const Statistics& counts() const { return stats_; }

  // Starts the counters anew for a plan. Live bytes carry over.
  void begin() {
    const Statistics before = std::exchange(stats_, Statistics{});
    stats_.allocated.add(before.allocated.current);
    stats_.fallback.add(before.fallback.current);
    stats_.dynamic.add(before.dynamic.current);
    stats_.dynamic_region.add(before.dynamic_region.current);
    stats_.dynamic_reused.add(before.dynamic_reused.current);
  }
  // Starts the joint figures and the peaks of the run anew, once the pool is reserved.
  void begin_joint() {
    gauges_.begin();
    run_ = {};
  }

  // A block of `size` bytes, `rounded` up, is live.
  void add_block(Bytes size, Bytes rounded) {
    stats_.allocated.add(size);
    if (!joint_) return;
    gauges_.add_block(size, rounded);
    update_behind();
  }
  // A pool's block is freed; release_block() follows once no stream uses it any more.
  void free_block(StaticPool::Block block, Bytes rounded) {
    stats_.allocated.add(-block.size);
    if (joint_) gauges_.free_block(block.size, rounded);
    switch (block.kind) {
      case StaticPool::Kind::kPlanned:
      case StaticPool::Kind::kIdle:
      case StaticPool::Kind::kStartup:
        return;
      case StaticPool::Kind::kRegion:
        stats_.dynamic_region.add(-block.size);
        break;
      case StaticPool::Kind::kReused:
        stats_.dynamic_reused.add(-block.size);
        break;
      case StaticPool::Kind::kIdleDynamic:
        break;
    }
    stats_.dynamic.add(-block.size);
  }
  void release_block(Bytes rounded) {
    if (joint_) gauges_.release_block(rounded);
  }
  // A block of the own fallback is freed.
  void free_fallback_block(Bytes size, bool dynamic) {
    stats_.allocated.add(-size);
    stats_.fallback.add(-size);
    if (dynamic) stats_.dynamic.add(-size);
  }

  // The pools and the own fallback hold this much of the device now.
  void set_reserved(Bytes pools, std::int64_t segments, Bytes fallback) {
    stats_.reserved.add(pools + fallback - stats_.reserved.current);
    if (!joint_) return;
    gauges_.set_reserved(pools, segments);
    update_behind();
  }

  // The caller's fallback holds `figures` now.
  void note_fallback(const JointGauges::Values& figures) {
    gauges_.record(figures);
    stats_.fallback.add(figures[JointGauges::kRequested] - stats_.fallback.current);
    behind_.store(false, std::memory_order_relaxed);
  }
  // True if the peaks are out of date until note_fallback() is called. Thread-safe.
  bool is_behind() const { return behind_.load(std::memory_order_relaxed); }

  void reset_peaks() {
    run_ = run_peaks(statistics());
    stats_.run_peak_allocated = std::max(stats_.run_peak_allocated, stats_.allocated.peak);
    for (Gauge* g : {&stats_.allocated, &stats_.reserved, &stats_.fallback, &stats_.dynamic,
                     &stats_.dynamic_region, &stats_.dynamic_reused}) {
      g->reset_peak();
    }
    gauges_.reset_peaks();
  }

  const JointGauges& gauges() const { return gauges_; }

  // The bytes of live blocks, the most that there were since enable(), and the bytes held of the
  // device: of both allocators where the caller serves the fallback, as far as it has told.
  Bytes live() const { return joint_ ? both(JointGauges::kRequested) : stats_.allocated.current; }
  Bytes most_live() const {
    const Bytes most =
        joint_ ? std::max(gauges_.peaks()[JointGauges::kRequested], live()) : stats_.allocated.peak;
    return std::max({run_.allocated, stats_.run_peak_allocated, most});
  }
  Bytes reserved() const { return joint_ ? both(JointGauges::kReserved) : stats_.reserved.current; }
  // The most bytes held since enable().
  Bytes most_reserved() const {
    const Bytes most = joint_ ? gauges_.peaks()[JointGauges::kReserved] : stats_.reserved.peak;
    return std::max({run_.reserved, most, reserved()});
  }
  // The bytes of these that the caller's fallback holds without a block in them; more if blocks
  // were freed since it has told.
  Bytes cached_by_caller() const {
    return gauges_.other()[JointGauges::kReserved] - gauges_.other()[JointGauges::kActiveBytes];
  }

  // The figures of both allocators together, where the caller serves the fallback.
  Statistics statistics() const {
    Statistics result = stats_;
    if (joint_) add_joint(result);
    const RunPeaks peaks = run_peaks(result);
    result.run_peak_allocated = peaks.allocated;
    result.run_peak_reserved = peaks.reserved;
    return result;
  }
  // True if a block of the caller's fallback was freed while streams used it, and keeps its place.
  bool caller_waits() const {
    return gauges_.other()[JointGauges::kActiveBytes] > gauges_.other()[JointGauges::kRounded];
  }

 private:
  struct RunPeaks {  // since begin_joint()
    Bytes allocated = 0;
    Bytes reserved = 0;
  };

  Bytes both(JointGauges::Quantity q) const { return gauges_.ours()[q] + gauges_.other()[q]; }

  void add_joint(Statistics& result) const {
    const auto joint = [this](JointGauges::Quantity q) {
      return Gauge{both(q), gauges_.peaks()[q]};
    };
    result.allocated = joint(JointGauges::kRequested);
    result.reserved = joint(JointGauges::kReserved);
    result.fallback.current = gauges_.other()[JointGauges::kRequested];
    result.fallback_reserved = gauges_.other()[JointGauges::kReserved];
  }

  RunPeaks run_peaks(const Statistics& now) const {
    return {std::max(run_.allocated, now.allocated.peak),
            std::max(run_.reserved, now.reserved.peak)};
  }

  void update_behind() {
    if (gauges_.behind()) behind_.store(true, std::memory_order_relaxed);
  }

  const bool joint_;
  Statistics stats_;
  JointGauges gauges_;
  RunPeaks run_;  // before the last reset_peaks()
  std::atomic<bool> behind_{false};
};

}  // namespace stalloc::runtime
