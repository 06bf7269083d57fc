// Drives the runtime as the hooks do: phases, iterations and the scopes of dynamic modules from the
// trace's tables, requests from its rows.
#include <algorithm>
#include <optional>
#include <vector>

#include "base/error.h"
#include "replay/counting_memory.h"
#include "replay/events.h"
#include "replay/replay.h"
#include "runtime/callers_growth.h"
#include "runtime/planned_allocator.h"
#include "runtime/thrift_policy.h"
#include "trace/layers.h"

namespace stalloc::replay {
namespace {

using runtime::PlannedAllocator;

// The allocator of a run: the runtime, and a model of torch's where that serves the requests
// outside the pool.
class Allocator {
 public:
  struct Block {
    void* planned = nullptr;
    CachingModel::Id torch = CachingModel::kOutOfMemory;

    bool is_served() const { return planned || torch != CachingModel::kOutOfMemory; }
  };

  Allocator(const PlannedReplay& options, CountingMemory& memory)
      : memory_(memory),
        planned_(memory, options.torch ? runtime::Fallback::kCallers : runtime::Fallback::kOwn) {
    if (!options.torch) return;
    CachingSettings settings = *options.torch;
    settings.capacity = options.capacity;
    torch_.emplace(settings);
    if (options.thrifty) torch_->when_short([this](Bytes size) { be_thrifty(size); });
  }

  PlannedAllocator& planned() { return planned_; }

  // The block is not served if memory has run out.
  Block allocate(const trace::Request& r) {
    Block block;
    if (torch_ && planned_.wants_callers_cache(r.size)) empty_torch();
    try {
      block.planned = planned_.allocate(r.size, r.stream, r.thread == 0);
    } catch (const OutOfMemory&) {
      return {};
    }
    if (!block.planned && torch_) {
      if (planned_.moves_memory()) {
        note_torch();
        planned_.make_way_for_caller(
            runtime::callers_growth(r.size, torch_->settings().expandable_segments),
            [&] { return torch_->largest_cached() >= r.size; });
      }
      torch_->set_withheld(memory_.in_pieces());
      block.torch = torch_->malloc(r.size, r.stream);
      note_torch();
      if (!block.is_served()) block.planned = planned_.rescue(r.size, r.stream);
    }
    if (torch_ && planned_.figures().are_behind()) note_torch();
    if (block.is_served()) requested_.add(r.size);
    return block;
  }

  void free(const Block& block, Bytes size) {
    requested_.add(-size);
    if (block.planned) {
      planned_.deallocate(block.planned);
    } else {
      torch_->free(block.torch);
    }
  }

  // A phase has begun.
  void begin_phase() {
    if (torch_ && planned_.loop().wants_cached()) empty_torch();
  }

  void reset_peaks() {
    requested_.reset_peak();
    memory_.reset_peak();
    planned_.figures().reset_peaks();
  }

  // Live bytes, as asked.
  const runtime::Gauge& requested() const { return requested_; }
  CachingStats torch_stats() const { return torch_ ? torch_->stats() : CachingStats{}; }

 private:
  // As the adapter of native mode tells what torch's allocator holds.
  void note_torch() {
    const CachingStats& stats = torch_->stats();
    memory_.set_others(stats.reserved.current);
    runtime::JointGauges::Values values{};
    values[runtime::JointGauges::kRequested] = stats.requested.current;
    values[runtime::JointGauges::kRounded] = stats.allocated.current;
    values[runtime::JointGauges::kActiveBytes] = stats.allocated.current;
    values[runtime::JointGauges::kReserved] = stats.reserved.current;
    planned_.figures().note_fallback(values);
  }

  void empty_torch() {
    torch_->empty_cache();
    note_torch();
  }

  void be_thrifty(Bytes size) {
    const auto held = [this] {
      const CachingStats& stats = torch_->stats();
      return runtime::ThriftPolicy::Held{.reserved = memory_.in_pieces() + stats.reserved.current,
                                         .idle = stats.reserved.current - stats.allocated.current};
    };
    if (!thrift_.wants(held(), size)) return;
    torch_->empty_cache();
    thrift_.done(held());
  }

  CountingMemory& memory_;
  PlannedAllocator planned_;
  std::optional<CachingModel> torch_;
  runtime::ThriftPolicy thrift_;
  runtime::Gauge requested_;
};

// Reports to the allocator what the training loop did up to a tick.
class Loop {
 public:
  Loop(const trace::Trace& trace, Allocator& allocator)
      : trace_(trace), allocator_(allocator.planned()), run_(allocator) {}

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
      if (unplanned) {
        allocator_.loop().begin_evaluation();
      } else if (last_ != span.key) {
        enter_planned(span);
      }
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
      run_.begin_phase();
    }
    allocator_.loop().enter_phase(span.key.kind, span.key.microbatch, span.key.chunk);
    run_.begin_phase();
    last_ = span.key;
  }

  const trace::Trace& trace_;
  runtime::PlannedAllocator& allocator_;
  Allocator& run_;
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
  CountingMemory memory(options.capacity, options.page, placements);
  ReplayResult result;
  std::vector<Allocator::Block> blocks(trace.requests.size());
  Allocator allocator(options, memory);
  PlannedAllocator& planned = allocator.planned();
  try {
    planned.enable(
        plan, {.reuse = options.reuse, .startup = options.startup && begins_with_run(trace, plan)});
  } catch (const OutOfMemory&) {
    result.failed = 0;
    return result;
  }
  const std::vector<bool> found = trace::layers_in(trace, plan.dynamic);
  Loop loop(trace, allocator);
  LastIteration last(trace);
  for_each_event(
      trace,
      [&](Tick tick) {
        if (placements) placements->advance(tick);
        loop.advance(tick);
        if (!last.begins(tick)) return;
        result.peak_load = allocator.requested().peak;
        result.peak_reserved = memory.held().peak;
        allocator.reset_peaks();
      },
      [&](std::int32_t i) {
        const trace::Request& r = trace.requests[static_cast<std::size_t>(i)];
        const bool dynamic =
            r.dynamic || (r.layer_begin != kNone && found[r.layer_begin.position()]);
        if (dynamic) planned.loop().enter_dynamic();
        Allocator::Block& block = blocks[static_cast<std::size_t>(i)];
        block = allocator.allocate(r);
        if (dynamic) planned.loop().leave_dynamic();
        if (!block.is_served()) {
          result.failed = i;
          return false;
        }
        if (placements && block.planned) placements->place(i, address_of(block.planned));
        return true;
      },
      [&](std::int32_t i) {
        const auto row = static_cast<std::size_t>(i);
        allocator.free(blocks[row], trace.requests[row].size);
      });
  if (placements) placements->advance(trace.end);
  if (result.failed == kNone) loop.advance(trace.end);
  const runtime::Statistics stats = planned.figures().statistics();
  const CachingStats torch = allocator.torch_stats();
  result.load = allocator.requested().peak;
  result.reserved = memory.held().peak;
  result.peak_load = std::max(result.peak_load, result.load);
  result.peak_reserved = std::max(result.peak_reserved, result.reserved);
  result.hits = stats.hits;
  result.misses = stats.misses;
  result.pool = stats.pool;
  result.moves = stats.moves;

  result.beside = stats.fallback.peak;
  result.mallocs = memory.mallocs() + torch.mallocs;
  result.frees = memory.frees() + torch.frees;
  result.maps = memory.maps() + torch.maps;
  result.unmaps = memory.unmaps() + torch.unmaps;
  return result;
}

}  // namespace stalloc::replay
