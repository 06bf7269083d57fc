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

  // A program may destroy a stream that is not its framework's own at any time.
  enum class Lifetime : std::uint8_t { kUnknown, kStays, kMayVanish };

  // kNone if the table is full, or if the handle does not name a single stream.
  StreamId id_of(device::StreamHandle stream, Lifetime lifetime = Lifetime::kStays) {
    return id_of(stream, [lifetime] { return lifetime; });
  }
  // The same; asks for the lifetime while it is unknown.
  template <typename Ask>
  StreamId id_of(device::StreamHandle stream, Ask lifetime) {
    if (reinterpret_cast<std::uintptr_t>(stream) <= kPerThread) {
      return reinterpret_cast<std::uintptr_t>(stream) == kPerThread ? kNone : 0;
    }
    const StreamId known = find(stream, count_.load(std::memory_order_acquire));
    if (known == kNone) return add(stream, lifetime());
    std::atomic<Lifetime>& noted = lifetimes_[static_cast<std::size_t>(known)];
    if (noted.load(std::memory_order_relaxed) == Lifetime::kUnknown) [[unlikely]] {
      noted.store(lifetime(), std::memory_order_relaxed);
    }
    return known;
  }

  // The number of streams that have a number.
  StreamId count() const { return count_.load(std::memory_order_acquire); }

  // The number of a stream that has one, else kNone.
  StreamId find(device::StreamHandle stream) const { return stream ? find(stream, count()) : 0; }

  // `id` came from id_of().
  device::StreamHandle handle_of(StreamId id) const {
    return handles_[static_cast<std::size_t>(id)];
  }

  // True unless the stream can be named at any time.
  bool may_vanish(StreamId id) const {
    const auto lifetime = lifetimes_[static_cast<std::size_t>(id)].load(std::memory_order_relaxed);
    return id != 0 && lifetime != Lifetime::kStays;
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

  StreamId add(device::StreamHandle stream, Lifetime lifetime) {
    const std::lock_guard lock(mutex_);
    const StreamId count = count_.load(std::memory_order_relaxed);
    if (const StreamId known = find(stream, count); known != kNone) return known;
    if (count == kStreams) return kNone;
    handles_[static_cast<std::size_t>(count)] = stream;
    lifetimes_[static_cast<std::size_t>(count)].store(lifetime, std::memory_order_relaxed);
    count_.store(count + 1, std::memory_order_release);
    return count;
  }

  std::mutex mutex_;  // of writers
  std::atomic<StreamId> count_{1};
  std::array<device::StreamHandle, kStreams> handles_{};  // those below count_ never change
  std::array<std::atomic<Lifetime>, kStreams> lifetimes_{};
};

}  // namespace stalloc::runtime
