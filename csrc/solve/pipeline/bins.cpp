#include "solve/pipeline/bins.h"

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
  Filler(const std::vector<Bytes>& sizes, std::vector<Range> bins)
      : sizes_(sizes), bins_(std::move(bins)), order_(sizes.size()) {
    std::iota(order_.begin(), order_.end(), std::size_t{0});
    std::ranges::stable_sort(order_, std::greater{}, [&](std::size_t i) { return sizes[i]; });
    for (std::size_t k = 0; k < order_.size(); ++k) {
      if (k == 0 || size(k) != size(k - 1)) kinds_.push_back({.next = k, .end = k});
      ++kinds_.back().end;
    }
    std::ranges::sort(bins_, {}, [](const Range& b) { return std::pair{b.size(), b.begin}; });
    offsets_.resize(sizes.size());
  }

  std::optional<std::vector<Offset>> run() {
    Bytes spare = 0;
    for (const Range& bin : bins_) spare += bin.size();
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

  // The rest of a bin with this kind and smaller ones, and then the bins after it.
  bool fill(std::size_t b, std::size_t kind, Bytes spare) {
    if (b == bins_.size()) return true;  // no more is wasted than could be, so all have a place
    if (++steps_ > kSteps) return false;
    Range& bin = bins_[b];
    if (kind == kinds_.size()) return bin.size() <= spare && fill(b + 1, 0, spare - bin.size());
    Kind& k = kinds_[kind];
    if (k.next < k.end && size(k.next) <= bin.size()) {
      const Bytes taken = size(k.next);
      offsets_[order_[k.next++]] = std::exchange(bin.begin, bin.begin + taken);
      if (fill(b, kind, spare)) return true;
      bin.begin -= taken;
      --k.next;
    }
    return fill(b, kind + 1, spare);
  }

  const std::vector<Bytes>& sizes_;
  std::vector<Range> bins_;         // smallest first
  std::vector<std::size_t> order_;  // of sizes, largest first
  std::vector<Kind> kinds_;
  std::vector<Offset> offsets_;
  int steps_ = 0;
};

}  // namespace

std::optional<std::vector<Offset>> fill_bins(const std::vector<Bytes>& sizes,
                                             std::vector<Range> bins) {
  return Filler(sizes, std::move(bins)).run();
}

}  // namespace stalloc::solve
