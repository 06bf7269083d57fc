#include "profile/law_fit.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

namespace stalloc {
namespace {

using profile::Extent;
using profile::LawFitter;
using profile::LawProof;
using profile::LawTerm;
using profile::SizeLaw;
using Rows = std::vector<std::vector<Extent>>;

constexpr std::array<profile::ExtentIndex, 3> kFirst = {0, kNone, kNone};
constexpr std::array<profile::ExtentIndex, 3> kSecond = {1, kNone, kNone};
constexpr std::array<profile::ExtentIndex, 3> kSquare = {0, 0, kNone};
constexpr std::array<profile::ExtentIndex, 3> kProduct = {0, 1, kNone};

std::vector<Extent> envelope_of(const Rows& rows) {
  std::vector<Extent> envelope = rows.front();
  for (const auto& row : rows) {
    for (std::size_t e = 0; e < row.size(); ++e) envelope[e] = std::max(envelope[e], row[e]);
  }
  return envelope;
}

std::optional<SizeLaw> fit(const Rows& rows, const std::vector<Bytes>& sizes) {
  return LawFitter(rows, envelope_of(rows)).fit(sizes);
}

TEST(LawFit, TheSimplestLawWins) {
  const Rows rows = {{128}, {256}, {640}};
  const auto constant = fit(rows, {512, 512, 512});
  ASSERT_TRUE(constant);
  EXPECT_EQ(profile::kind_of(*constant), "constant");
  EXPECT_EQ(constant->proof, LawProof::kProven);
  const auto affine = fit(rows, {4 * 129, 4 * 257, 4 * 641});
  ASSERT_TRUE(affine);
  EXPECT_EQ(affine->constant, 4);
  EXPECT_EQ(affine->terms, (std::vector<LawTerm>{{4, kFirst}}));
  EXPECT_EQ(affine->proof, LawProof::kProven);
  const auto square = fit(rows, {2 * 128 * 128, 2 * 256 * 256, 2 * 640 * 640});
  ASSERT_TRUE(square);
  EXPECT_EQ(square->terms, (std::vector<LawTerm>{{2, kSquare}}));
}

TEST(LawFit, DivisorsAreFound) {
  const Rows rows = {{160}, {224}, {288}, {192}};
  std::vector<Bytes> sizes;
  for (const auto& row : rows) sizes.push_back(row[0] * row[0] / 4 * 3);
  const auto law = fit(rows, sizes);
  ASSERT_TRUE(law);
  EXPECT_EQ(law->divisor, 4);
  EXPECT_EQ(evaluate(*law, std::vector<Extent>{320}), 320 * 320 / 4 * 3);
}

TEST(LawFit, TwoExtentsAreToldApart) {
  const Rows rows = {{100, 700}, {250, 300}, {330, 900}, {90, 410}, {500, 520}};
  std::vector<Bytes> sums;
  std::vector<Bytes> products;
  for (const auto& row : rows) {
    sums.push_back(8 * row[0] + 24 * row[1]);
    products.push_back(2 * row[0] * row[1] + 16 * row[1] + 40);
  }
  const auto sum = fit(rows, sums);
  ASSERT_TRUE(sum);
  EXPECT_EQ(sum->terms, (std::vector<LawTerm>{{8, kFirst}, {24, kSecond}}));
  EXPECT_EQ(sum->proof, LawProof::kProven);
  const auto product = fit(rows, products);
  ASSERT_TRUE(product);
  EXPECT_EQ(product->terms, (std::vector<LawTerm>{{2, kProduct}, {16, kSecond}}));
  EXPECT_EQ(product->constant, 40);
}

TEST(LawFit, TwoObservationsProveNothing) {
  const auto line = fit({{100}, {300}}, {10'020, 30'020});
  ASSERT_TRUE(line);
  EXPECT_EQ(line->terms, (std::vector<LawTerm>{{100, kFirst}}));
  EXPECT_EQ(line->constant, 20);
  EXPECT_EQ(line->proof, LawProof::kUnproven);
  EXPECT_EQ(fit({{100}, {300}, {100}}, {10'020, 30'020, 10'020})->proof, LawProof::kUnproven)
      << "an extent that comes again is no third observation";
}

TEST(LawFit, AsManyObservationsAsUnknownsProveNothing) {
  const auto law = fit({{10}, {20}, {30}}, {100 + 160, 400 + 320, 900 + 480});
  ASSERT_TRUE(law);
  EXPECT_EQ(evaluate(*law, std::vector<Extent>{40}), 1600 + 640);
  EXPECT_EQ(law->proof, LawProof::kProven) << "two unknowns, three observations";
  const auto unsure = fit({{10}, {20}, {30}}, {100 + 160 + 7, 400 + 320 + 7, 900 + 480 + 7});
  ASSERT_TRUE(unsure);
  EXPECT_EQ(unsure->proof, LawProof::kUnproven);
}

TEST(LawFit, ASizeThatBreaksTheLawLaterHasNoLaw) {
  const Rows rows = {{100}, {200}, {300}, {400}, {500}};
  EXPECT_FALSE(fit(rows, {400, 800, 1200, 1600, 2001}));
  EXPECT_FALSE(fit(rows, {1000, 7, 500, 31, 900}));
}

TEST(LawFit, OneSizeAtOneSetOfExtents) {
  EXPECT_FALSE(fit({{100}, {100}, {200}}, {400, 404, 800}));
}

TEST(LawFit, SizesThatShrinkHaveNoLaw) {
  EXPECT_FALSE(fit({{100}, {200}, {300}}, {900, 800, 700}));
}

TEST(LawFit, StepsAreFound) {
  Rows rows;
  std::vector<Bytes> sizes;
  for (const Extent tokens : {64, 100, 171, 260, 333, 512, 700, 777}) {
    rows.push_back({tokens});
    sizes.push_back((tokens * 96 + 511) / 512 * 512);
  }
  const auto law = fit(rows, sizes);
  ASSERT_TRUE(law);
  EXPECT_EQ(profile::kind_of(*law), "stepped");
  EXPECT_EQ(law->step, 512);
  for (std::size_t i = 0; i < rows.size(); ++i) EXPECT_EQ(evaluate(*law, rows[i]), sizes[i]);
  EXPECT_EQ(evaluate(*law, std::vector<Extent>{400}), (400 * 96 + 511) / 512 * 512);
}

TEST(LawFit, UnknownExtentsAndUnseenSizesTellNothing) {
  const Rows rows = {{kNone}, {100}, {200}, {300}, {400}};
  const auto law = fit(rows, {7, 400, kNone, 1200, 1600});
  ASSERT_TRUE(law);
  EXPECT_EQ(law->terms, (std::vector<LawTerm>{{4, kFirst}}));
  EXPECT_FALSE(fit(rows, {7, kNone, kNone, kNone, kNone}));
}

TEST(LawFit, HugeExtentsOverflowNothing) {
  const Extent seed = Extent{1} << 61;
  const auto law = fit({{100, seed}, {200, seed + 5}, {300, seed + 7}}, {400, 800, 1200});
  ASSERT_TRUE(law);
  EXPECT_EQ(law->terms, (std::vector<LawTerm>{{4, kFirst}}));
  EXPECT_FALSE(fit({{seed}, {seed + 5}, {seed + 7}}, {400, 900, 1200}));
}

TEST(LawFit, RoundsUpForAnIndivisibleExtent) {
  const SizeLaw law{.constant = 0, .terms = {{3, kFirst}}, .divisor = 4};
  EXPECT_EQ(evaluate(law, std::vector<Extent>{5}), kNone);
  EXPECT_EQ(profile::evaluate_at_least(law, std::vector<Extent>{5}), 4);
  EXPECT_EQ(profile::evaluate_at_least(law, std::vector<Extent>{8}), 6);
}

// Laws of random programs are recovered, and predict extents that were never seen.
TEST(LawFit, RandomLawsPredictUnseenExtents) {
  std::mt19937 random(7);
  const auto draw = [&](std::int64_t low, std::int64_t high) {
    return std::uniform_int_distribution<std::int64_t>(low, high)(random);
  };
  const std::vector<std::array<profile::ExtentIndex, 3>> products = {
      kFirst, kSecond, kSquare, kProduct, {1, 1, kNone}, {0, 0, 1}, {0, 1, 1}, {0, 0, 0}};
  for (int trial = 0; trial < 300; ++trial) {
    SizeLaw truth;
    truth.constant = draw(0, 2) == 0 ? draw(1, 4096) : 0;
    const std::int64_t terms = draw(0, 2);
    for (std::int64_t t = 0; t < terms; ++t) {
      truth.terms.push_back({draw(1, 4096), products[static_cast<std::size_t>(draw(0, 7))]});
    }
    if (terms == 2 && truth.terms[0].factors == truth.terms[1].factors) truth.terms.pop_back();
    if (truth.terms.empty() && truth.constant == 0) truth.constant = 8;
    const auto row = [&] { return std::vector<Extent>{draw(1, 2000), draw(1, 2000)}; };
    Rows rows;
    std::vector<Bytes> sizes;
    for (int i = 0; i < 6; ++i) {
      rows.push_back(row());
      sizes.push_back(evaluate(truth, rows.back()));
    }
    const auto law = fit(rows, sizes);
    ASSERT_TRUE(law) << "trial " << trial;
    EXPECT_EQ(law->proof, LawProof::kProven);
    for (int i = 0; i < 10; ++i) {
      const std::vector<Extent> unseen = row();
      EXPECT_EQ(evaluate(*law, unseen), evaluate(truth, unseen)) << "trial " << trial;
    }
  }
}

}  // namespace
}  // namespace stalloc
