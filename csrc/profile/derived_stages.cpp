#include "profile/derived_stages.h"

#include <algorithm>
#include <array>
#include <map>
#include <numeric>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

namespace stalloc::profile {
namespace {

using Wide = __int128;

// Stages of a model that sizes follow: a backbone halves its image five times.
constexpr std::size_t kMostStages = 8;
// A stage explains at least so many requests of the program.
constexpr std::int64_t kFewestRequests = 2;
// All divisors up to this one are tried. Larger ones are products of the strides of several layers,
// which are small primes.
constexpr Extent kAllDivisors = 64;
constexpr Extent kLargestDivisor = 4096;
constexpr std::array<Extent, 4> kPrimes = {2, 3, 5, 7};
// An offset is so many divisors below or above 0: layers without padding take positions away, and
// a class token adds one. The usual ones come first.
constexpr std::array<Extent, 4> kPeriods = {0, -1, -2, 1};
// A stage is tried with so many sizes, those that most requests have, and so many observations.
constexpr std::size_t kMostTried = 32;
constexpr std::size_t kMostPoints = 24;
constexpr std::size_t kFewestPoints = 3;
// Chance explains a size in one of so many cases at most: tens of thousands of stages are tried.
constexpr double kLeastEvidence = 1 << 20;

// The probability that any sizes follow a law with so many unknowns: each observation beyond them
// has one value of `spread`.
bool is_no_chance(Wide spread, std::size_t points, std::size_t unknowns) {
  double evidence = 1;
  for (std::size_t i = unknowns; i < points && evidence < kLeastEvidence; ++i) {
    evidence *= static_cast<double>(spread);
  }
  return points >= kFewestPoints && evidence >= kLeastEvidence;
}

bool has_small_primes(Extent number) {
  for (const Extent prime : kPrimes) {
    while (number % prime == 0) number /= prime;
  }
  return number == 1;
}

// Large ones first. Several explain the same sizes if the batches do not tell them apart, as 2 and
// 4 for lengths without a remainder of 1 or 2. The largest of them never says too little.
std::vector<Extent> divisors() {
  std::vector<Extent> result;
  for (Extent k = kLargestDivisor; k >= 2; --k) {
    if (k <= kAllDivisors || has_small_primes(k)) result.push_back(k);
  }
  return result;
}

// Sizes at distinct rows of extents.
struct Points {
  std::vector<std::size_t> rows;  // index into the distinct rows
  std::vector<Bytes> sizes;
  std::int64_t requests = 0;
};

// A divisor and an interval of offsets with the same values.
struct Stage {
  Extent divisor = 1;
  Extent least = 0;
  Extent most = 0;
  std::vector<std::size_t> extents;  // of the table
  std::size_t unusual = 0;           // the later in kPeriods, the rarer
};

struct Score {
  std::int64_t requests = 0;
  std::int64_t proportional = 0;  // of them without a constant

  auto operator<=>(const Score&) const = default;
};

class Search {
 public:
  Search(const ExtentTable& table, std::vector<OpenSizes> open) : table_(table) {
    for (std::size_t e = 0; e < table.size(); ++e) {
      if (table.is_plain(e)) plain_.push_back(e);
    }
    std::map<std::vector<Extent>, std::size_t> index;
    std::vector<std::size_t> row_of;
    for (std::size_t i = 0; i < table.rows(); ++i) {
      const std::vector<Extent>& row = table.row(static_cast<std::int32_t>(i));
      const auto [it, is_new] = index.try_emplace(row, rows_.size());
      if (is_new) rows_.push_back(row);
      row_of.push_back(it->second);
    }
    for (const OpenSizes& o : open) add(o, row_of);
    std::ranges::stable_sort(open_, std::ranges::greater{}, &Points::requests);
  }

  // The stage that explains the most; nothing if none explains enough. Its sizes are no longer
  // open.
  std::optional<Stage> next() {
    Score best;
    std::optional<Stage> found;
    for (const std::vector<std::size_t>& extents : choices()) {
      for (const Extent divisor : divisors_) {
        if (!has_values(extents, divisor)) continue;
        for (Stage& stage : stages_of(extents, divisor)) {
          const Score score = try_out(stage, kMostTried);
          const bool ties = found && score == best && stage.unusual < found->unusual;
          if (score <= best && !ties) continue;
          best = score;
          found = std::move(stage);
        }
      }
    }
    if (best.requests < kFewestRequests) return std::nullopt;
    use(*found);
    std::erase_if(open_, [&](const Points& p) { return explains(p).requests > 0; });
    return found;
  }

 private:
  void add(const OpenSizes& open, const std::vector<std::size_t>& row_of) {
    std::map<std::size_t, Bytes> sizes;
    std::set<Bytes> distinct;
    for (std::size_t i = 0; i < open.sizes.size(); ++i) {
      if (open.sizes[i] == kNone || open.rows[i] == kNone) continue;
      const std::size_t row = row_of[static_cast<std::size_t>(open.rows[i])];
      if (std::ranges::any_of(rows_[row], [](Extent e) { return e < 0; })) continue;
      const auto [it, is_new] = sizes.try_emplace(row, open.sizes[i]);
      if (it->second != open.sizes[i]) return;  // they follow other numbers, too
      distinct.insert(open.sizes[i]);
    }
    if (distinct.size() < kFewestPoints) return;
    Points points{{}, {}, open.requests};
    for (const auto& [row, size] : sizes) {
      points.rows.push_back(row);
      points.sizes.push_back(size);
    }
    open_.push_back(std::move(points));
  }

  // The non-empty subsets of the inputs' extents, small ones first.
  std::vector<std::vector<std::size_t>> choices() const {
    std::vector<std::vector<std::size_t>> result;
    for (std::size_t mask = 1; mask < (std::size_t{1} << plain_.size()); ++mask) {
      std::vector<std::size_t> extents;
      for (std::size_t i = 0; i < plain_.size(); ++i) {
        if ((mask >> i & 1) != 0) extents.push_back(plain_[i]);
      }
      result.push_back(std::move(extents));
    }
    std::ranges::stable_sort(result, {}, &std::vector<std::size_t>::size);
    return result;
  }

  // True if a stage has several values of each extent.
  bool has_values(const std::vector<std::size_t>& extents, Extent divisor) const {
    return std::ranges::all_of(extents, [&](std::size_t e) {
      Extent least = kLargestDivisor * kLargestDivisor;
      Extent most = 0;
      for (const std::vector<Extent>& row : rows_) {
        if (row[e] < 0) continue;
        least = std::min(least, row[e]);
        most = std::max(most, row[e]);
      }
      return most - least >= 2 * divisor;
    });
  }

  // The stages of a divisor that differ for the extents seen.
  std::vector<Stage> stages_of(const std::vector<std::size_t>& extents, Extent divisor) const {
    std::set<Extent> begins = {0};
    for (const std::vector<Extent>& row : rows_) {
      for (const std::size_t e : extents) {
        if (row[e] >= 0) begins.insert((divisor - row[e] % divisor) % divisor);
      }
    }
    std::vector<Stage> result;
    for (std::size_t p = 0; p < kPeriods.size(); ++p) {
      for (auto it = begins.begin(); it != begins.end(); ++it) {
        const Extent end = std::next(it) == begins.end() ? divisor : *std::next(it);
        const Extent shift = kPeriods[p] * divisor;
        result.push_back({divisor, *it + shift, end - 1 + shift, extents, p});
      }
    }
    return result;
  }

  // Sets the products of extents in which this stage has a part.
  void use(const Stage& stage) {
    const ExtentForm form{stage.divisor, stage.most};
    values_.assign(plain_.size(), std::vector<std::int64_t>(rows_.size()));
    std::vector<bool> derived;
    for (std::size_t i = 0; i < plain_.size(); ++i) {
      derived.push_back(std::ranges::find(stage.extents, plain_[i]) != stage.extents.end());
      for (std::size_t r = 0; r < rows_.size(); ++r) {
        const Extent value = rows_[r][plain_[i]];
        values_[i][r] = derived.back() ? form.of(value) : value;
      }
    }
    products_.clear();
    for (const Factors& factors : products_of(plain_.size())) {
      const bool takes_part = std::ranges::any_of(
          factors, [&](ExtentIndex f) { return f != kNone && derived[f.position()]; });
      if (!takes_part) continue;
      std::vector<std::int64_t> product(rows_.size(), 1);
      bool valid = true;
      for (std::size_t r = 0; r < rows_.size() && valid; ++r) {
        for (const ExtentIndex f : factors) {
          if (f == kNone) break;
          const std::int64_t value = std::max<std::int64_t>(values_[f.position()][r], 0);
          valid = valid && !__builtin_mul_overflow(product[r], value, &product[r]);
        }
      }
      if (valid) products_.push_back(std::move(product));
    }
  }

  Score try_out(const Stage& stage, std::size_t most) {
    use(stage);
    Score score;
    for (std::size_t i = 0; i < std::min(most, open_.size()); ++i) {
      const Score one = explains(open_[i]);
      score.requests += one.requests;
      score.proportional += one.proportional;
    }
    return score;
  }

  // The requests, if their sizes are affine in a product.
  Score explains(const Points& points) const {
    const std::size_t count = std::min(points.sizes.size(), kMostPoints);
    for (const std::vector<std::int64_t>& product : products_) {
      const auto x = [&](std::size_t i) { return Wide{product[points.rows[i]]}; };
      const auto y = [&](std::size_t i) { return Wide{points.sizes[i]}; };
      std::size_t other = 1;
      while (other < count && x(other) == x(0)) ++other;
      if (other == count) continue;
      const Wide width = x(other) - x(0);
      const Wide rise = y(other) - y(0);
      if (rise == 0 || (rise > 0) != (width > 0)) continue;
      Wide least = x(0);
      Wide most = x(0);
      bool fits = true;
      for (std::size_t i = 1; i < count && fits; ++i) {
        least = std::min(least, x(i));
        most = std::max(most, x(i));
        Wide left = 0;
        Wide right = 0;
        fits = !__builtin_mul_overflow(y(i) - y(0), width, &left) &&
               !__builtin_mul_overflow(x(i) - x(0), rise, &right) && left == right;
      }
      if (!fits) continue;
      const bool proportional = y(0) * width == x(0) * rise;
      if (!is_no_chance(most - least, count, proportional ? 1 : 2)) continue;
      return {points.requests, proportional ? points.requests : 0};
    }
    return {};
  }

  const ExtentTable& table_;
  const std::vector<Extent> divisors_ = divisors();
  std::vector<std::size_t> plain_;         // extents of the inputs
  std::vector<std::vector<Extent>> rows_;  // distinct
  std::vector<Points> open_;               // those of most requests first
  std::vector<std::vector<std::int64_t>> values_;
  std::vector<std::vector<std::int64_t>> products_;
};

}  // namespace

std::vector<DerivedStage> find_stages(const ExtentTable& table, std::vector<OpenSizes> open) {
  Search search(table, std::move(open));
  std::vector<Stage> stages;
  while (stages.size() < kMostStages) {
    std::optional<Stage> next = search.next();
    if (!next) break;
    stages.push_back(*std::move(next));
  }
  std::ranges::stable_sort(stages, {}, &Stage::divisor);
  std::vector<DerivedStage> result;
  for (const Stage& stage : stages) {
    DerivedStage derived{{stage.divisor, stage.most}, {}};
    for (const std::size_t e : stage.extents) derived.inputs.push_back(table.inputs()[e]);
    std::ranges::sort(derived.inputs);
    result.push_back(std::move(derived));
  }
  return result;
}

bool is_evident(const SizeLaw& law, std::span<const std::vector<Extent>> rows,
                std::span<const Bytes> sizes) {
  if (law.terms.empty()) return false;
  SizeLaw product;
  product.terms = {{1, law.terms.back().factors}};
  std::set<std::vector<Extent>> distinct;
  std::set<Bytes> values;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    if (sizes[i] == kNone) continue;
    const Bytes value = evaluate(product, rows[i]);
    if (value < 0) continue;
    distinct.insert(rows[i]);
    values.insert(value);
  }
  if (values.empty()) return false;
  const std::size_t unknowns = law.terms.size() + (law.constant != 0 ? 1 : 0);
  return is_no_chance(*values.rbegin() - *values.begin(), distinct.size(), unknowns);
}

}  // namespace stalloc::profile
