// A trace: every allocation of a profiled run with its lifetime, phase and layer.
//
// A request is the tuple m = (s, t_s, t_e, p_s, p_e, dyn, l_s, l_e) of the paper (section 4), plus
// stream and thread. Time is counted in ticks: every allocation and every free takes one, so two
// events never share a tick and nothing depends on a clock.
//
//   tick      0    5    9   14   20   26   31
//   phase     | other | forward 0 | backward 0 | forward 1 ...        PhaseSpan
//   layer             |mlp| |attn|                                    LayerSpan (may nest)
//   request      [---------)                                          Request
//   iteration [----------------- 0 --------------)[------- 1 ...      Trace::iterations
//
// Plain data: no invariants but those that check() states. Not thread-safe.
#pragma once

#include <algorithm>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/order.h"
#include "base/types.h"

namespace stalloc::trace {

// The part of the training loop that runs. kUnplanned is evaluation and other work that does not
// repeat with the iteration: it is recorded and never planned.
enum class PhaseKind : std::uint8_t { kOther, kForward, kBackward, kOptimizer, kUnplanned };

std::string_view to_string(PhaseKind kind);          // "other", "forward", ...
PhaseKind phase_kind_from_string(std::string_view);  // throws TraceError

// Identifies a phase within its iteration, in the same way in every iteration. `occurrence` counts
// the phases of the same kind, microbatch and chunk in the iteration, from 0.
struct PhaseKey {
  PhaseKind kind = PhaseKind::kOther;
  std::int32_t microbatch = kNone;
  std::int32_t chunk = 0;
  std::int32_t occurrence = 0;

  auto operator<=>(const PhaseKey&) const = default;
};

// One stretch of one phase. A phase that is interrupted (by an evaluation, say) and resumed has
// several spans with the same key; spans neither overlap nor leave gaps.
struct PhaseSpan {
  PhaseKey key;
  std::int32_t iteration = 0;
  Tick begin = 0;
  Tick end = 0;
};

// One stay in a module. `recompute` is true for a forward that runs inside a backward pass.
struct LayerSpan {
  LayerIndex layer = kNone;
  PhaseIndex phase = kNone;  // index into Trace::phases
  Tick begin = 0;
  Tick end = 0;
  bool recompute = false;
};

using LayerSpanIndex = Index<LayerSpan>;

// No device addresses more, and rounding up a size of at most this does not overflow.
inline constexpr Bytes kLargestRequest = Bytes{1} << 48;

struct Request {
  Bytes size = 0;                  // as asked, not rounded; > 0
  Tick lower = 0;                  // t_s, the tick of the allocation
  Tick upper = kNever;             // t_e, the tick of the free; > lower
  PhaseIndex phase_begin = kNone;  // p_s, index into Trace::phases
  PhaseIndex phase_end = kNone;    // p_e; kNone when never freed
  LayerIndex layer_begin = kNone;  // l_s, index into Trace::layers
  LayerIndex layer_end = kNone;    // l_e
  StreamId stream = 0;
  ThreadOrdinal thread = 0;
  bool dynamic = false;  // dyn: asked for inside a module tagged as dynamic
  Tick hidden = kNever;  // the tick of a free that plans are not to know: `upper` is kNever

  // The end of its life, for the sum of live bytes.
  Tick last() const { return std::min(upper, hidden); }
};

// The sizes of the dimensions of one microbatch's inputs.
struct MicrobatchExtents {
  PhaseIndex phase = kNone;          // index into Trace::phases: the forward that got the inputs
  std::vector<std::int64_t> values;  // by Trace::extent_names; kNone where the inputs have none
};

struct Trace {
  std::map<std::string, std::string> info;  // "device", "torch", "model", ...: free text
  std::vector<Tick> iterations;             // n + 1 boundaries of n complete iterations
  std::vector<std::string> layers;
  std::vector<PhaseSpan> phases;
  std::vector<LayerSpan> layer_spans;
  std::vector<std::string> extent_names;   // "ids.0", "ids.1", ...: input and dimension
  std::vector<MicrobatchExtents> extents;  // ascending by phase
  std::vector<Order> orders;               // of the program's streams, ascending by tick
  std::vector<Request> requests;           // in order of `lower`
  Tick end = 0;                            // one past the last event

  const PhaseSpan& operator[](PhaseIndex p) const { return phases[p.position()]; }
  const LayerSpan& operator[](LayerSpanIndex s) const { return layer_spans[s.position()]; }
  LayerSpan& operator[](LayerSpanIndex s) { return layer_spans[s.position()]; }

  // Throws TraceError, naming the first offending entry, unless: requests are sorted by `lower`,
  // sizes are positive and their sum fits in Bytes, lifetimes are not reversed and lie before
  // `end`, every index points into its table, phase spans follow each other without a gap, layer
  // spans are in order of `begin`, and iterations and orders ascend.
  void check() const;
};

}  // namespace stalloc::trace
