// Plans as JSON, by column: docs/formats.md describes the format, docs/schema/plan.schema.json
// states it.
#pragma once

#include <string>
#include <string_view>

#include "plan/plan.h"

namespace stalloc::plan {

std::string to_json(const Plan& plan);

// A plan that has passed check(), the validator included. `source` is what messages call the text:
// a file's name. Throws PlanError that says where (key and row) for anything that to_json() cannot
// have written.
Plan plan_from_json(std::string_view text, std::string_view source);

}  // namespace stalloc::plan
