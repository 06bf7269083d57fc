#include "profile/group_law.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

namespace stalloc::profile {
namespace {

// A law leaves at most this share of the deviation that a constant leaves.
constexpr double kMuchBetter = 0.25;

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
  double least = kMuchBetter * fit_line(nothing, bytes).deviation;
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
    const Line line = fit_line(values, bytes);
    if (line.deviation >= least || line.slope < 1) continue;
    least = line.deviation;
    SizeLaw& law = best.emplace(std::move(product));
    law.terms.front().coefficient = std::llround(line.slope);
    law.constant = std::llround(line.constant);
  }
  return best;
}

}  // namespace stalloc::profile
