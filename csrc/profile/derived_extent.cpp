#include "profile/derived_extent.h"

#include <charconv>
#include <optional>

namespace stalloc::profile {
namespace {

constexpr std::string_view kFloor = "floor(";
constexpr Extent kMostPeriods = 4;  // of an offset

// The whole text as a number without a leading zero or sign; std::nullopt for other texts.
std::optional<Extent> number(std::string_view text) {
  Extent value = 0;
  if (text.empty() || text.front() < '1' || text.front() > '9') return std::nullopt;
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || rest != end) return std::nullopt;
  return value;
}

bool divides(Extent divisor) { return divisor >= 2 && divisor <= kMostDivided; }

// "floor(base/k)", "floor((base+o)/k)" or "floor((base-o)/k)".
std::optional<DerivedExtent> parse_floor(std::string_view name) {
  if (!name.starts_with(kFloor) || !name.ends_with(')')) return std::nullopt;
  name = name.substr(kFloor.size(), name.size() - kFloor.size() - 1);
  const std::size_t slash = name.rfind('/');
  if (slash == std::string_view::npos || slash == 0) return std::nullopt;
  const std::optional<Extent> divisor = number(name.substr(slash + 1));
  if (!divisor || !divides(*divisor)) return std::nullopt;
  name = name.substr(0, slash);
  if (!name.starts_with('(')) return DerivedExtent{name, {*divisor}};
  const std::size_t sign = name.find_last_of("+-");
  if (!name.ends_with(')') || sign == std::string_view::npos || sign <= 1) return std::nullopt;
  const std::optional<Extent> offset = number(name.substr(sign + 1, name.size() - sign - 2));
  if (!offset || *offset > kMostPeriods * *divisor) return std::nullopt;
  return DerivedExtent{name.substr(1, sign - 1),
                       {*divisor, name[sign] == '-' ? -*offset : *offset}};
}

}  // namespace

DerivedExtent parse_extent(std::string_view name) {
  if (const std::optional<DerivedExtent> floored = parse_floor(name)) return *floored;
  const std::size_t colon = name.rfind(':');
  if (colon == std::string_view::npos) return {name, {}};
  const std::optional<Extent> multiple = number(name.substr(colon + 1));
  if (!multiple || !divides(*multiple)) return {name, {}};
  return {name.substr(0, colon), padded_to(*multiple)};
}

std::string derived_name(const std::string& base, const ExtentForm& form) {
  if (form.is_plain()) return base;
  const std::string divisor = std::to_string(form.divisor);
  if (form.factor != 1) return base + ":" + divisor;
  std::string shifted = base;
  if (form.offset != 0) {
    shifted = "(" + base + (form.offset > 0 ? "+" : "") + std::to_string(form.offset) + ")";
  }
  return std::string(kFloor) + shifted + "/" + divisor + ")";
}

}  // namespace stalloc::profile
