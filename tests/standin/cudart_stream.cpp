// Streams, events and waits.
#include <cstring>

#include "world.h"

using standin::Call;
using standin::Event;
using standin::HandleValue;
using standin::Stream;
using standin::World;

namespace {

constexpr unsigned kNonBlocking = 1;    // cudaStreamNonBlocking
constexpr unsigned kDisableTiming = 2;  // cudaEventDisableTiming

HandleValue value(void* handle) { return reinterpret_cast<HandleValue>(handle); }

int create_stream(void** out, unsigned flags, int priority) {
  static Call call("cudaStreamCreate");
  return call([&](World& w) {
    *out = reinterpret_cast<void*>(
        w.streams.create(standin::current_device, (flags & kNonBlocking) == 0, priority));
    return int{standin::kSuccess};
  });
}

// The host waits for `stream`.
void wait_for(World& w, Stream& stream) {
  if (!stream.pending.empty()) ++w.host_waits;
  w.streams.drain(stream);
  w.streams.host_saw(stream);
}

Event* event(World& w, void* handle, std::string_view call) {
  Event* found = w.streams.find_event(value(handle));
  if (!found) w.misuse(std::string(call) + " of an event that is destroyed, or never was", 0);
  return found;
}

}  // namespace

extern "C" {

int cudaStreamCreate(void** stream) { return create_stream(stream, 0, 0); }
int cudaStreamCreateWithFlags(void** stream, unsigned flags) {
  return create_stream(stream, flags, 0);
}
int cudaStreamCreateWithPriority(void** stream, unsigned flags, int priority) {
  return create_stream(stream, flags, priority);
}

int cudaStreamDestroy(void* stream) {
  static Call call("cudaStreamDestroy");
  return call([&](World& w) {
    if (w.streams.destroy(value(stream))) return int{standin::kSuccess};
    return w.misuse("cudaStreamDestroy of a stream that is destroyed, or never was",
                    standin::kInvalidHandle);
  });
}

int cudaStreamGetPriority(void* stream, int* priority) {
  static Call call("cudaStreamGetPriority");
  return call([&](World& w) {
    Stream* s = w.stream(stream, call.name());
    if (!s) return int{standin::kInvalidHandle};
    *priority = s->priority;
    return int{standin::kSuccess};
  });
}

int cudaStreamGetFlags(void* stream, unsigned* flags) {
  static Call call("cudaStreamGetFlags");
  return call([&](World& w) {
    Stream* s = w.stream(stream, call.name());
    if (!s) return int{standin::kInvalidHandle};
    *flags = s->blocking ? 0 : kNonBlocking;
    return int{standin::kSuccess};
  });
}

int cudaStreamGetId(void* stream, unsigned long long* id) {
  static Call call("cudaStreamGetId");
  return call([&](World& w) {
    Stream* s = w.stream(stream, call.name());
    if (!s) return int{standin::kInvalidHandle};
    *id = s->serial + 1;
    return int{standin::kSuccess};
  });
}

int cudaStreamGetDevice(void* stream, int* device) {
  static Call call("cudaStreamGetDevice");
  return call([&](World& w) {
    Stream* s = w.stream(stream, call.name());
    if (!s) return int{standin::kInvalidHandle};
    *device = s->device;
    return int{standin::kSuccess};
  });
}

int cudaStreamQuery(void* stream) {
  static Call call("cudaStreamQuery");
  return call([&](World& w) {
    Stream* s = w.stream(stream, call.name());
    if (!s) return int{standin::kInvalidHandle};
    if (s->capture) return w.forbid_captured(s->capture, call.name());
    if (const int error = w.forbid_in_capture(call.name())) return error;
    if (!s->pending.empty()) return int{standin::kNotReady};
    w.streams.host_saw(*s);
    return int{standin::kSuccess};
  });
}

int cudaStreamSynchronize(void* stream) {
  static Call call("cudaStreamSynchronize");
  return call([&](World& w) {
    Stream* s = w.stream(stream, call.name());
    if (!s) return int{standin::kInvalidHandle};
    if (s->capture) return w.forbid_captured(s->capture, call.name());
    if (const int error = w.forbid_in_capture(call.name())) return error;
    wait_for(w, *s);
    return int{standin::kSuccess};
  });
}

int cudaDeviceSynchronize() {
  static Call call("cudaDeviceSynchronize");
  World::get().hold_host();
  return call([&](World& w) {
    const int device = standin::current_device;
    if (const int error = w.forbid_on_capturing_device(device, call.name())) return error;
    if (const int error = w.forbid_in_capture(call.name())) return error;
    if (w.streams.busy(standin::current_device)) ++w.host_waits;
    w.streams.drain_device(standin::current_device);
    return int{standin::kSuccess};
  });
}

int cudaStreamWaitEvent(void* stream, void* handle, unsigned) {
  static Call call("cudaStreamWaitEvent");
  return call([&](World& w) {
    Stream* s = w.stream(stream, call.name());
    Event* e = event(w, handle, call.name());
    if (!s || !e) return int{standin::kInvalidHandle};
    if (e->capture) {  // the stream joins the capture
      if (s->capture && s->capture != e->capture) return int{standin::kCaptureIsolation};
      s->capture = e->capture;
      s->capture->streams.insert(s->serial);
      return int{standin::kSuccess};
    }
    if (s->capture && e->recorded) {
      s->capture->invalid = true;
      return int{standin::kCaptureIsolation};
    }
    w.streams.wait(*s, *e);
    return int{standin::kSuccess};
  });
}

int cudaEventCreateWithFlags(void** out, unsigned flags) {
  static Call call("cudaEventCreate");
  return call([&](World& w) {
    *out = reinterpret_cast<void*>(
        w.streams.create_event(standin::current_device, (flags & kDisableTiming) == 0));
    return int{standin::kSuccess};
  });
}

int cudaEventCreate(void** out) { return cudaEventCreateWithFlags(out, 0); }

int cudaEventDestroy(void* handle) {
  static Call call("cudaEventDestroy");
  return call([&](World& w) {
    if (w.streams.destroy_event(value(handle))) return int{standin::kSuccess};
    return w.misuse("cudaEventDestroy of an event that is destroyed, or never was",
                    standin::kInvalidHandle);
  });
}

int cudaEventRecord(void* handle, void* stream) {
  static Call call("cudaEventRecord");
  return call([&](World& w) {
    Stream* s = w.stream(stream, call.name());
    Event* e = event(w, handle, call.name());
    if (!s || !e) return int{standin::kInvalidHandle};
    if (s->device != e->device) {
      return w.misuse("cudaEventRecord of an event of another device than the stream's",
                      standin::kInvalidHandle);
    }
    if (s->capture) {
      e->capture = s->capture;
      e->recorded = false;
      return w.capture_use(*s, nullptr);
    }
    w.streams.record(*s, *e);
    return int{standin::kSuccess};
  });
}

int cudaEventRecordWithFlags(void* handle, void* stream, unsigned) {
  return cudaEventRecord(handle, stream);
}

int cudaEventQuery(void* handle) {
  static Call call("cudaEventQuery");
  return call([&](World& w) {
    Event* e = event(w, handle, call.name());
    if (!e) return int{standin::kInvalidHandle};
    if (const int error = w.forbid_in_capture(call.name())) return error;
    if (e->capture) {
      w.forbid_captured(e->capture, call.name());
      return int{standin::kCapturedEvent};
    }
    if (!e->recorded) return int{standin::kSuccess};
    if (!w.streams.complete(e->point)) return int{standin::kNotReady};
    w.streams.host_saw(e->clock);
    return int{standin::kSuccess};
  });
}

int cudaEventSynchronize(void* handle) {
  static Call call("cudaEventSynchronize");
  return call([&](World& w) {
    Event* e = event(w, handle, call.name());
    if (!e) return int{standin::kInvalidHandle};
    if (const int error = w.forbid_in_capture(call.name())) return error;
    if (e->capture) {
      w.forbid_captured(e->capture, call.name());
      return int{standin::kCapturedEvent};
    }
    if (!e->recorded) return int{standin::kSuccess};
    if (!w.streams.complete(e->point)) ++w.host_waits;
    w.streams.finish(e->point);
    w.streams.host_saw(e->clock);
    return int{standin::kSuccess};
  });
}

// No clock is read: an item takes a microsecond.
int cudaEventElapsedTime(float* ms, void* from, void* to) {
  static Call call("cudaEventElapsedTime");
  return call([&](World& w) {
    Event* a = event(w, from, call.name());
    Event* b = event(w, to, call.name());
    if (!a || !b || !a->timed || !b->timed) return int{standin::kInvalidHandle};
    if (!w.streams.complete(a->point) || !w.streams.complete(b->point)) {
      return int{standin::kNotReady};
    }
    *ms = 1e-3F * (static_cast<float>(b->point.item) - static_cast<float>(a->point.item));
    return int{standin::kSuccess};
  });
}

struct cudaIpcEventHandle {
  char reserved[64];
};

int cudaIpcGetEventHandle(cudaIpcEventHandle* handle, void* event) {
  static Call call("cudaIpcGetEventHandle");
  return call([&](World&) {
    *handle = {};
    std::memcpy(handle, &event, sizeof event);
    return int{standin::kSuccess};
  });
}

// Another process's work is as good as done.
int cudaIpcOpenEventHandle(void** event, cudaIpcEventHandle) { return cudaEventCreate(event); }

// Host functions run at once: no test depends on the time.
int cudaLaunchHostFunc(void* stream, void (*function)(void*), void* data) {
  static Call call("cudaLaunchHostFunc");
  const int error = call([&](World& w) {
    Stream* s = w.stream(stream, call.name());
    if (!s) return int{standin::kInvalidHandle};
    if (s->capture) return w.capture_use(*s, nullptr);
    w.streams.submit(*s);
    return int{standin::kSuccess};
  });
  if (error == standin::kSuccess) function(data);
  return error;
}

int cudaStreamAddCallback(void* stream, void (*function)(void*, int, void*), void* data, unsigned) {
  static Call call("cudaStreamAddCallback");
  const int error = call([&](World& w) {
    Stream* s = w.stream(stream, call.name());
    if (!s) return int{standin::kInvalidHandle};
    w.streams.submit(*s);
    return int{standin::kSuccess};
  });
  if (error == standin::kSuccess) function(stream, error, data);
  return error;
}

}  // extern "C"
