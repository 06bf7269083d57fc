// Damages JSON text as files get damaged, for the tests of both formats.
#pragma once

#include <stdexcept>
#include <string>
#include <string_view>

namespace stalloc::testing {

// `text` with its first `what` replaced; it has to be there.
inline std::string replaced(std::string text, std::string_view what, std::string_view by) {
  const auto at = text.find(what);
  if (at == std::string::npos) throw std::logic_error("the text has no " + std::string(what));
  return text.replace(at, what.size(), by);
}

// `text` with the array of the first `key` after `after` replaced.
inline std::string with_column(std::string text, std::string_view after, std::string_view key,
                               std::string_view array) {
  const std::string quoted = '"' + std::string(key) + "\": ";
  const auto section = text.find('"' + std::string(after) + '"');
  const auto at = text.find(quoted, section);
  if (section == std::string::npos || at == std::string::npos) {
    throw std::logic_error("the text has no " + std::string(key));
  }
  const auto begin = at + quoted.size();
  return text.replace(begin, text.find_first_of("]\n", begin) + 1 - begin, array);
}

}  // namespace stalloc::testing
