// Shared by both replay programs: the file of events that events.py writes, and the time of each
// iteration.
//
// A file holds 64-bit integers, three for each event. Time is the CPU time of the thread, so a busy
// machine affects it only through the caches.
#pragma once

#include <time.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <vector>

namespace replay {

// An event with a size allocates the request; a negative size frees it. Negative "requests" are
// events of the training loop.
struct Event {
  std::int64_t request;
  std::int64_t size;
  std::int64_t stream;  // 0 is the default stream
};

inline constexpr std::int64_t kIterationEnds = -1;
inline constexpr std::int64_t kPhaseBegins = -2;  // size: kind + chunk x 256; stream: microbatch
inline constexpr std::int64_t kDynamicBegins = -3;
inline constexpr std::int64_t kDynamicEnds = -4;

// Returns nothing if the file cannot be read.
inline std::vector<Event> read_events(const char* path) {
  std::ifstream in(path, std::ios::binary | std::ios::ate);
  std::vector<Event> events(in ? static_cast<std::size_t>(in.tellg()) / sizeof(Event) : 0);
  in.seekg(0);
  in.read(reinterpret_cast<char*>(events.data()),
          static_cast<std::streamsize>(events.size() * sizeof(Event)));
  return events;
}

inline std::size_t count_requests(const std::vector<Event>& events) {
  std::int64_t requests = 0;
  for (const Event& event : events) requests = std::max(requests, event.request + 1);
  return static_cast<std::size_t>(requests);
}

inline std::size_t count_streams(const std::vector<Event>& events) {
  std::int64_t most = 0;
  for (const Event& event : events) {
    if (event.request >= 0) most = std::max(most, event.stream);
  }
  return static_cast<std::size_t>(most) + 1;
}

// The seconds and the number of requests of each iteration.
class Laps {
 public:
  Laps() : begin_(now()) {}

  void count() { ++requests_; }

  void end_iteration() {
    const double end = now();
    seconds_.push_back(end - begin_);
    counts_.push_back(requests_);
    begin_ = end;
    requests_ = 0;
  }

  // Two members of a JSON object.
  void print() const {
    std::printf("\"seconds\": [");
    for (std::size_t i = 0; i < seconds_.size(); ++i) {
      std::printf(i == 0 ? "%.9f" : ", %.9f", seconds_[i]);
    }
    std::printf("], \"requests\": [");
    for (std::size_t i = 0; i < counts_.size(); ++i) {
      std::printf(i == 0 ? "%lld" : ", %lld", counts_[i]);
    }
    std::printf("]");
  }

 private:
  static double now() {
    timespec t{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) * 1e-9;
  }

  double begin_;
  long long requests_ = 0;
  std::vector<double> seconds_;
  std::vector<long long> counts_;
};

}  // namespace replay
