// Builds traces as a recorder does: one event at a time, with a clock that counts events.
#pragma once

#include <string>
#include <vector>

#include "trace/trace.h"

namespace stalloc::testing {

class TraceBuilder {
 public:
  TraceBuilder() { trace_.iterations.push_back(0); }

  // Begins a phase; `occurrence` is for those that come twice in an iteration.
  void phase(trace::PhaseKind kind, std::int32_t microbatch = kNone, std::int32_t occurrence = 0) {
    close_phase();
    const auto iteration = static_cast<std::int32_t>(trace_.iterations.size()) - 1;
    trace_.phases.push_back({{kind, microbatch, 0, occurrence}, iteration, now_, now_});
  }

  // Returns a handle for free().
  std::int32_t alloc(Bytes size, StreamId stream = 0, ThreadOrdinal thread = 0) {
    if (trace_.phases.empty()) phase(trace::PhaseKind::kOther);
    trace::Request r;
    r.size = size;
    r.lower = now_++;
    r.phase_begin = static_cast<PhaseIndex>(trace_.phases.size()) - 1;
    r.layer_begin = layer_;
    r.stream = stream;
    r.thread = thread;
    trace_.requests.push_back(r);
    return static_cast<std::int32_t>(trace_.requests.size()) - 1;
  }

  void free(std::int32_t request) {
    trace_.requests[request].upper = now_++;
    trace_.requests[request].phase_end = static_cast<PhaseIndex>(trace_.phases.size()) - 1;
  }

  // The extents of the microbatch whose forward was begun last, by Trace::extent_names.
  void extents(const std::vector<std::string>& names, const std::vector<std::int64_t>& values) {
    trace_.extent_names = names;
    trace_.extents.push_back({static_cast<PhaseIndex>(trace_.phases.size()) - 1, values});
  }

  // Requests belong to this layer from now on; kNone for none.
  void layer(LayerIndex layer) {
    layer_ = layer;
    while (layer >= static_cast<LayerIndex>(trace_.layers.size())) {
      trace_.layers.push_back("layer" + std::to_string(trace_.layers.size()));
    }
  }

  void tag_dynamic(std::int32_t request) { trace_.requests[request].dynamic = true; }

  // Ends an iteration and opens the next one in phase `other`.
  void step() {
    close_phase();
    trace_.iterations.push_back(now_);
    phase(trace::PhaseKind::kOther);
  }

  Tick now() const { return now_; }

  trace::Trace finish() {
    close_phase();
    trace_.end = now_;
    return trace_;
  }

 private:
  void close_phase() {
    if (!trace_.phases.empty()) trace_.phases.back().end = now_;
  }

  trace::Trace trace_;
  LayerIndex layer_ = kNone;
  Tick now_ = 0;
};

}  // namespace stalloc::testing
