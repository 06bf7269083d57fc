// Tells, while a graph is captured, which requests will live on when the capture ends.
//
// The graphs of a program resemble each other: the layers of a model, batches of different size. So
// a request is expected to live on if its counterpart in an earlier capture did. The counterpart
// has the same position. The capture is the newest of those that began with the same sizes; if
// there is none, the one that was followed until now; at the first request, the newest that had the
// same number in its pool, such as that of the backward pass after the one of the forward pass.
//
// Its answers decide where blocks lie, and never whether they share memory: a wrong answer costs
// memory only. Not thread-safe.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "base/types.h"

namespace stalloc::device {

class GraphGuide {
 public:
  // A capture begins, after `number` others into its pool.
  void begin(std::size_t number);
  // Returns true if the next request, of `size` bytes, is expected to live on.
  bool lives_on(Bytes size);
  // The requests since begin().
  std::size_t requests() const { return sizes_.size(); }
  // The capture has ended, and tells which of its requests live. Without effect unless there is one
  // answer for each.
  void learn(const std::vector<bool>& lives);

 private:
  static constexpr std::size_t kMost = 64;  // captures that are remembered

  struct Capture {
    std::size_t number = 0;
    std::vector<Bytes> sizes;
    std::vector<bool> lives;
  };

  std::vector<Capture> captures_;  // the newest last, no two of the same sizes
  // The capture that goes on.
  std::size_t number_ = 0;
  std::vector<Bytes> sizes_;
  std::vector<std::size_t> matching_;  // captures with the same sizes until now
  std::optional<std::size_t> followed_;
};

}  // namespace stalloc::device
