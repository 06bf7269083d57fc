#include "solve/pipeline/fill_ranges.h"

#include <algorithm>
#include <cstddef>
#include <functional>
#include <numeric>
#include <utility>

namespace stalloc::solve {
namespace {

constexpr int kSteps = 20'000;

class Filler {
 public:
  Filler(const std::vector<Bytes>& sizes, std::vector<Range> ranges)
      : sizes_(sizes), ranges_(std::move(ranges)), order_(sizes.size()) {
    std::iota(order_.begin(), order_.end(), std::size_t{0});
    std::ranges::stable_sort(order_, std::greater{}, [&](std::size_t i) { return sizes[i]; });
    for (std::size_t k = 0; k < order_.size(); ++k) {
      if (k == 0 || size(k) != size(k - 1)) kinds_.push_back({.next = k, .end = k});
      ++kinds_.back().end;
    }
    std::ranges::sort(ranges_, {}, [](const Range& b) { return std::pair{b.size(), b.begin}; });
    offsets_.resize(sizes.size());
  }

  std::optional<std::vector<Offset>> run() {
    Bytes spare = 0;
    for (const Range& range : ranges_) spare += range.size();
    for (const Bytes size : sizes_) spare -= size;
    if (spare < 0 || !fill(0, 0, spare)) return std::nullopt;
    return std::move(offsets_);
  }

 private:
  struct Kind {  // of the same size
    std::size_t next = 0;
    std::size_t end = 0;
  };

  Bytes size(std::size_t k) const { return sizes_[order_[k]]; }

  // Fills the rest of a range with this kind and smaller ones, and then the ranges after it.
  bool fill(std::size_t b, std::size_t kind, Bytes spare) {
    if (b == ranges_.size()) return true;  // the waste is within the total, so all sizes fit
    if (++steps_ > kSteps) return false;
    Range& range = ranges_[b];
    if (kind == kinds_.size()) return range.size() <= spare && fill(b + 1, 0, spare - range.size());
    Kind& k = kinds_[kind];
    if (k.next < k.end && size(k.next) <= range.size()) {
      const Bytes taken = size(k.next);
      offsets_[order_[k.next++]] = std::exchange(range.begin, range.begin + taken);
      if (fill(b, kind, spare)) return true;
      range.begin -= taken;
      --k.next;
    }
    return fill(b, kind + 1, spare);
  }

  const std::vector<Bytes>& sizes_;
  std::vector<Range> ranges_;       // smallest first
  std::vector<std::size_t> order_;  // of sizes, largest first
  std::vector<Kind> kinds_;
  std::vector<Offset> offsets_;
  int steps_ = 0;
};

}  // namespace

std::optional<std::vector<Offset>> fill_ranges(const std::vector<Bytes>& sizes,
                                               std::vector<Range> ranges) {
  return Filler(sizes, std::move(ranges)).run();
}

}  // namespace stalloc::solve
