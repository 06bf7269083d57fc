#include "profile/size_law.h"

#include <algorithm>
#include <string>

#include "base/error.h"
#include "trace/trace.h"

namespace stalloc::profile {
namespace {

constexpr std::array<std::string_view, 3> kProofs = {"proven", "unproven", "unexplained"};
constexpr std::array<std::string_view, 3> kSources = {"own", "upcoming", "returning"};

template <typename Enum>
void find_name(std::string_view text, const auto& names, Enum& value) {
  const auto at = std::ranges::find(names, text);
  if (at == names.end())
    throw TraceError("'" + std::string(text) + "' is no proof and no source of a size law");
  value = static_cast<Enum>(at - names.begin());
}

}  // namespace

std::string_view to_string(LawProof proof) { return kProofs.at(static_cast<std::size_t>(proof)); }

std::string_view to_string(LawSource source) {
  return kSources.at(static_cast<std::size_t>(source));
}

void from_string(std::string_view text, LawProof& proof) { find_name(text, kProofs, proof); }

void from_string(std::string_view text, LawSource& source) { find_name(text, kSources, source); }

Bytes evaluate(const SizeLaw& law, std::span<const Extent> extents) {
  // A request is below 2^48 bytes, so a product that overflows belongs to no request.
  std::int64_t sum = law.constant;
  for (const LawTerm& term : law.terms) {
    std::int64_t product = term.coefficient;
    for (const ExtentIndex factor : term.factors) {
      if (factor == kNone) break;
      if (!factor.points_into(extents)) return kNone;
      const Extent extent = extents[factor.position()];
      if (extent < 0 || __builtin_mul_overflow(product, extent, &product)) return kNone;
    }
    if (__builtin_add_overflow(sum, product, &sum)) return kNone;
  }
  if (sum < 0) return 0;
  if (law.divisor > 1) {
    if (sum % law.divisor != 0) return kNone;
    sum /= law.divisor;
  }
  if (law.step > 1) {
    if (__builtin_add_overflow(sum, law.step - 1, &sum)) return kNone;
    sum -= sum % law.step;
  }
  return sum;
}

Bytes in_proportion(Bytes size, std::int64_t factor, std::int64_t divisor) {
  if (divisor <= 0) return size;
  const auto scaled = (static_cast<__int128>(size) * factor + divisor - 1) / divisor;
  return static_cast<Bytes>(std::min<__int128>(scaled, trace::kLargestRequest + 1));
}

std::vector<Factors> products_of(std::size_t extents) {
  std::vector<Factors> products;
  const ExtentIndex end(extents);
  for (ExtentIndex a(0); a < end; ++a) products.push_back({a, kNone, kNone});
  for (ExtentIndex a(0); a < end; ++a) {
    for (ExtentIndex b = a; b < end; ++b) products.push_back({a, b, kNone});
  }
  for (ExtentIndex a(0); a < end; ++a) {
    for (ExtentIndex b = a; b < end; ++b) {
      for (ExtentIndex c = b; c < end; ++c) products.push_back({a, b, c});
    }
  }
  return products;
}

std::string_view kind_of(const SizeLaw& law) {
  if (law.proof == LawProof::kUnexplained) return "unexplained";
  if (law.terms.empty()) return "constant";
  if (law.step > 1) return "stepped";
  std::ptrdiff_t degree = 0;
  for (const LawTerm& term : law.terms) {
    const std::ptrdiff_t factors =
        std::ranges::count_if(term.factors, [](ExtentIndex factor) { return factor != kNone; });
    degree = std::max(degree, factors);
  }
  return degree <= 1 ? "affine" : degree == 2 ? "quadratic" : "cubic";
}

}  // namespace stalloc::profile
