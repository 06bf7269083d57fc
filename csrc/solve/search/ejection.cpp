#include "solve/search/ejection.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <random>
#include <utility>
#include <vector>

#include "base/align.h"
#include "solve/core/bound.h"
#include "solve/core/order.h"
#include "solve/core/timeline.h"

namespace stalloc::solve {
namespace {

// The parts of the distance to the target at which a search aims, one after another.
constexpr std::array kAims = {0.5, 0.75, 0.9};
constexpr std::int64_t kGrowthPart = 5;  // a buffer that is ejected gains this part of its weight
constexpr std::int64_t kScanned = 32;    // buffers that are looked at in the time of a placement
constexpr std::int64_t kPollEvery = 16;  // puts between two looks at the clock

class Ejections {
 public:
  Ejections(const Problem& problem, const Timeline& timeline, const Layout& start, Bytes aim)
      : offsets_(start.offsets), aim_(aim) {
    for (BufferIndex i = 0; i < std::ssize(problem.buffers); ++i) {
      const Bytes size = align_up(problem.buffers[i].size, problem.alignment);
      const Span& span = timeline.span(i);
      const bool is_fixed = problem.buffers[i].fixed != kUnplaced;
      if (size == 0 || span.empty()) {
        if (!is_fixed) offsets_[i] = 0;  // it is in nobody's way
        continue;
      }
      const auto moments = static_cast<double>(span.end - span.begin + span.wrap);
      const double units = static_cast<double>(size / problem.alignment) * std::sqrt(moments);
      const auto weight = static_cast<std::int64_t>(std::min(units, kHeaviest));
      blocks_.push_back({i, span, size, weight, weight, is_fixed, offsets_[i]});
      if (!is_fixed && offsets_[i] + size > aim) eject(std::ssize(blocks_) - 1);
    }
  }

  // Returns true once all buffers lie below the aim, false after so many puts or if one has no
  // place at all.
  bool run(std::int64_t puts, const Budget& budget) {
    if (std::ssize(out_) > puts) return false;
    for (; !out_.empty(); --puts) {
      const bool is_late = puts % kPollEvery == 0 && budget.is_late();
      if (puts == 0 || is_late || (budget.work && budget.expired())) return false;
      budget.spend(1 + std::ssize(blocks_) / kScanned);
      const auto heaviest = std::ranges::max_element(
          out_, {}, [&](std::ptrdiff_t k) { return blocks_[k].first_weight; });
      const std::ptrdiff_t next = *heaviest;
      *heaviest = out_.back();
      out_.pop_back();
      if (!put(next)) return false;
    }
    for (const Block& block : blocks_) offsets_[block.buffer] = block.offset;
    return true;
  }

  std::vector<Offset>& offsets() { return offsets_; }

 private:
  struct Block {
    BufferIndex buffer;
    Span span;
    Bytes size;
    std::int64_t first_weight;
    std::int64_t weight;  // grows
    bool is_fixed;
    Offset offset;  // kUnplaced while it is out
  };

  // A weight at one end of a block.
  struct End {
    Offset at;
    std::int64_t weight;
    std::int64_t fixed;  // 1 for a block that cannot be ejected
  };

  static bool meet(const Span& a, const Span& b) {
    return (a.begin < b.end && b.begin < a.end) || b.begin < a.wrap || a.begin < b.wrap ||
           (a.wrap > 0 && b.wrap > 0);
  }

  void eject(std::ptrdiff_t k) {
    blocks_[k].offset = kUnplaced;
    out_.push_back(k);
  }

  // Puts a block where it ejects the least weight. Returns false if only fixed blocks could yield.
  bool put(std::ptrdiff_t k) {
    Block& block = blocks_[k];
    if (block.size > aim_) return false;
    find_near(block);
    const Offset place = lightest_place(block.size);
    if (place == kUnplaced) return false;
    for (const std::ptrdiff_t n : near_) {
      Block& other = blocks_[n];
      if (other.offset >= place + block.size || place >= other.offset + other.size) continue;
      eject(n);
      other.weight = std::min(other.weight + other.first_weight / kGrowthPart + 1, kMostWeight);
    }
    block.offset = place;
    return true;
  }

  // Finds the blocks that live with this one, their ends, and the places beside them.
  void find_near(const Block& block) {
    near_.clear();
    begins_.clear();
    ends_.clear();
    places_ = {0, aim_ - block.size};
    for (std::ptrdiff_t n = 0; n < std::ssize(blocks_); ++n) {
      const Block& other = blocks_[n];
      if (other.offset == kUnplaced || !meet(block.span, other.span)) continue;
      if (!other.is_fixed) near_.push_back(n);
      const Offset end = other.offset + other.size;
      const std::int64_t weight = other.is_fixed ? 0 : other.weight;
      begins_.push_back({other.offset, weight, other.is_fixed});
      ends_.push_back({end, weight, other.is_fixed});
      if (end + block.size <= aim_) places_.push_back(end);
      if (other.offset >= block.size && other.offset <= aim_) {
        places_.push_back(other.offset - block.size);
      }
    }
    std::ranges::sort(begins_, {}, &End::at);
    std::ranges::sort(ends_, {}, &End::at);
    std::ranges::sort(places_);
    places_.erase(std::ranges::unique(places_).begin(), places_.end());
  }

  // The blocks in the way of a place are those that begin below its end, less those that end below
  // its beginning. Among equal places, chance decides.
  Offset lightest_place(Bytes size) {
    Offset best = kUnplaced;
    std::int64_t least = std::numeric_limits<std::int64_t>::max();
    std::int64_t weight = 0;
    std::int64_t fixed = 0;
    std::uint64_t equals = 0;
    auto begin = begins_.cbegin();
    auto end = ends_.cbegin();
    for (const Offset place : places_) {
      for (; begin != begins_.cend() && begin->at < place + size; ++begin) {
        weight += begin->weight;
        fixed += begin->fixed;
      }
      for (; end != ends_.cend() && end->at <= place; ++end) {
        weight -= end->weight;
        fixed -= end->fixed;
      }
      if (fixed > 0 || weight > least) continue;
      equals = weight < least ? 1 : equals + 1;
      if (random_() % equals == 0) best = place;
      least = weight;
    }
    return best;
  }

  // The weights of a million blocks can be added.
  static constexpr std::int64_t kMostWeight = std::int64_t{1} << 40;
  static constexpr double kHeaviest = 0x1p38;

  std::vector<Offset> offsets_;
  const Bytes aim_;
  std::vector<Block> blocks_;
  std::vector<std::ptrdiff_t> out_;   // indices of blocks
  std::vector<std::ptrdiff_t> near_;  // those of a put that can be ejected
  std::vector<End> begins_;
  std::vector<End> ends_;
  std::vector<Offset> places_;
  std::mt19937_64 random_{1};
};

}  // namespace

Minimum search_ejections(const Problem& problem, const Layout& start, std::int64_t puts,
                         const Budget& budget) {
  Minimum result{start, 0};
  const Timeline timeline(problem);
  const Bytes target = std::max(budget.target, load_bound(problem));
  Bytes failed = 0;  // the highest aim so far without success
  for (auto part = kAims.begin(); part != kAims.end() && result.layout.height > target;) {
    const auto above = static_cast<double>(result.layout.height - target);
    Bytes aim = target + static_cast<Bytes>(*part * above);
    aim -= aim % problem.alignment;
    if (aim <= failed || aim < target) {
      ++part;
      continue;
    }
    Ejections search(problem, timeline, result.layout, aim);
    if (!search.run(puts, budget)) {
      failed = aim;
      ++part;
      continue;
    }
    Layout lower{std::move(search.offsets()), 0};
    for (std::size_t i = 0; i < problem.buffers.size(); ++i) {
      const Bytes size = align_up(problem.buffers[i].size, problem.alignment);
      lower.height = std::max(lower.height, lower.offsets[i] + size);
    }
    if (lower.height >= result.layout.height) break;  // a fixed buffer is that high
    result.layout = std::move(lower);
  }
  return result;
}

}  // namespace stalloc::solve
