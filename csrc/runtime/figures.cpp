#include "runtime/figures.h"

#include <algorithm>

#include "base/format.h"

namespace stalloc::runtime {

Statistics Figures::statistics() const {
  const std::lock_guard lock(parts_.mutex);
  Statistics result = parts_.accounting.statistics();
  if (!parts_.callers_fallback) result.fallback_reserved = parts_.fallback.reserved();
  if (!parts_.serving) return result;
  result.hits += parts_.serving->hits_now();
  const Pool& pool = *parts_.pools.active();
  result.live_blocks = static_cast<std::int64_t>(pool.space.live_blocks());
  result.strays = static_cast<std::int64_t>(pool.space.strays());
  result.stream_waits += pool.waits();
  return result;
}

void Figures::reset_peaks() {
  const std::lock_guard lock(parts_.mutex);
  parts_.accounting.reset_peaks();
}

std::string Figures::out_of_memory_message(Bytes size) const {
  const std::lock_guard lock(parts_.mutex);
  return describe_shortage(size);
}

std::string Figures::describe_shortage(Bytes size) const {
  const Statistics& counts = parts_.accounting.counts();
  const JointGauges::Values& other = parts_.accounting.gauges().other();
  const bool callers = parts_.callers_fallback;
  const Bytes fallback = callers ? other[JointGauges::kRequested] : counts.fallback.current;
  const Bytes reserved = callers ? other[JointGauges::kReserved] : parts_.fallback.reserved();
  const Bytes hole = std::max(parts_.fallback.largest_hole(), parts_.pools.largest_hole());
  return "stalloc tried to allocate " + format_bytes(size) + " on " + parts_.name() +
         ", which has " + format_bytes(parts_.device.available()) +
         " free after all cached memory was given back. The planned pool holds " +
         format_bytes(parts_.pools.live_bytes()) + " of its " + format_bytes(counts.pool) +
         ", of these " + format_bytes(counts.dynamic.current) +
         " for dynamic requests; requests outside the plan hold " + format_bytes(fallback) +
         " of " + format_bytes(reserved) + "; the largest hole is " + format_bytes(hole) +
         ". Profile this configuration anew if it has changed since the plan was made, use a " +
         "smaller microbatch or more recomputation, or free tensors that outlive their step.";
}

JointGauges Figures::joint_gauges() const {
  const std::lock_guard lock(parts_.mutex);
  return parts_.accounting.gauges();
}

void Figures::note_fallback(const JointGauges::Values& figures) {
  const std::lock_guard lock(parts_.mutex);
  parts_.accounting.note_fallback(figures);
}

}  // namespace stalloc::runtime
