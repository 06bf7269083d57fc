#include <algorithm>
#include <vector>

#include "replay/events.h"
#include "replay/replay.h"

namespace stalloc::replay {

namespace {

template <typename Model>
ReplayResult replay_model(const trace::Trace& trace, Model& model, Placements* placements) {
  trace.check();
  ReplayResult result;
  LastIteration last(trace);
  std::vector<typename Model::Id> blocks(trace.requests.size(), Model::kOutOfMemory);
  for_each_event(
      trace,
      [&](Tick tick) {
        if (placements) placements->advance(tick);
        if (!last.begins(tick)) return;
        result.peak_load = model.stats().requested.peak;
        result.peak_reserved = model.stats().reserved.peak;
        model.reset_peaks();
      },
      [&](std::int32_t i) {
        const trace::Request& r = trace.requests[static_cast<std::size_t>(i)];
        const auto id = model.malloc(r.size, r.stream);
        if (id == Model::kOutOfMemory) result.failed = i;
        blocks[static_cast<std::size_t>(i)] = id;
        if (id == Model::kOutOfMemory) return false;
        if constexpr (requires { model.address(id); }) {
          if (placements) placements->place(i, model.address(id));
        }
        return true;
      },
      [&](std::int32_t i) { model.free(blocks[static_cast<std::size_t>(i)]); });
  const CachingStats& stats = model.stats();
  result.load = stats.requested.peak;
  result.reserved = stats.reserved.peak;
  result.peak_load = std::max(result.peak_load, result.load);
  result.peak_reserved = std::max(result.peak_reserved, result.reserved);
  result.mallocs = stats.mallocs;
  result.frees = stats.frees;
  result.maps = stats.maps;
  result.unmaps = stats.unmaps;
  return result;
}

}  // namespace

ReplayResult replay_caching(const trace::Trace& trace, const CachingSettings& settings,
                            Placements* placements) {
  CachingModel model(settings);
  model.note_in(placements);
  return replay_model(trace, model, placements);
}

ReplayResult replay_stitching(const trace::Trace& trace, const StitchingSettings& settings) {
  StitchingModel model(settings);
  return replay_model(trace, model, nullptr);
}

}  // namespace stalloc::replay
