// The smallest value of any range of an array in O(log n): a bottom-up segment tree.
#pragma once

#include <algorithm>
#include <cstddef>
#include <limits>
#include <vector>

#include "solve/core/timeline.h"

namespace stalloc::solve {

template <typename Value>
class RangeMinimum {
 public:
  explicit RangeMinimum(const std::vector<Value>& values)
      : size_(values.size()), tree_(2 * values.size()) {
    std::copy(values.begin(), values.end(), tree_.begin() + static_cast<std::ptrdiff_t>(size_));
    for (std::size_t i = size_; i-- > 1;) tree_[i] = std::min(tree_[2 * i], tree_[2 * i + 1]);
  }

  // The minimum in [begin, end); the largest possible value if that is empty.
  Value operator()(Moment begin, Moment end) const {
    Value least = std::numeric_limits<Value>::max();
    std::size_t l = begin + size_;
    std::size_t r = end + size_;
    for (; l < r; l /= 2, r /= 2) {
      if (l & 1) least = std::min(least, tree_[l++]);
      if (r & 1) least = std::min(least, tree_[--r]);
    }
    return least;
  }

  // The minimum over a lifetime, which may wrap round.
  Value operator()(const Span& span) const {
    return std::min((*this)(span.begin, span.end), (*this)(0, span.wrap));
  }

 private:
  std::size_t size_;
  std::vector<Value> tree_;
};

}  // namespace stalloc::solve
