// Small numbers for threads, and the thread that trains.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>

#include "base/types.h"

namespace stalloc::runtime {

// The calling thread's number, the same for its whole life and never used again. From 1.
inline ThreadOrdinal this_thread_ordinal() {
  static std::atomic<ThreadOrdinal> next{1};
  constinit thread_local ThreadOrdinal mine = 0;  // one access: no guard of an initialization
  if (mine == 0) [[unlikely]]
    mine = next.fetch_add(1, std::memory_order_relaxed);
  return mine;
}

// The autograd node that runs on a thread, if any. Every thread numbers the nodes that it makes by
// itself (a backward thread too, when it recomputes), so the thread's number precedes the node's.
using NodeSequence = std::optional<std::uint64_t>;
constexpr int kSequenceBits = 48;
constexpr std::uint64_t node_of_thread(std::uint64_t thread, std::uint64_t sequence) {
  return thread << kSequenceBits | (sequence & ((std::uint64_t{1} << kSequenceBits) - 1));
}
constexpr std::uint64_t thread_of_node(std::uint64_t node) { return node >> kSequenceBits; }

// Distinguishes the training thread, whose requests repeat in order, from threads without a fixed
// order (data loading, communication). Autograd's worker threads act for the training thread while
// they run its graph: the caller reports this. Thread-safe.
class TrainingThread {
 public:
  void set_to_this_thread() { ordinal_.store(this_thread_ordinal(), std::memory_order_relaxed); }
  bool is_this_thread() const {
    return ordinal_.load(std::memory_order_relaxed) == this_thread_ordinal();
  }

 private:
  std::atomic<ThreadOrdinal> ordinal_{0};
};

}  // namespace stalloc::runtime
