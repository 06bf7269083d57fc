// Fits a size law to observations: the sizes that a request had at known extents.
//
// The simplest law that explains every observation exactly wins, in this order:
//
//   constant                 a                     one unknown
//   proportional             b * m                 one unknown, m a product of up to three extents
//   affine in a product      a + b * m             two unknowns
//   sum of two products      b * m + c * n         two unknowns
//   with a constant          a + b * m + c * n     three unknowns
//   stepped                  align_up(a + b * m, step)
//
// Coefficients are rational numbers with one divisor. All arithmetic is exact. A law is proven if
// it explains more distinct observations than it has unknowns, and at least three; a constant needs
// two. A law must not predict less for the largest extents than some request had: a size that
// shrinks with its extents has no law.
//
// Cost: O(observations) for a size that a simple law explains, at most O(products^2 *
// observations). Four extents have 34 products. Most wrong candidates fail at the third
// observation.
#pragma once

#include <array>
#include <optional>
#include <span>
#include <vector>

#include "base/types.h"
#include "profile/size_law.h"

namespace stalloc::profile {

class LawFitter {
 public:
  // Takes one row of extents for each observation, all of one length. Rows may repeat. kNone stands
  // for an unknown extent; a row of unknown extents is ignored. `envelope` is at least as large as
  // every row. `inputs` has the input that each extent comes from, if several may come from
  // one: no law mixes an extent and the same one padded. Together they would explain anything.
  LawFitter(std::span<const std::vector<Extent>> rows, std::span<const Extent> envelope,
            std::span<const std::size_t> inputs = {});

  // The law of a request that had these sizes: one for each row, kNone if it was not seen there.
  // std::nullopt if no law explains them, or if the request was never seen.
  std::optional<SizeLaw> fit(std::span<const Bytes> sizes) const;

  // Distinct rows of extents among the observations.
  std::size_t distinct() const { return points_; }

 private:
  struct Product {
    Factors factors = {kNone, kNone, kNone};
    std::vector<std::int64_t> values;  // by point
  };
  // The sizes at some of the points.
  struct Sample {
    std::vector<std::size_t> points;
    std::vector<Bytes> sizes;
  };

  // True if both have extents of one input that are not the same.
  bool mixes(const Factors& a, const Factors& b) const;
  std::optional<Sample> sample(std::span<const Bytes> sizes) const;
  std::optional<SizeLaw> fit_one_product(const Sample& sample) const;
  std::optional<SizeLaw> fit_two_products(const Sample& sample) const;
  std::optional<SizeLaw> fit_steps(const Sample& sample) const;
  std::optional<SizeLaw> accepted(SizeLaw law, const Sample& sample, std::size_t unknowns) const;

  static constexpr std::size_t kNoPoint = static_cast<std::size_t>(-1);

  std::vector<std::size_t> point_of_;  // by row; kNoPoint if nothing is known
  std::size_t points_ = 0;             // distinct rows
  std::vector<Product> products_;      // ascending by number of factors
  std::vector<Extent> envelope_;
  std::vector<std::size_t> inputs_;  // by extent; empty if each has an input of its own
};

// As evaluate(), but rounds up if the division leaves a remainder. A layout for these extents
// reserves this size.
Bytes evaluate_at_least(const SizeLaw& law, std::span<const Extent> extents);

}  // namespace stalloc::profile
