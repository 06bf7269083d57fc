#include "base/format.h"

#include <array>
#include <cstdio>
#include <string_view>

namespace stalloc {

std::string format_bytes(Bytes size) {
  constexpr std::array<std::string_view, 6> kUnits = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  if (size > -1024 && size < 1024) return std::to_string(size) + " B";
  double value = static_cast<double>(size) / 1024;
  std::size_t unit = 0;
  while ((value >= 1024 || value <= -1024) && unit + 1 < kUnits.size()) {
    value /= 1024;
    ++unit;
  }
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.1f ", value);
  return text.data() + std::string(kUnits[unit]);
}

}  // namespace stalloc
