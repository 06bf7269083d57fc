// Numbers for a device's streams, by their first request, as plans name them: the default stream is
// 0. A program that uses its streams in the same order numbers them alike in every run.
//
// A stream may use the memory of another one before it makes a request, if it ever makes one: those
// of communication libraries do. While torch serves, nobody sees that. So such a user has a number
// from the other end, and gets one of its own with its first request. Both name its handle.
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
    if (lifetimes_[static_cast<std::size_t>(known)].load(std::memory_order_relaxed) ==
        Lifetime::kUnknown) [[unlikely]] {
      note(known, lifetime());
    }
    return known;
  }

  // The same for a stream that uses a block of another one.
  StreamId user_of(device::StreamHandle stream, Lifetime lifetime = Lifetime::kStays) {
    return user_of(stream, [lifetime] { return lifetime; });
  }
  template <typename Ask>
  StreamId user_of(device::StreamHandle stream, Ask lifetime) {
    if (reinterpret_cast<std::uintptr_t>(stream) <= kPerThread) return id_of(stream, lifetime);
    if (find(stream, count_.load(std::memory_order_acquire)) != kNone) {
      return id_of(stream, lifetime);
    }
    const StreamId known = find_user(stream, users_.load(std::memory_order_acquire));
    return known == kNone ? add_user(stream, lifetime()) : known;
  }

  // The number of a stream that has made a request, else kNone.
  StreamId find(device::StreamHandle stream) const {
    return stream ? find(stream, count_.load(std::memory_order_acquire)) : 0;
  }

  // Calls `f` with a number of each stream.
  template <typename F>
  void visit(F f) const {
    const StreamId count = count_.load(std::memory_order_acquire);
    for (StreamId i = 0; i < count; ++i) f(i);
    const StreamId users = users_.load(std::memory_order_acquire);
    for (StreamId i = 1; i <= users; ++i) {
      if (find(handle_of(kStreams - i)) == kNone) f(kStreams - i);
    }
  }

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

  StreamId find_user(device::StreamHandle stream, StreamId users) const {
    for (StreamId i = 1; i <= users; ++i) {
      if (handles_[static_cast<std::size_t>(kStreams - i)] == stream) return kStreams - i;
    }
    return kNone;
  }

  // Both numbers of a stream tell the same.
  void note(StreamId id, Lifetime lifetime) {
    const StreamId user = find_user(handle_of(id), users_.load(std::memory_order_acquire));
    if (user != kNone) {
      std::atomic<Lifetime>& noted = lifetimes_[static_cast<std::size_t>(user)];
      if (lifetime == Lifetime::kUnknown) lifetime = noted.load(std::memory_order_relaxed);
      noted.store(lifetime, std::memory_order_relaxed);
    }
    lifetimes_[static_cast<std::size_t>(id)].store(lifetime, std::memory_order_relaxed);
  }

  StreamId add(device::StreamHandle stream, Lifetime lifetime) {
    const std::lock_guard lock(mutex_);
    const StreamId count = count_.load(std::memory_order_relaxed);
    if (const StreamId known = find(stream, count); known != kNone) return known;
    if (is_full()) return kNone;
    handles_[static_cast<std::size_t>(count)] = stream;
    note(count, lifetime);
    count_.store(count + 1, std::memory_order_release);
    return count;
  }

  StreamId add_user(device::StreamHandle stream, Lifetime lifetime) {
    const std::lock_guard lock(mutex_);
    if (const StreamId id = find(stream); id != kNone) return id;
    const StreamId users = users_.load(std::memory_order_relaxed);
    if (const StreamId known = find_user(stream, users); known != kNone) return known;
    if (is_full()) return kNone;
    const StreamId id = kStreams - users - 1;
    handles_[static_cast<std::size_t>(id)] = stream;
    lifetimes_[static_cast<std::size_t>(id)].store(lifetime, std::memory_order_relaxed);
    users_.store(users + 1, std::memory_order_release);
    return id;
  }

  bool is_full() const {
    return count_.load(std::memory_order_relaxed) + users_.load(std::memory_order_relaxed) ==
           kStreams;
  }

  std::mutex mutex_;                // of writers
  std::atomic<StreamId> count_{1};  // streams that have made a request, from the front
  std::atomic<StreamId> users_{0};  // those that had not when they used a block, from the back
  std::array<device::StreamHandle, kStreams> handles_{};  // those with a number never change
  std::array<std::atomic<Lifetime>, kStreams> lifetimes_{};
};

}  // namespace stalloc::runtime
