// Capture of streams into graphs, and their replay. A graph keeps only the uses that standin_use()
// names; a launch repeats them as one item of work.
#include "world.h"

using standin::Call;
using standin::Capture;
using standin::CaptureMode;
using standin::Graph;
using standin::HandleValue;
using standin::Point;
using standin::Stream;
using standin::World;

namespace {

HandleValue value(const void* handle) { return reinterpret_cast<HandleValue>(handle); }
void* handle(HandleValue v) { return reinterpret_cast<void*>(v); }

enum class CaptureStatus : int { kNone = 0, kActive = 1, kInvalidated = 2 };

CaptureStatus status_of(const Stream& s) {
  if (!s.capture) return CaptureStatus::kNone;
  return s.capture->invalid ? CaptureStatus::kInvalidated : CaptureStatus::kActive;
}

int begin(World& w, void* stream, HandleValue graph, int mode, std::string_view call) {
  Stream* s = w.stream(stream, call);
  if (!s) return standin::kInvalidHandle;
  const bool is_default = s->serial < static_cast<std::size_t>(w.devices());
  if (s->capture || is_default) return standin::kCaptureUnsupported;
  auto capture = std::make_unique<Capture>();
  capture->id = w.new_handle();
  capture->mode = static_cast<CaptureMode>(mode);
  capture->thread = standin::this_thread();
  capture->origin = s->serial;
  capture->streams.insert(s->serial);
  capture->graph = graph;
  s->capture = capture.get();
  w.captures.emplace(capture->id, std::move(capture));
  ++w.captures_underway;
  return standin::kSuccess;
}

}  // namespace

extern "C" {

int cudaStreamBeginCapture(void* stream, int mode) {
  static Call call("cudaStreamBeginCapture");
  return call([&](World& w) {
    const HandleValue graph = w.new_handle();
    w.graphs.emplace(graph, Graph{});
    const int error = begin(w, stream, graph, mode, call.name());
    if (error) w.graphs.erase(graph);
    return error;
  });
}

int cudaStreamBeginCaptureToGraph(void* stream, void* graph, const void*, const void*, std::size_t,
                                  int mode) {
  static Call call("cudaStreamBeginCaptureToGraph");
  return call([&](World& w) {
    if (!w.graphs.contains(value(graph))) return int{standin::kInvalidValue};
    return begin(w, stream, value(graph), mode, call.name());
  });
}

int cudaStreamEndCapture(void* stream, void** graph) {
  static Call call("cudaStreamEndCapture");
  return call([&](World& w) {
    Stream* s = w.stream(stream, call.name());
    if (!s) return int{standin::kInvalidHandle};
    if (graph) *graph = nullptr;
    Capture* capture = s->capture;
    if (!capture) return int{standin::kInvalidValue};
    if (capture->origin != s->serial) return int{standin::kCaptureUnmatched};
    for (const std::size_t serial : capture->streams) w.streams.at(serial).capture = nullptr;
    w.streams.end_capture(capture);
    const bool invalid = capture->invalid;
    if (graph && !invalid) *graph = handle(capture->graph);
    w.captures.erase(capture->id);
    --w.captures_underway;
    return invalid ? int{standin::kCaptureInvalidated} : int{standin::kSuccess};
  });
}

// Called at every allocation, so it takes no lock while nothing is captured.
int cudaStreamIsCapturing(void* stream, int* status) {
  static Call call("cudaStreamIsCapturing");
  if (World::get().captures_underway.load(std::memory_order_acquire) == 0 && call.is_plain()) {
    *status = static_cast<int>(CaptureStatus::kNone);
    return standin::kSuccess;
  }
  return call([&](World& w) {
    Stream* s = w.stream(stream, call.name());
    if (!s) return int{standin::kInvalidHandle};
    *status = static_cast<int>(status_of(*s));
    return int{standin::kSuccess};
  });
}

int cudaStreamGetCaptureInfo(void* stream, int* status, unsigned long long* id, void** graph,
                             const void*** dependencies, const void** edges, std::size_t* count) {
  static Call call("cudaStreamGetCaptureInfo");
  return call([&](World& w) {
    Stream* s = w.stream(stream, call.name());
    if (!s) return int{standin::kInvalidHandle};
    *status = static_cast<int>(status_of(*s));
    if (!s->capture) return int{standin::kSuccess};
    if (id) *id = s->capture->id;
    if (graph) *graph = handle(s->capture->graph);
    if (dependencies) *dependencies = nullptr;
    if (edges) *edges = nullptr;
    if (count) *count = 0;
    return int{standin::kSuccess};
  });
}

int cudaStreamGetCaptureInfo_v2(void* stream, int* status, unsigned long long* id, void** graph,
                                const void*** dependencies, std::size_t* count) {
  return cudaStreamGetCaptureInfo(stream, status, id, graph, dependencies, nullptr, count);
}

int cudaStreamUpdateCaptureDependencies(void*, void*, const void*, std::size_t, unsigned) {
  static Call call("cudaStreamUpdateCaptureDependencies");
  return call([](World&) { return int{standin::kSuccess}; });
}

int cudaThreadExchangeStreamCaptureMode(int* mode) {
  static Call call("cudaThreadExchangeStreamCaptureMode");
  return call([&](World&) {
    const auto before = standin::capture_mode;
    standin::capture_mode = static_cast<CaptureMode>(*mode);
    *mode = static_cast<int>(before);
    return int{standin::kSuccess};
  });
}

int cudaGraphCreate(void** graph, unsigned) {
  static Call call("cudaGraphCreate");
  return call([&](World& w) {
    const HandleValue h = w.new_handle();
    w.graphs.emplace(h, Graph{});
    *graph = handle(h);
    return int{standin::kSuccess};
  });
}

int cudaGraphDestroy(void* graph) {
  static Call call("cudaGraphDestroy");
  return call([&](World& w) {
    if (w.graphs.erase(value(graph)) > 0) return int{standin::kSuccess};
    return w.misuse("cudaGraphDestroy of a graph that is not live", standin::kInvalidValue);
  });
}

int cudaGraphInstantiateWithFlags(void** exec, void* graph, unsigned long long) {
  static Call call("cudaGraphInstantiate");
  return call([&](World& w) {
    const auto it = w.graphs.find(value(graph));
    if (it == w.graphs.end()) return int{standin::kInvalidValue};
    const HandleValue h = w.new_handle();
    w.executables.emplace(h, it->second);
    *exec = handle(h);
    return int{standin::kSuccess};
  });
}

int cudaGraphInstantiate(void** exec, void* graph, unsigned long long flags) {
  return cudaGraphInstantiateWithFlags(exec, graph, flags);
}

int cudaGraphExecDestroy(void* exec) {
  static Call call("cudaGraphExecDestroy");
  return call([&](World& w) {
    if (w.executables.erase(value(exec)) > 0) return int{standin::kSuccess};
    return w.misuse("cudaGraphExecDestroy of what is not live", standin::kInvalidValue);
  });
}

int cudaGraphLaunch(void* exec, void* stream) {
  static Call call("cudaGraphLaunch");
  return call([&](World& w) {
    Stream* s = w.stream(stream, call.name());
    const auto it = w.executables.find(value(exec));
    if (!s || it == w.executables.end()) return int{standin::kInvalidHandle};
    const Point p = w.streams.submit(*s);
    int error = standin::kSuccess;
    for (const standin::Use& use : it->second.uses) {
      if (const int e = w.check_use(use, p, s->clock)) error = e;
    }
    return error;
  });
}

int cudaGraphDebugDotPrint(void* graph, const char* /*path*/, unsigned /*flags*/) {
  static Call call("cudaGraphDebugDotPrint");
  return call([&](World& w) {
    return int{w.graphs.contains(value(graph)) ? standin::kSuccess : standin::kInvalidValue};
  });
}

int cudaGraphGetNodes(void* graph, void** /*nodes*/, std::size_t* count) {
  static Call call("cudaGraphGetNodes");
  return call([&](World& w) {
    const auto it = w.graphs.find(value(graph));
    if (it == w.graphs.end()) return int{standin::kInvalidValue};
    *count = it->second.nodes;
    return int{standin::kSuccess};
  });
}

int cudaGraphNodeGetDependencies(void*, void**, void*, std::size_t* count) {
  static Call call("cudaGraphNodeGetDependencies");
  return call([&](World&) {
    if (count) *count = 0;
    return int{standin::kSuccess};
  });
}

int cudaDeviceGetGraphMemAttribute(int, int, void* value) {
  static Call call("cudaDeviceGetGraphMemAttribute");
  return call([&](World&) {
    *static_cast<std::uint64_t*>(value) = 0;
    return int{standin::kSuccess};
  });
}

int cudaDeviceSetGraphMemAttribute(int, int, void*) {
  static Call call("cudaDeviceSetGraphMemAttribute");
  return call([](World&) { return int{standin::kSuccess}; });
}

}  // extern "C"
