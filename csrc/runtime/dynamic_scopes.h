// Recognizes requests of modules that are tagged as dynamic: those of a thread that is inside such
// a module, and those of the autograd nodes that the module made, on any thread.
//
// Not thread-safe, but for follows_nodes(): PlannedAllocator locks.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <vector>

#include "runtime/threads.h"

namespace stalloc::runtime {

class DynamicScopes {
 public:
  // The calling thread enters or leaves a dynamic module. Calls nest.
  void enter();
  void leave();

  // Autograd nodes [first, last) belong to a dynamic module. `iteration` counts from enable().
  void tag_nodes(std::uint64_t first, std::uint64_t last, std::int64_t iteration);

  // True if a request of the calling thread, made while autograd runs `node`, is dynamic.
  bool covers(const NodeSequence& node) const {
    const bool none = depths_.empty() && nodes_.empty();
    return !none && (is_inside() || is_tagged(node));
  }

  // True if covers() needs to know the node. Thread-safe.
  bool follows_nodes() const { return follows_nodes_.load(std::memory_order_relaxed); }

  // Forgets the nodes of iterations before the last one.
  void forget_nodes_before(std::int64_t iteration);

  void clear();

 private:
  struct Depth {
    ThreadOrdinal thread = 0;
    int depth = 0;
  };
  struct NodeRange {
    std::uint64_t last = 0;
    std::int64_t iteration = 0;
  };

  bool is_inside() const;
  bool is_tagged(const NodeSequence& node) const;

  std::vector<Depth> depths_;                 // of threads inside a module: mostly one, or none
  std::map<std::uint64_t, NodeRange> nodes_;  // by first node; disjoint
  std::atomic<bool> follows_nodes_{false};
};

}  // namespace stalloc::runtime
