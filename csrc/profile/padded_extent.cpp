#include "profile/padded_extent.h"

#include <charconv>

namespace stalloc::profile {
namespace {

constexpr Extent kMostPadded = Extent{1} << 20;  // no name means a multiple above it

}  // namespace

PaddedExtent parse_extent(std::string_view name) {
  const std::size_t colon = name.rfind(':');
  if (colon == std::string_view::npos) return {name};
  Extent multiple = 0;
  const char* const end = name.data() + name.size();
  const auto [rest, error] = std::from_chars(name.data() + colon + 1, end, multiple);
  const bool valid =
      error == std::errc() && rest == end && multiple >= 2 && multiple <= kMostPadded;
  if (!valid) return {name};
  return {name.substr(0, colon), multiple};
}

std::string padded_name(const std::string& base, Extent multiple) {
  return multiple > 1 ? base + ":" + std::to_string(multiple) : base;
}

}  // namespace stalloc::profile
