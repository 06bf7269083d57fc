// Measures reading and writing of a trace file with `requests` requests. The goal is to read
// 300,000 in less than half a second.
#include <benchmark/benchmark.h>

#include "runtime/recorder.h"
#include "trace/trace_json.h"

namespace {

using namespace stalloc;

// Iterations of 20,000 requests in microbatches. Half of the requests live from forward to
// backward, as activations do, and half are short-lived, as temporaries are.
trace::Trace recorded_trace(std::int64_t requests) {
  constexpr std::int64_t kIteration = 20000;
  constexpr std::int64_t kMicrobatch = 2000;
  constexpr std::int64_t kLayer = 20;
  runtime::Recorder recorder;
  recorder.start();
  std::vector<LayerIndex> layers;
  for (std::int64_t i = 0; i < kMicrobatch / kLayer; ++i) {
    layers.push_back(recorder.define_layer("model.layers." + std::to_string(i), false));
  }
  const auto block = [](std::int64_t i) { return reinterpret_cast<const void*>(i + 1); };
  for (std::int64_t done = 0; done < requests; done += kMicrobatch) {
    const auto microbatch = static_cast<std::int32_t>(done % kIteration / kMicrobatch);
    recorder.enter_phase(trace::PhaseKind::kForward, microbatch, 0);
    for (std::int64_t i = 0; i < kMicrobatch; ++i) {
      if (i % kLayer == 0)
        recorder.enter_layer(layers[static_cast<std::size_t>(i / kLayer)], false);
      recorder.on_allocate(block(i), 512 * (1 + i * i % 9973), 0, true, {});
      if (i % 2 == 0) recorder.on_free(block(i), {});
      if (i % kLayer == kLayer - 1) recorder.leave_layer();
    }
    recorder.enter_phase(trace::PhaseKind::kBackward, microbatch, 0);
    for (std::int64_t i = kMicrobatch - 1; i > 0; i -= 2) recorder.on_free(block(i), {});
    if ((done + kMicrobatch) % kIteration == 0) recorder.end_iteration();
  }
  return recorder.finish();
}

void read_trace(benchmark::State& state) {
  const std::string text = to_json(recorded_trace(state.range(0)));
  for (auto _ : state) benchmark::DoNotOptimize(trace::trace_from_json(text, "benchmark"));
  state.SetBytesProcessed(state.iterations() * static_cast<std::int64_t>(text.size()));
}
BENCHMARK(read_trace)->Arg(300000)->Unit(benchmark::kMillisecond);

void write_trace(benchmark::State& state) {
  const trace::Trace trace = recorded_trace(state.range(0));
  for (auto _ : state) benchmark::DoNotOptimize(to_json(trace));
}
BENCHMARK(write_trace)->Arg(300000)->Unit(benchmark::kMillisecond);

}  // namespace
