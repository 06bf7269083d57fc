#include <algorithm>
#include <vector>

#include "replay/events.h"
#include "replay/replay.h"

namespace stalloc::replay {

ReplayResult replay_caching(const trace::Trace& trace, const CachingSettings& settings,
                            Placements* placements) {
  trace.check();
  CachingModel model(settings);
  model.note_in(placements);
  ReplayResult result;
  LastIteration last(trace);
  std::vector<CachingModel::Id> blocks(trace.requests.size(), CachingModel::kOutOfMemory);
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
        const CachingModel::Id id = model.malloc(r.size, r.stream);
        if (id == CachingModel::kOutOfMemory) result.failed = i;
        blocks[static_cast<std::size_t>(i)] = id;
        if (id == CachingModel::kOutOfMemory) return false;
        if (placements) placements->place(i, model.address(id));
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

}  // namespace stalloc::replay
