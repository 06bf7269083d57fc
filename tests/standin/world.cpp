#include "world.h"

#include <pthread.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>

namespace standin {
namespace {

std::atomic<bool> forked{false};
std::atomic<bool> ending{false};

std::uint64_t setting(const char* name, std::uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text && *text ? std::strtoull(text, nullptr, 10) : otherwise;
}

bool verbose() {
  static const bool value = setting("STANDIN_VERBOSE", 0) != 0;
  return value;
}

}  // namespace

thread_local int current_device = 0;
thread_local int last_error = kSuccess;
thread_local CaptureMode capture_mode = CaptureMode::kGlobal;

std::uint64_t this_thread() {
  static std::atomic<std::uint64_t> next{1};
  thread_local const std::uint64_t mine = next.fetch_add(1);
  return mine;
}

int process_error() {
  if (forked.load(std::memory_order_relaxed)) return kInitializationError;
  if (ending.load(std::memory_order_relaxed)) return kUnloading;
  return kSuccess;
}

bool makes_context(std::string_view name) {
  static constexpr std::string_view kOthers[] = {
      "cudaGetDeviceCount",      "cudaGetDeviceProperties",
      "cudaDeviceGetAttribute",  "cudaDeviceGetPCIBusId",
      "cudaDeviceCanAccessPeer", "cudaDriverGetVersion",
      "cudaGetDriverEntryPoint", "cudaThreadExchangeStreamCaptureMode",
      "cudaSetDevice",  // one on the device that it names
  };
  return name.starts_with("cuda") &&
         std::find(std::begin(kOthers), std::end(kOthers), name) == std::end(kOthers);
}

void World::hold_host() {
  std::unique_lock lock(mutex);
  ++held_threads;
  host_let_go.wait(lock, [this] { return !holds_host; });
  --held_threads;
}

World& World::get() {
  static World& world = *new World();
  return world;
}

World::World() {
  reset();
  pthread_atfork(nullptr, nullptr, [] { forked.store(true); });
  std::atexit([] { ending.store(true); });
}

void World::reset() {
  const int devices = static_cast<int>(setting("STANDIN_DEVICES", 1));
  memory.keep_contents(setting("STANDIN_CONTENTS", 0) != 0);
  memory.configure(devices, setting("STANDIN_MEMORY", std::uint64_t{80} << 30),
                   setting("STANDIN_CONTEXT", 0));
  streams.recycle_handles(false);
  streams.configure(devices, setting("STANDIN_MANUAL", 0) != 0);
  history = virtual_history = History{};
  graphs.clear();
  executables.clear();
  captures.clear();
  captures_underway = 0;
  lost_error = 0;
  peers = false;
  holds_host = false;
  contexts = 0;
  hazards = misuses = host_waits = 0;
  complaint.clear();
  const std::lock_guard lock(calls_mutex_);
  for (auto& [name, state] : calls_) {
    state.calls = 0;
    state.fails_in = 0;
  }
}

CallState& World::call(const std::string& name) {
  const std::lock_guard lock(calls_mutex_);
  return calls_[name];
}

int Call::planned_failure(World& world) {
  state_.calls.fetch_add(1, std::memory_order_relaxed);
  if (world.lost_error != 0) return world.lost_error;
  if (state_.fails_in == 0) return kSuccess;
  if (state_.fails_in > 1) {
    --state_.fails_in;
    return kSuccess;
  }
  if (state_.failures > 0 && --state_.failures == 0) state_.fails_in = 0;
  return state_.error;
}

int World::misuse(const std::string& what, int error) {
  ++misuses;
  complaint = what;
  if (verbose()) std::fprintf(stderr, "standin: misuse: %s\n", what.c_str());
  return error;
}

int World::check_use(const Use& use, const Point& p, const Clock& past) {
  char text[200];
  if (!memory.usable(use.begin, use.end)) {
    std::snprintf(text, sizeof text, "owner %llu uses %#llx..%#llx, which is not all allocated",
                  static_cast<unsigned long long>(use.owner),
                  static_cast<unsigned long long>(use.begin),
                  static_cast<unsigned long long>(use.end));
    return misuse(text, 700);
  }
  std::optional<Use> earlier = history.add(use, p, past);
  for (const Memory::Part& part : memory.parts_behind(use.begin, use.end)) {
    const Use there{part.begin, part.end, use.owner};
    if (const auto found = virtual_history.add(there, p, past)) {
      earlier = Use{use.begin, use.end, found->owner};
    }
  }
  if (earlier) {
    ++hazards;
    std::snprintf(text, sizeof text,
                  "owner %llu uses %#llx..%#llx with nothing that orders owner %llu's work on it "
                  "before",
                  static_cast<unsigned long long>(use.owner),
                  static_cast<unsigned long long>(std::max(use.begin, earlier->begin)),
                  static_cast<unsigned long long>(std::min(use.end, earlier->end)),
                  static_cast<unsigned long long>(earlier->owner));
    complaint = text;
    if (verbose()) std::fprintf(stderr, "standin: hazard: %s\n", text);
  }
  return kSuccess;
}

Stream* World::stream(void* handle, std::string_view call) {
  Stream* found = streams.find(reinterpret_cast<HandleValue>(handle), current_device);
  if (!found) misuse(std::string(call) + " on a stream that is destroyed, or never was", 0);
  return found;
}

int World::forbid_in_capture(std::string_view call) {
  if (captures.empty() || capture_mode == CaptureMode::kRelaxed) return kSuccess;
  for (auto& [id, capture] : captures) {
    const bool ours = capture->thread == this_thread();
    if (capture->mode == CaptureMode::kGlobal ||
        (capture->mode == CaptureMode::kThreadLocal && ours)) {
      capture->invalid = true;
      return misuse(std::string(call) + " while a stream is captured, which the capture forbids",
                    kCaptureUnsupported);
    }
  }
  return kSuccess;
}

int World::forbid_captured(Capture* capture, std::string_view call) {
  capture->invalid = true;
  return misuse(std::string(call) + " of what is captured, which spoils the capture",
                kCaptureUnsupported);
}

int World::forbid_on_capturing_device(int device, std::string_view call) {
  for (auto& [id, capture] : captures) {
    for (const std::size_t serial : capture->streams) {
      if (streams.at(serial).device == device) return forbid_captured(capture.get(), call);
    }
  }
  return kSuccess;
}

int World::capture_use(Stream& stream, const Use* use) {
  Graph& graph = graphs.at(stream.capture->graph);
  ++graph.nodes;
  if (use) graph.uses.push_back(*use);
  return kSuccess;
}

int World::move_contents(void* to, const void* from, std::uint64_t size) {
  const auto target = reinterpret_cast<Address>(to);
  const auto source = reinterpret_cast<Address>(from);
  bool done = true;
  if (!Memory::is_device_address(target)) {
    done = memory.read(source, to, size);
  } else if (!Memory::is_device_address(source)) {
    done = memory.write(target, from, size);
  } else {
    constexpr std::uint64_t kPart = std::uint64_t{1} << 20;
    std::vector<char> part(std::min(size, kPart));
    for (std::uint64_t at = 0; at < size && done; at += kPart) {
      const std::uint64_t bytes = std::min(size - at, kPart);
      done = memory.read(source + at, part.data(), bytes) &&
             memory.write(target + at, part.data(), bytes);
    }
  }
  if (done) return kSuccess;
  char text[120];
  std::snprintf(text, sizeof text,
                "%llu bytes are copied from %p to %p, which is not all allocated",
                static_cast<unsigned long long>(size), from, to);
  return misuse(text, kIllegalAddress);
}

int World::fill(Stream& stream, Address begin, const void* pattern, std::uint64_t length,
                std::uint64_t size) {
  if (stream.capture) return capture_use(stream, nullptr);
  if (!memory.keeps_contents() || size == 0) {
    streams.submit(stream);
    return kSuccess;
  }
  std::array<char, 16> kept{};
  std::memcpy(kept.data(), pattern, length);
  streams.submit(stream, {{}, [this, kept, begin, length, size] {
                            if (memory.fill(begin, kept.data(), length, size)) return;
                            misuse("memory is filled that is not all allocated", kIllegalAddress);
                          }});
  return kSuccess;
}

void World::check_idle(Address begin, Address end, std::string_view call) {
  if (const auto use = history.unordered(begin, end, streams.host())) {
    misuse(std::string(call) + " of memory that owner " + std::to_string(use->owner) +
               "'s work may still be using",
           kSuccess);
  }
}

}  // namespace standin
