#include "profile/law_fit.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>

namespace stalloc::profile {
namespace {

using Wide = __int128;

// Laws of real programs divide by two or four, if a dimension is halved. A larger divisor is a
// coincidence.
constexpr std::int64_t kMaxDivisor = 4096;
// Terms above this belong to no request (trace::kLargestRequest is 2^48).
constexpr std::int64_t kMaxTerm = std::int64_t{1} << 56;
// Sizes that differ by less than this many steps fit too many stepped laws.
constexpr Bytes kFewestSteps = 3;
constexpr std::array<Bytes, 10> kSteps = {
    Bytes{2} << 20, 65536, 4096, 1024, 512, 256, 128, 64, 32, 16};

Wide greatest_divisor(Wide a, Wide b) {
  a = a < 0 ? -a : a;
  b = b < 0 ? -b : b;
  while (b != 0) a = std::exchange(b, a % b);
  return a;
}

bool fits(Wide number) { return -kMaxTerm <= number && number <= kMaxTerm; }

// (constant + sum of coefficient * product) / divisor, in lowest terms; divisor > 0.
struct Rational {
  Wide constant = 0;
  std::array<Wide, 2> coefficients = {0, 0};
  Wide divisor = 1;

  bool reduce() {
    Wide common = greatest_divisor(divisor, constant);
    for (const Wide c : coefficients) common = greatest_divisor(common, c);
    if (common == 0 || divisor == 0) return false;
    if (divisor < 0) common = -common;
    constant /= common;
    divisor /= common;
    for (Wide& c : coefficients) c /= common;
    return divisor <= kMaxDivisor && fits(constant) && fits(coefficients[0]) &&
           fits(coefficients[1]);
  }
};

std::int64_t narrow(Wide number) { return static_cast<std::int64_t>(number); }

}  // namespace

LawFitter::LawFitter(std::span<const std::vector<Extent>> rows, std::span<const Extent> envelope,
                     std::span<const std::size_t> inputs)
    : envelope_(envelope.begin(), envelope.end()), inputs_(inputs.begin(), inputs.end()) {
  std::map<std::vector<Extent>, std::size_t> index;
  std::vector<const std::vector<Extent>*> points;
  for (const std::vector<Extent>& row : rows) {
    if (std::ranges::all_of(row, [](Extent e) { return e < 0; })) {
      point_of_.push_back(kNoPoint);
      continue;
    }
    const auto [it, is_new] = index.try_emplace(row, points.size());
    if (is_new) points.push_back(&it->first);
    point_of_.push_back(it->second);
  }
  points_ = points.size();
  const auto add = [&](const Factors& factors) {
    if (mixes(factors, factors)) return;
    Product product{factors, {}};
    for (const std::vector<Extent>* point : points) {
      std::int64_t value = 1;
      for (const ExtentIndex factor : factors) {
        if (factor == kNone) break;
        const Extent extent = (*point)[factor.position()];
        if (extent < 0 || __builtin_mul_overflow(value, extent, &value) || value > kMaxTerm) return;
      }
      product.values.push_back(value);
    }
    products_.push_back(std::move(product));
  };
  std::ranges::for_each(products_of(envelope.size()), add);
}

std::optional<SizeLaw> LawFitter::fit(std::span<const Bytes> sizes) const {
  const std::optional<Sample> seen = sample(sizes);
  if (!seen || seen->sizes.empty()) return std::nullopt;
  if (std::ranges::all_of(seen->sizes, [&](Bytes s) { return s == seen->sizes.front(); })) {
    SizeLaw law;
    law.constant = seen->sizes.front();
    law.proof = seen->sizes.size() >= 2 ? LawProof::kProven : LawProof::kUnproven;
    return law;
  }
  if (auto law = fit_one_product(*seen)) return law;
  if (auto law = fit_two_products(*seen)) return law;
  return fit_steps(*seen);
}

bool LawFitter::mixes(const Factors& a, const Factors& b) const {
  if (inputs_.empty()) return false;
  for (const ExtentIndex i : a) {
    for (const ExtentIndex j : b) {
      if (i == kNone || j == kNone || i == j) continue;
      if (inputs_[i.position()] == inputs_[j.position()]) return true;
    }
  }
  return false;
}

// The sizes by point; std::nullopt if two differ at the same extents.
std::optional<LawFitter::Sample> LawFitter::sample(std::span<const Bytes> sizes) const {
  std::vector<Bytes> by_point(points_, kNone);
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    if (sizes[i] == kNone || point_of_[i] == kNoPoint) continue;
    Bytes& size = by_point[point_of_[i]];
    if (size != kNone && size != sizes[i]) return std::nullopt;
    size = sizes[i];
  }
  Sample result;
  for (std::size_t p = 0; p < points_; ++p) {
    if (by_point[p] == kNone) continue;
    result.points.push_back(p);
    result.sizes.push_back(by_point[p]);
  }
  return result;
}

// Accepts a law that explains the sample unless it predicts too little for the envelope. Sets how
// well the observations support it.
std::optional<SizeLaw> LawFitter::accepted(SizeLaw law, const Sample& sample,
                                           std::size_t unknowns) const {
  std::ranges::sort(law.terms);
  const Bytes largest = std::ranges::max(sample.sizes);
  if (evaluate_at_least(law, envelope_) < largest) return std::nullopt;
  const std::size_t needed = std::max<std::size_t>(unknowns + 1, 3);
  law.proof = sample.sizes.size() >= needed ? LawProof::kProven : LawProof::kUnproven;
  return law;
}

std::optional<SizeLaw> LawFitter::fit_one_product(const Sample& sample) const {
  const std::size_t count = sample.sizes.size();
  // A law without a constant comes first: fewer observations prove it.
  for (const bool with_constant : {false, true}) {
    for (const Product& product : products_) {
      // Two observations support no more than a straight line.
      if (with_constant && count == 2 && product.factors[1] != kNone) break;
      const auto value = [&](std::size_t i) { return product.values[sample.points[i]]; };
      std::size_t low = 0;
      std::size_t high = 0;
      for (std::size_t i = 1; i < count; ++i) {
        if (value(i) < value(low)) low = i;
        if (value(i) > value(high)) high = i;
      }
      if (value(low) == value(high)) continue;
      Rational r;
      if (with_constant) {
        r.divisor = value(high) - value(low);
        r.coefficients[0] = Wide{sample.sizes[high]} - sample.sizes[low];
        r.constant = r.divisor * sample.sizes[low] - r.coefficients[0] * value(low);
      } else {
        r.divisor = value(high);
        r.coefficients[0] = sample.sizes[high];
      }
      if (r.coefficients[0] <= 0 || !r.reduce()) continue;
      bool explains = true;
      for (std::size_t i = 0; i < count && explains; ++i) {
        explains = r.constant + r.coefficients[0] * value(i) == r.divisor * sample.sizes[i];
      }
      if (!explains) continue;
      SizeLaw law;
      law.constant = narrow(r.constant);
      law.terms = {{narrow(r.coefficients[0]), product.factors}};
      law.divisor = narrow(r.divisor);
      if (auto result = accepted(std::move(law), sample, with_constant ? 2 : 1)) return result;
    }
  }
  return std::nullopt;
}

std::optional<SizeLaw> LawFitter::fit_two_products(const Sample& sample) const {
  const std::size_t count = sample.sizes.size();
  for (const bool with_constant : {false, true}) {
    const std::size_t unknowns = with_constant ? 3 : 2;
    if (count < 3) return std::nullopt;
    for (std::size_t a = 0; a < products_.size(); ++a) {
      for (std::size_t b = a + 1; b < products_.size(); ++b) {
        const Product& first = products_[a];
        const Product& second = products_[b];
        if (mixes(first.factors, second.factors)) continue;
        // As many observations as unknowns fit any pair of products. Only the most usual laws are
        // tried then: a polynomial of one extent, or a sum of two.
        const bool unsure = count == unknowns;
        if (unsure && second.factors[2] != kNone) break;
        // With a constant, all values are relative to the first observation: the constant cancels.
        const auto x = [&](std::size_t i) {
          const std::int64_t base = with_constant ? first.values[sample.points[0]] : 0;
          return Wide{first.values[sample.points[i]]} - base;
        };
        const auto y = [&](std::size_t i) {
          const std::int64_t base = with_constant ? second.values[sample.points[0]] : 0;
          return Wide{second.values[sample.points[i]]} - base;
        };
        const auto z = [&](std::size_t i) {
          return Wide{sample.sizes[i]} - (with_constant ? sample.sizes[0] : 0);
        };
        // Cramer's rule for two observations that are independent.
        const std::size_t begin = with_constant ? 1 : 0;
        std::size_t i = begin;
        while (i < count && x(i) == 0 && y(i) == 0) ++i;
        std::size_t j = i + 1;
        while (j < count && x(i) * y(j) == x(j) * y(i)) ++j;
        if (j >= count) continue;
        Rational r;
        Wide terms[4];
        if (__builtin_mul_overflow(z(i), y(j), &terms[0]) ||
            __builtin_mul_overflow(z(j), y(i), &terms[1]) ||
            __builtin_mul_overflow(x(i), z(j), &terms[2]) ||
            __builtin_mul_overflow(x(j), z(i), &terms[3])) {
          continue;
        }
        r.divisor = x(i) * y(j) - x(j) * y(i);
        r.coefficients = {terms[0] - terms[1], terms[2] - terms[3]};
        if (r.coefficients[0] == 0 || r.coefficients[1] == 0 || !r.reduce()) continue;
        if (with_constant) {
          r.constant = r.divisor * sample.sizes[0] -
                       r.coefficients[0] * first.values[sample.points[0]] -
                       r.coefficients[1] * second.values[sample.points[0]];
          if (!fits(r.constant)) continue;
        }
        if (unsure &&
            (r.divisor != 1 || r.constant < 0 || r.coefficients[0] < 0 || r.coefficients[1] < 0)) {
          continue;
        }
        bool explains = true;
        for (std::size_t k = 0; k < count && explains; ++k) {
          explains = r.constant + r.coefficients[0] * first.values[sample.points[k]] +
                         r.coefficients[1] * second.values[sample.points[k]] ==
                     r.divisor * sample.sizes[k];
        }
        if (!explains) continue;
        SizeLaw law;
        law.constant = narrow(r.constant);
        law.terms = {{narrow(r.coefficients[0]), first.factors},
                     {narrow(r.coefficients[1]), second.factors}};
        law.divisor = narrow(r.divisor);
        if (auto result = accepted(std::move(law), sample, unknowns)) return result;
      }
    }
  }
  return std::nullopt;
}

// align_up(a + b * m, step) == size means size - step < a + b * m <= size. Each pair of
// observations bounds b; a is bounded once b is chosen.
std::optional<SizeLaw> LawFitter::fit_steps(const Sample& sample) const {
  constexpr std::size_t kMostPoints = 64;
  const std::size_t count = std::min(sample.sizes.size(), kMostPoints);
  if (count < 4) return std::nullopt;
  const auto [smallest, largest] = std::ranges::minmax(sample.sizes);
  const auto floor = [](Wide a, Wide b) { return a / b - (a % b != 0 && a < 0 ? 1 : 0); };
  for (const Bytes step : kSteps) {
    if (largest - smallest < kFewestSteps * step) continue;
    if (!std::ranges::all_of(sample.sizes, [&](Bytes s) { return s % step == 0; })) continue;
    for (const Product& product : products_) {
      const auto value = [&](std::size_t i) { return Wide{product.values[sample.points[i]]}; };
      Wide least = 1;
      Wide most = kMaxTerm;
      for (std::size_t i = 0; i < count && least <= most; ++i) {
        for (std::size_t j = 0; j < count; ++j) {
          const Wide width = value(j) - value(i);
          const Wide rise = Wide{sample.sizes[j]} - sample.sizes[i];
          if (width == 0 && rise != 0) most = 0;
          if (width <= 0) continue;
          least = std::max(least, floor(rise - step, width) + 1);  // b > (rise - step) / width
          most = std::min(most, floor(rise + step - 1, width));    // b < (rise + step) / width
        }
      }
      if (least > most) continue;
      // The roundest coefficient wins: sizes of elements and widths of models are round.
      Wide b = most;
      for (int bit = 0; bit < 56; ++bit) {
        const Wide unit = Wide{1} << bit;
        const Wide round = floor(most, unit) * unit;
        if (round < least) break;
        b = round;
      }
      Wide lower = -kMaxTerm;
      Wide upper = kMaxTerm;
      for (std::size_t i = 0; i < sample.sizes.size(); ++i) {
        lower = std::max(lower, sample.sizes[i] - step + 1 - b * value(i));
        upper = std::min(upper, sample.sizes[i] - b * value(i));
      }
      if (lower > upper || !fits(b)) continue;
      SizeLaw law;
      law.constant = lower <= 0 && 0 <= upper ? 0 : narrow(upper);
      law.terms = {{narrow(b), product.factors}};
      law.step = step;
      if (auto result = accepted(std::move(law), sample, 3)) return result;
    }
  }
  return std::nullopt;
}

Bytes evaluate_at_least(const SizeLaw& law, std::span<const Extent> extents) {
  SizeLaw whole = law;
  whole.divisor = 1;
  whole.step = 1;
  const Bytes sum = evaluate(whole, extents);
  if (sum == kNone) return kNone;
  const Bytes quotient = sum / law.divisor + (sum % law.divisor != 0 ? 1 : 0);
  const Bytes rest = quotient % law.step;
  return rest == 0 ? quotient : quotient + law.step - rest;
}

}  // namespace stalloc::profile
