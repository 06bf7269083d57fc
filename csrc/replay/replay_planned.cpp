// Drives the runtime as the hooks do: phases, iterations and the scopes of dynamic modules from the
// trace's tables, requests from its rows.
#include <algorithm>
#include <bit>
#include <optional>
#include <vector>

#include "base/align.h"
#include "base/error.h"
#include "device/pretend.h"
#include "replay/events.h"
#include "replay/replay.h"
#include "runtime/planned_allocator.h"

namespace stalloc::replay {
namespace {

Offset address_of(const void* p) { return static_cast<Offset>(std::bit_cast<std::uintptr_t>(p)); }

// Counts the memory that the runtime takes from the device, in whole pages, and records it in
// `placements`, if any.
class CountingMemory final : public device::DeviceMemory {
 public:
  CountingMemory(const PlannedReplay& options, Placements* placements)
      : memory_(options.capacity), page_(options.page), placements_(placements) {}

  std::string_view name() const override { return memory_.name(); }
  void* allocate(Bytes size) override {
    const Bytes pages = align_up(size, page_);
    void* piece = memory_.allocate(pages);
    if (!piece) return nullptr;
    ++mallocs_;
    held_.add(pages);
    if (placements_) placements_->take(address_of(piece), size);
    return piece;
  }
  void release(void* piece, Bytes size) noexcept override {
    const Bytes pages = align_up(size, page_);
    ++frees_;
    held_.add(-pages);
    if (placements_) placements_->give_back(address_of(piece), size);
    memory_.release(piece, pages);
  }
  Bytes available() const override { return memory_.available(); }

  const runtime::Gauge& held() const { return held_; }
  void reset_peak() { held_.reset_peak(); }
  std::int64_t mallocs() const { return mallocs_; }
  std::int64_t frees() const { return frees_; }

 private:
  device::PretendMemory memory_;
  const Bytes page_;
  Placements* const placements_;
  runtime::Gauge held_;
  std::int64_t mallocs_ = 0;
  std::int64_t frees_ = 0;
};

// Reports to the allocator what the training loop did up to a tick.
class Loop {
 public:
  Loop(const trace::Trace& trace, runtime::PlannedAllocator& allocator)
      : trace_(trace), allocator_(allocator) {}

  void advance(Tick tick) {
    const auto& ends = trace_.iterations;
    const auto& spans = trace_.phases;
    for (;;) {
      const bool ends_next = iteration_ < ends.size() && ends[iteration_] <= tick;
      const bool phase_next = span_ < spans.size() && spans[span_].begin <= tick;
      // A phase that begins where an iteration ends belongs to the next, unless it is empty and
      // says otherwise.
      if (ends_next && (!phase_next || ends[iteration_] < spans[span_].begin ||
                        (ends[iteration_] == spans[span_].begin && !is_of_before(spans[span_])))) {
        if (iteration_++ > 0) {
          allocator_.loop().end_iteration();
          last_.reset();
        }
      } else if (phase_next) {
        enter(spans[span_++]);
      } else {
        return;
      }
    }
  }

 private:
  bool is_of_before(const trace::PhaseSpan& span) const {
    return span.iteration != kNone && span.iteration < static_cast<std::int32_t>(iteration_);
  }

  void enter(const trace::PhaseSpan& span) {
    const bool unplanned = span.key.kind == trace::PhaseKind::kUnplanned;
    // Requests from before the first iteration belong to no phase.
    if (unplanned && iteration_ == 0) return;
    // A span with the key of the one before goes on with its phase: iterations were joined there.
    if (unplanned == unplanned_) {
      if (!unplanned && last_ != span.key) enter_planned(span);
      return;
    }
    unplanned_ = unplanned;
    if (unplanned) {
      allocator_.loop().enter_unplanned();
      return;
    }
    allocator_.loop().leave_unplanned();
    if (last_ != span.key) enter_planned(span);  // otherwise it goes on after an interruption
  }

  void enter_planned(const trace::PhaseSpan& span) {
    const PhaseIndex phase(&span - trace_.phases.data());
    const auto told =
        std::ranges::lower_bound(trace_.extents, phase, {}, &trace::MicrobatchExtents::phase);
    if (told != trace_.extents.end() && told->phase == phase) {
      allocator_.loop().set_extents(trace_.extent_names, told->values);
    }
    allocator_.loop().enter_phase(span.key.kind, span.key.microbatch, span.key.chunk);
    last_ = span.key;
  }

  const trace::Trace& trace_;
  runtime::PlannedAllocator& allocator_;
  std::size_t iteration_ = 0;  // boundaries passed
  std::size_t span_ = 0;       // spans entered
  bool unplanned_ = false;
  std::optional<trace::PhaseKey>
      last_;  // the planned phase that was entered last in this iteration
};

// True if the trace begins with its run: its first iteration makes most of the plan's permanent
// start-up requests. A trace that begins later has nothing for the resident region.
bool begins_with_run(const trace::Trace& trace, const plan::Plan& plan) {
  if (trace.iterations.size() < 2) return false;
  Bytes kept = 0;
  for (const trace::Request& r : trace.requests) {
    if (r.lower >= trace.iterations[1]) break;
    if (r.upper >= trace.iterations.back()) kept += r.size;
  }
  return kept >= plan.resident / 2;
}

}  // namespace

ReplayResult replay_planned(const trace::Trace& trace, const plan::Plan& plan,
                            const PlannedReplay& options, Placements* placements) {
  trace.check();
  CountingMemory memory(options, placements);
  ReplayResult result;
  std::vector<void*> blocks(trace.requests.size(), nullptr);
  runtime::PlannedAllocator allocator(memory);
  try {
    allocator.enable(
        plan, {.reuse = options.reuse, .startup = options.startup && begins_with_run(trace, plan)});
  } catch (const OutOfMemory&) {
    result.failed = 0;
    return result;
  }
  Loop loop(trace, allocator);
  LastIteration last(trace);
  for_each_event(
      trace,
      [&](Tick tick) {
        if (placements) placements->advance(tick);
        loop.advance(tick);
        if (!last.begins(tick)) return;
        result.peak_load = allocator.figures().statistics().allocated.peak;
        result.peak_reserved = memory.held().peak;
        allocator.figures().reset_peaks();
        memory.reset_peak();
      },
      [&](std::int32_t i) {
        const trace::Request& r = trace.requests[static_cast<std::size_t>(i)];
        if (r.dynamic) allocator.loop().enter_dynamic();
        void*& block = blocks[static_cast<std::size_t>(i)];
        try {
          block = allocator.allocate(r.size, r.stream, r.thread == 0);
        } catch (const OutOfMemory&) {
          result.failed = i;
        }
        if (r.dynamic) allocator.loop().leave_dynamic();
        if (!block) return false;
        if (placements) placements->place(i, address_of(block));
        return true;
      },
      [&](std::int32_t i) { allocator.deallocate(blocks[static_cast<std::size_t>(i)]); });
  if (placements) placements->advance(trace.end);
  if (result.failed == kNone) loop.advance(trace.end);
  const runtime::Statistics stats = allocator.figures().statistics();
  result.load = stats.allocated.peak;
  result.reserved = memory.held().peak;
  result.peak_load = std::max(result.peak_load, result.load);
  result.peak_reserved = std::max(result.peak_reserved, result.reserved);
  result.hits = stats.hits;
  result.misses = stats.misses;
  result.mallocs = memory.mallocs();
  result.frees = memory.frees();
  return result;
}

}  // namespace stalloc::replay
