// The pretended machine: its devices' memory, streams and captures, the calls that are to fail, and
// the errors so far. There is one object with one mutex. It is never destroyed, because calls come
// until the process has ended.
//
// After a fork, every call in the child fails, as CUDA's do. So do calls while the process exits.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "errors.h"
#include "history.h"
#include "memory.h"
#include "streams.h"

namespace standin {

enum class CaptureMode : int { kGlobal = 0, kThreadLocal = 1, kRelaxed = 2 };

struct Graph {  // what was captured
  std::vector<Use> uses;
  std::size_t nodes = 0;
};

struct Capture {
  std::uint64_t id = 0;
  CaptureMode mode = CaptureMode::kGlobal;
  std::uint64_t thread = 0;
  std::size_t origin = 0;  // the stream it was begun on
  bool invalid = false;
  std::set<std::size_t> streams;
  HandleValue graph = 0;
};

struct CallState {  // what is known of one function
  std::atomic<std::int64_t> calls{0};
  std::atomic<std::int64_t> fails_in{0};  // changed under the mutex; 0: not at all
  std::int64_t failures = 0;
  int error = 0;
};

class World {
 public:
  static World& get();

  std::mutex mutex;
  Memory memory;
  Streams streams;
  History history;          // by address
  History virtual_history;  // of virtual memory, by the place in it: addresses may share it
  std::unordered_map<HandleValue, Graph> graphs;
  std::unordered_map<HandleValue, Graph> executables;
  std::map<Address, std::uint64_t> host_memory;
  std::map<std::uint64_t, std::unique_ptr<Capture>> captures;  // under way
  std::atomic<int> captures_underway{0};
  std::atomic<int> lost_error{0};
  bool peers = false;          // devices reach each other's memory
  std::uint64_t contexts = 0;  // the devices that have one, a bit each
  std::int64_t hazards = 0;
  std::int64_t misuses = 0;
  std::int64_t host_waits = 0;
  // The host waits for a device until it is let go, while this is set.
  bool holds_host = false;
  int held_threads = 0;
  std::condition_variable host_let_go;
  void hold_host();
  std::string complaint;

  void reset();
  CallState& call(const std::string& name);
  int devices() { return static_cast<int>(memory.devices().size()); }

  HandleValue new_handle() { return next_handle_ += 64; }

  // Each returns `error`, for the caller to return.
  int misuse(const std::string& what, int error);
  int check_use(const Use& use, const Point& p, const Clock& past);

  // Returns the stream, or reports misuse and returns null.
  Stream* stream(void* handle, std::string_view call);
  // Returns an error if a capture forbids the calling thread such calls.
  int forbid_in_capture(std::string_view call);
  // The same for a call that waits for, or queries, captured work itself: no mode allows that.
  int forbid_captured(Capture* capture, std::string_view call);
  int forbid_on_capturing_device(int device, std::string_view call);
  // Adds work to the graph that the stream is captured into.
  int capture_use(Stream& stream, const Use* use);

  // Moves what memory holds, if it is kept: at once, whatever is pending. One address at least is
  // of a device.
  int move_contents(void* to, const void* from, std::uint64_t size);
  // Fills memory, if it is kept, when the stream reaches that. See Memory::fill().
  int fill(Stream& stream, Address begin, const void* pattern, std::uint64_t length,
           std::uint64_t size);

  // Reports a hazard if the host cannot know that work on this memory is complete before it is
  // freed.
  void check_idle(Address begin, Address end, std::string_view call);

 private:
  World();

  std::map<std::string, CallState> calls_;
  std::mutex calls_mutex_;
  HandleValue next_handle_ = HandleValue{9} << 60;
};

// The calling thread's.
extern thread_local int current_device;
extern thread_local int last_error;
extern thread_local CaptureMode capture_mode;

inline std::uint64_t bit(int device) { return std::uint64_t{1} << device; }

// True if a function of that name works on the calling thread's device, which makes a context there
// if there is none. The driver's functions never do.
bool makes_context(std::string_view name);

// The error of all calls after a fork or at the end of the process; otherwise kSuccess.
int process_error();

// One exported function. Made once, as a static variable of it.
class Call {
 public:
  explicit Call(const char* name)
      : name_(name), makes_context_(makes_context(name)), state_(World::get().call(name)) {}

  // Runs `body` under the lock, unless the call is to fail. Records the error of a runtime call for
  // cudaGetLastError(), which ignores the driver's.
  template <typename Body>
  int operator()(Body body) {
    int error = process_error();
    if (error == kSuccess) {
      World& world = World::get();
      const std::lock_guard lock(world.mutex);
      error = planned_failure(world);
      if (error == kSuccess && makes_context_) world.contexts |= bit(current_device);
      if (error == kSuccess) error = body(world);
    }
    if (error != kSuccess && name().starts_with("cuda")) last_error = error;
    return error;
  }

  std::string_view name() const { return name_; }

  // For calls that can work without the lock: counts the call, and returns true if it needs the
  // lock.
  bool is_plain() {
    if (process_error() != kSuccess || World::get().lost_error != 0 || state_.fails_in != 0) {
      return false;
    }
    state_.calls.fetch_add(1, std::memory_order_relaxed);
    return true;
  }

 private:
  int planned_failure(World& world);

  const char* name_;
  const bool makes_context_;
  CallState& state_;
};

}  // namespace standin
