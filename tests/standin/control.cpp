#include <bit>

#include "standin.h"
#include "world.h"

using standin::HandleValue;
using standin::Point;
using standin::Stream;
using standin::World;

namespace {

template <typename Body>
auto locked(Body body) {
  World& w = World::get();
  const std::lock_guard lock(w.mutex);
  return body(w);
}

Stream* find(World& w, void* stream) {
  return w.streams.find_even_destroyed(reinterpret_cast<HandleValue>(stream),
                                       standin::current_device);
}

}  // namespace

extern "C" {

void standin_reset() {
  locked([](World& w) { w.reset(); });
  standin::current_device = 0;
  standin::last_error = standin::kSuccess;
  standin::capture_mode = standin::CaptureMode::kGlobal;
}

void standin_set_devices(int count) {
  locked([&](World& w) {
    const std::uint64_t bytes =
        w.memory.devices().empty() ? 0 : w.memory.devices().front().capacity;
    w.memory.configure(count, bytes);
    w.streams.configure(count, w.streams.manual());
  });
}

void standin_set_memory(int device, uint64_t bytes) {
  locked([&](World& w) { w.memory.devices()[static_cast<std::size_t>(device)].capacity = bytes; });
}

void standin_set_peers(int reach) {
  locked([&](World& w) { w.peers = reach != 0; });
}

void standin_set_manual(int manual) {
  locked([&](World& w) { w.streams.set_manual(manual != 0); });
}

void standin_recycle_handles(int recycle) {
  locked([&](World& w) { w.streams.recycle_handles(recycle != 0); });
}

int standin_submit(void* stream) {
  return locked([&](World& w) {
    Stream* s = w.stream(stream, "standin_submit");
    if (!s) return int{standin::kInvalidHandle};
    if (s->capture) return w.capture_use(*s, nullptr);
    w.streams.submit(*s);
    return int{standin::kSuccess};
  });
}

int standin_use(void* stream, const void* p, uint64_t bytes, uint64_t owner) {
  return locked([&](World& w) {
    Stream* s = w.stream(stream, "standin_use");
    if (!s) return int{standin::kInvalidHandle};
    const auto begin = reinterpret_cast<standin::Address>(p);
    const standin::Use use{begin, begin + bytes, owner};
    if (s->capture) return w.capture_use(*s, &use);
    const Point at = w.streams.submit(*s);
    return w.check_use(use, at, s->clock);
  });
}

int64_t standin_advance(void* stream, int64_t items) {
  return locked([&](World& w) {
    Stream* s = find(w, stream);
    return s ? w.streams.advance(*s, items) : std::int64_t{0};
  });
}

void standin_drain(void* stream) {
  locked([&](World& w) {
    if (Stream* s = find(w, stream)) w.streams.drain(*s);
  });
}

void standin_drain_all() {
  locked([](World& w) { w.streams.drain_all(); });
}

void standin_hold(int hold) {
  locked([&](World& w) {
    w.holds_host = hold != 0;
    w.host_let_go.notify_all();
  });
}

int standin_held() {
  return locked([](World& w) { return w.holds_host ? w.held_threads : 0; });
}

int64_t standin_pending(void* stream) {
  return locked([&](World& w) {
    const Stream* s = find(w, stream);
    return s ? static_cast<int64_t>(s->pending.size()) : int64_t{0};
  });
}

void standin_fail(const char* call, int64_t nth, int error, int64_t times) {
  standin::CallState& state = World::get().call(call);
  locked([&](World&) {
    state.fails_in = nth;
    state.failures = times;
    state.error = error;
  });
}

void standin_lose_device(int error) {
  locked([&](World& w) { w.lost_error = error; });
}

int64_t standin_calls(const char* call) { return World::get().call(call).calls; }

int64_t standin_host_waits() {
  return locked([](World& w) { return w.host_waits; });
}
int64_t standin_hazards() {
  return locked([](World& w) { return w.hazards; });
}
int64_t standin_misuses() {
  return locked([](World& w) { return w.misuses; });
}

const char* standin_last_complaint() {
  thread_local std::string text;
  text = locked([](World& w) { return w.complaint; });
  return text.c_str();
}

uint64_t standin_used(int device) {
  return locked(
      [&](World& w) { return w.memory.devices()[static_cast<std::size_t>(device)].used; });
}
uint64_t standin_capacity(int device) {
  return locked(
      [&](World& w) { return w.memory.devices()[static_cast<std::size_t>(device)].capacity; });
}
uint64_t standin_peak(int device) {
  return locked(
      [&](World& w) { return w.memory.devices()[static_cast<std::size_t>(device)].peak; });
}
int64_t standin_allocations() {
  return locked([](World& w) { return static_cast<int64_t>(w.memory.live_allocations()); });
}
int64_t standin_reservations() {
  return locked([](World& w) { return static_cast<int64_t>(w.memory.live_reservations()); });
}
int64_t standin_mappings() {
  return locked([](World& w) { return static_cast<int64_t>(w.memory.live_mappings()); });
}
int64_t standin_accesses(const void* p) {
  return locked([&](World& w) {
    return static_cast<int64_t>(
        std::popcount(w.memory.accesses(reinterpret_cast<standin::Address>(p))));
  });
}
int standin_read(const void* p, void* to, uint64_t bytes) {
  return locked([&](World& w) { return w.move_contents(to, p, bytes); });
}
int standin_write(void* p, const void* from, uint64_t bytes) {
  return locked([&](World& w) { return w.move_contents(p, from, bytes); });
}
int standin_fill(void* p, const void* pattern, uint64_t length, uint64_t bytes) {
  return locked([&](World& w) {
    const auto begin = reinterpret_cast<standin::Address>(p);
    if (w.memory.fill(begin, pattern, length, bytes)) return int{standin::kSuccess};
    return w.misuse("memory is filled that is not all allocated", standin::kIllegalAddress);
  });
}
uint64_t standin_memory_at(const void* p) {
  return locked([&](World& w) {
    return uint64_t{w.memory.handle_at(reinterpret_cast<standin::Address>(p))};
  });
}
int64_t standin_contexts() {
  return locked([](World& w) { return static_cast<int64_t>(std::popcount(w.contexts)); });
}
int standin_has_context(int device) {
  return locked([&](World& w) { return w.contexts & standin::bit(device) ? 1 : 0; });
}
int64_t standin_streams() {
  return locked([](World& w) { return static_cast<int64_t>(w.streams.live()); });
}
int64_t standin_events() {
  return locked([](World& w) { return static_cast<int64_t>(w.streams.live_events()); });
}

}  // extern "C"
