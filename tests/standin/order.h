// The happens-before order of work: vector clocks over streams.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace standin {

// An item of a stream's work: the serial numbers of the stream and of the item, from 1.
struct Point {
  std::size_t stream = 0;
  std::uint64_t item = 0;
};

// For each stream, the last item that is known to come before.
class Clock {
 public:
  bool after(const Point& p) const {
    return p.stream < items_.size() && items_[p.stream] >= p.item;
  }

  void add(const Point& p) {
    if (p.stream >= items_.size()) items_.resize(p.stream + 1, 0);
    items_[p.stream] = std::max(items_[p.stream], p.item);
  }

  void merge(const Clock& other) {
    if (items_.size() < other.items_.size()) items_.resize(other.items_.size(), 0);
    for (std::size_t i = 0; i < other.items_.size(); ++i) {
      items_[i] = std::max(items_[i], other.items_[i]);
    }
  }

 private:
  std::vector<std::uint64_t> items_;
};

}  // namespace standin
