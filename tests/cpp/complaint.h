// The message of a check that fails.
#pragma once

#include <string>

#include "base/error.h"

namespace stalloc::testing {

std::string complaint_of(const auto& checked) {
  try {
    checked.check();
  } catch (const Error& error) {
    return error.what();
  }
  return "no complaint";
}

}  // namespace stalloc::testing
