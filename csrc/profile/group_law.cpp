#include "profile/group_law.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

namespace stalloc::profile {
namespace {

// A law leaves at most this share of the deviation that a constant leaves. A power of an extent
// leaves at most this share of what each law before it leaves, too: few sums, which vary for
// reasons of their own, are met by some curve, and it is far from the sums of larger batches.
constexpr double kMuchBetter = 0.25;

// If a law before it leaves less than this share of the mean, that counts as this share.
constexpr double kExact = 0.001;

// A power needs so many values.
constexpr std::size_t kValuesOfPower = 4;

struct Line {
  double constant = 0;
  double slope = 0;
  double deviation = 0;  // the mean of |bytes - line|
};

// The line of least squares, with constant >= 0 and slope >= 0.
Line fit_line(std::span<const double> x, std::span<const double> y) {
  const auto n = static_cast<double>(x.size());
  double sum_x = 0, sum_y = 0, sum_xx = 0, sum_xy = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    sum_x += x[i];
    sum_y += y[i];
    sum_xx += x[i] * x[i];
    sum_xy += x[i] * y[i];
  }
  Line line;
  const double spread = n * sum_xx - sum_x * sum_x;
  line.slope = spread > 0 ? std::max((n * sum_xy - sum_x * sum_y) / spread, 0.0) : 0.0;
  line.constant = (sum_y - line.slope * sum_x) / n;
  if (line.constant < 0) {
    line.constant = 0;
    line.slope = sum_xy / sum_xx;
  }
  for (std::size_t i = 0; i < x.size(); ++i) {
    line.deviation += std::abs(y[i] - line.constant - line.slope * x[i]) / n;
  }
  return line;
}

// True if the product has an extent more than once.
bool has_power(const Factors& factors) {
  const auto twice = std::ranges::adjacent_find(factors);
  return twice != factors.end() && *twice != kNone;
}

std::size_t distinct(std::vector<double> values) {
  std::ranges::sort(values);
  return values.size() - std::ranges::size(std::ranges::unique(values));
}

}  // namespace

std::optional<SizeLaw> find_group_law(std::span<const GroupSum> sums,
                                      std::span<const Extent> envelope) {
  std::vector<GroupSum> known;
  std::vector<double> bytes;
  for (const GroupSum& sum : sums) {
    if (sum.extents.empty()) continue;
    known.push_back(sum);
    bytes.push_back(static_cast<double>(sum.bytes));
  }
  if (known.empty()) return std::nullopt;
  const std::vector<double> nothing(bytes.size(), 0.0);
  const Line constant = fit_line(nothing, bytes);
  double least = kMuchBetter * constant.deviation;
  double before = constant.deviation;  // the least that a law has left so far
  std::optional<SizeLaw> best;
  for (const Factors& factors : products_of(envelope.size())) {
    SizeLaw product;
    product.terms = {{1, factors}};
    std::vector<double> values;
    for (const GroupSum& sum : known) {
      const Bytes value = evaluate(product, sum.extents);
      if (value >= 0) values.push_back(static_cast<double>(value));
    }
    if (values.size() < known.size()) continue;
    if (has_power(factors) && distinct(values) < kValuesOfPower) continue;
    const Line line = fit_line(values, bytes);
    if (line.slope < 1) continue;
    const double power = kMuchBetter * std::max(before, kExact * constant.constant);
    const double most = has_power(factors) ? std::min(least, power) : least;
    before = std::min(before, line.deviation);
    if (line.deviation >= most) continue;
    least = line.deviation;
    SizeLaw& law = best.emplace(std::move(product));
    law.terms.front().coefficient = std::llround(line.slope);
    law.constant = std::llround(line.constant);
  }
  return best;
}

}  // namespace stalloc::profile
