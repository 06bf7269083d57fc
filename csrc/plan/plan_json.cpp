#include "plan/plan_json.h"

#include "base/error.h"
#include "base/json_reader.h"
#include "base/json_writer.h"
#include "trace/phase_json.h"

namespace stalloc {
namespace {

using Value = JsonReader::Value;

constexpr std::string_view kFormat = "stalloc-plan";
constexpr std::int64_t kVersion = 1;

void raise(const std::string& message) { throw PlanError(message); }

std::vector<JsonReader::Column<Decision>> decision_columns(JsonReader& in) {
  const auto number = [&in](auto Decision::* member) {
    return [&in, member](Decision& d, Value v) {
      d.*member = in.integer<std::remove_reference_t<decltype(d.*member)>>(v);
    };
  };
  return {
      {"size", number(&Decision::size)},     {"offset", number(&Decision::offset)},
      {"lower", number(&Decision::lower)},   {"upper", number(&Decision::upper)},
      {"phase", number(&Decision::phase)},   {"phase_end", number(&Decision::phase_end)},
      {"stream", number(&Decision::stream)},
  };
}

void write_decisions(JsonWriter& out, const std::vector<Decision>& rows) {
  const auto numbers = [&](std::string_view name, auto Decision::* member) {
    out.column(name, rows, [&](const Decision& d) { out.value(d.*member); });
  };
  numbers("size", &Decision::size);
  numbers("offset", &Decision::offset);
  numbers("lower", &Decision::lower);
  numbers("upper", &Decision::upper);
  numbers("phase", &Decision::phase);
  numbers("phase_end", &Decision::phase_end);
  numbers("stream", &Decision::stream);
}

}  // namespace

std::string to_json(const Plan& plan) {
  JsonWriter out;
  out.begin_object();
  out.entry("format", kFormat);
  out.entry("version", kVersion);
  out.entry("info", plan.info);
  out.entry("fingerprint", plan.fingerprint);
  out.entry("algorithm", plan.algorithm);
  out.entry("optimal", plan.optimal);
  out.entry("pool", plan.pool);
  out.entry("bound", plan.bound);
  out.entry("load", plan.load);
  out.entry("alignment", plan.alignment);
  out.entry("period", plan.period);
  out.key("phases");
  out.begin_object();
  write_phase_columns(out, plan.phases);
  out.end_object();
  out.key("decisions");
  out.begin_object();
  write_decisions(out, plan.decisions);
  out.end_object();
  out.end_object();
  return out.finish();
}

Plan plan_from_json(std::string_view text, std::string_view source) {
  Plan plan;
  JsonReader in(text, source, raise);
  const auto number = [&](std::int64_t& target) {
    return [&](Value v) { target = in.integer<std::int64_t>(v); };
  };
  in.document(kFormat, kVersion,
              {
                  {"info", [&](Value v) { plan.info = in.texts(v); }},
                  {"fingerprint", [&](Value v) { plan.fingerprint = in.text(v); }},
                  {"algorithm", [&](Value v) { plan.algorithm = in.text(v); }},
                  {"optimal", [&](Value v) { plan.optimal = in.boolean(v); }},
                  {"pool", number(plan.pool)},
                  {"bound", number(plan.bound)},
                  {"load", number(plan.load)},
                  {"alignment", number(plan.alignment)},
                  {"period", number(plan.period)},
                  {"phases",
                   [&](Value v) {
                     plan.phases = in.table<ProfiledPhase>(v, phase_columns<ProfiledPhase>(in));
                   }},
                  {"decisions",
                   [&](Value v) { plan.decisions = in.table<Decision>(v, decision_columns(in)); }},
              });
  try {
    plan.check();
  } catch (const PlanError& error) {
    throw PlanError(std::string(source) + ": " + error.what());
  }
  return plan;
}

}  // namespace stalloc
