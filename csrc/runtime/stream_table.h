// Numbers for a device's streams, by first use, as plans name them: the default stream is 0. A
// program that uses its streams in the same order numbers them alike in every run.
//
// Lookups take no lock and scan from the front: programs have a handful of streams, and they use
// the most frequent ones first. Thread-safe. Streams are never forgotten. After kStreams different
// ones, further streams have no number and their requests are not planned. The same holds for
// cudaStreamPerThread, which is another stream on each thread.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <mutex>

#include "base/types.h"
#include "device/streams.h"

namespace stalloc::runtime {

class StreamTable {
 public:
  static constexpr StreamId kStreams = 256;

  // kNone if the table is full, or if the handle does not name a single stream.
  StreamId id_of(device::StreamHandle stream) {
    if (reinterpret_cast<std::uintptr_t>(stream) <= kPerThread) {
      return reinterpret_cast<std::uintptr_t>(stream) == kPerThread ? kNone : 0;
    }
    const StreamId known = find(stream, count_.load(std::memory_order_acquire));
    return known != kNone ? known : add(stream);
  }

  // The number of streams that have a number.
  StreamId count() const { return count_.load(std::memory_order_acquire); }

  // `id` came from id_of().
  device::StreamHandle handle_of(StreamId id) const {
    return handles_[static_cast<std::size_t>(id)];
  }

 private:
  // Reserved handles: cudaStreamPerThread is 2; cudaStreamLegacy, 1, is the default stream.
  static constexpr std::uintptr_t kPerThread = 2;

  StreamId find(device::StreamHandle stream, StreamId count) const {
    for (StreamId i = 1; i < count; ++i) {
      if (handles_[static_cast<std::size_t>(i)] == stream) return i;
    }
    return kNone;
  }

  StreamId add(device::StreamHandle stream) {
    const std::lock_guard lock(mutex_);
    const StreamId count = count_.load(std::memory_order_relaxed);
    if (const StreamId known = find(stream, count); known != kNone) return known;
    if (count == kStreams) return kNone;
    handles_[static_cast<std::size_t>(count)] = stream;
    count_.store(count + 1, std::memory_order_release);
    return count;
  }

  std::mutex mutex_;  // of writers
  std::atomic<StreamId> count_{1};
  std::array<device::StreamHandle, kStreams> handles_{};  // those below count_ never change
};

}  // namespace stalloc::runtime
