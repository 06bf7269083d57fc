#include "plan/plan_json.h"

#include "base/error.h"
#include "base/json_reader.h"
#include "base/json_writer.h"
#include "trace/phase_json.h"

namespace stalloc::plan {
namespace {

using Value = JsonReader::Value;

constexpr std::string_view kFormat = "stalloc-plan";
constexpr std::int64_t kVersion = 1;
constexpr std::string_view kOrdered = "ordered";

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

std::vector<JsonReader::Column<DynamicGroup>> group_columns(JsonReader& in) {
  const auto number = [&in](auto DynamicGroup::* member) {
    return [&in, member](DynamicGroup& g, Value v) {
      g.*member = in.integer<std::remove_reference_t<decltype(g.*member)>>(v);
    };
  };
  return {
      {"phase", number(&DynamicGroup::phase)},         {"after", number(&DynamicGroup::after)},
      {"size", number(&DynamicGroup::size)},           {"offset", number(&DynamicGroup::offset)},
      {"lower", number(&DynamicGroup::lower)},         {"upper", number(&DynamicGroup::upper)},
      {"phase_end", number(&DynamicGroup::phase_end)}, {"stream", number(&DynamicGroup::stream)},
  };
}

void write_groups(JsonWriter& out, const std::vector<DynamicGroup>& rows) {
  const auto numbers = [&](std::string_view name, auto DynamicGroup::* member) {
    out.column(name, rows, [&](const DynamicGroup& g) { out.value(g.*member); });
  };
  numbers("phase", &DynamicGroup::phase);
  numbers("after", &DynamicGroup::after);
  numbers("size", &DynamicGroup::size);
  numbers("offset", &DynamicGroup::offset);
  numbers("lower", &DynamicGroup::lower);
  numbers("upper", &DynamicGroup::upper);
  numbers("phase_end", &DynamicGroup::phase_end);
  numbers("stream", &DynamicGroup::stream);
}

std::vector<JsonReader::Column<PersistentRequest>> persistent_columns(JsonReader& in) {
  const auto number = [&in](auto PersistentRequest::* member) {
    return [&in, member](PersistentRequest& r, Value v) {
      r.*member = in.integer<std::remove_reference_t<decltype(r.*member)>>(v);
    };
  };
  return {
      {"phase", number(&PersistentRequest::phase)},
      {"after", number(&PersistentRequest::after)},
      {"size", number(&PersistentRequest::size)},
      {"stream", number(&PersistentRequest::stream)},
  };
}

void write_persistent(JsonWriter& out, const std::vector<PersistentRequest>& rows) {
  const auto numbers = [&](std::string_view name, auto PersistentRequest::* member) {
    out.column(name, rows, [&](const PersistentRequest& r) { out.value(r.*member); });
  };
  numbers("phase", &PersistentRequest::phase);
  numbers("after", &PersistentRequest::after);
  numbers("size", &PersistentRequest::size);
  numbers("stream", &PersistentRequest::stream);
}

std::vector<JsonReader::Column<OpeningRequest>> opening_columns(JsonReader& in) {
  const auto number = [&in](auto OpeningRequest::* member) {
    return [&in, member](OpeningRequest& r, Value v) {
      r.*member = in.integer<std::remove_reference_t<decltype(r.*member)>>(v);
    };
  };
  return {
      {"phase", number(&OpeningRequest::phase)},
      {"after", number(&OpeningRequest::after)},
      {"size", number(&OpeningRequest::size)},
      {"offset", number(&OpeningRequest::offset)},
      {"lower", number(&OpeningRequest::lower)},
      {"upper", [&in](OpeningRequest& r,
                      Value v) { r.upper = in.is_null(v) ? kNever : in.integer<Tick>(v); }},
      {"stream", number(&OpeningRequest::stream)},
  };
}

void write_opening(JsonWriter& out, const std::vector<OpeningRequest>& rows) {
  const auto numbers = [&](std::string_view name, auto OpeningRequest::* member) {
    out.column(name, rows, [&](const OpeningRequest& r) { out.value(r.*member); });
  };
  numbers("phase", &OpeningRequest::phase);
  numbers("after", &OpeningRequest::after);
  numbers("size", &OpeningRequest::size);
  numbers("offset", &OpeningRequest::offset);
  numbers("lower", &OpeningRequest::lower);
  out.column("upper", rows, [&](const OpeningRequest& r) {
    if (r.stays()) {
      out.null();
    } else {
      out.value(r.upper);
    }
  });
  numbers("stream", &OpeningRequest::stream);
}

std::vector<JsonReader::Column<ReusableRow>> reusable_columns(JsonReader& in) {
  return {
      {"group", [&in](ReusableRow& r, Value v) { r.group = in.integer<std::int32_t>(v); }},
      {"begin", [&in](ReusableRow& r, Value v) { r.range.begin = in.integer<Offset>(v); }},
      {"end", [&in](ReusableRow& r, Value v) { r.range.end = in.integer<Offset>(v); }},
  };
}

void write_reusable(JsonWriter& out, const std::vector<ReusableRow>& rows) {
  out.column("group", rows, [&](const ReusableRow& r) { out.value(r.group); });
  out.column("begin", rows, [&](const ReusableRow& r) { out.value(r.range.begin); });
  out.column("end", rows, [&](const ReusableRow& r) { out.value(r.range.end); });
}

std::vector<JsonReader::Column<ContextRow>> context_columns(JsonReader& in) {
  const auto number = [&in](Bytes profile::DynamicContext::* member) {
    return [&in, member](ContextRow& r, Value v) { r.context.*member = in.integer<Bytes>(v); };
  };
  return {
      {"group", [&in](ContextRow& r, Value v) { r.group = in.integer<std::int32_t>(v); }},
      {"size", number(&profile::DynamicContext::size)},
      {"before", number(&profile::DynamicContext::before)},
      {"earlier", number(&profile::DynamicContext::earlier)},
  };
}

void write_contexts(JsonWriter& out, const std::vector<ContextRow>& rows) {
  out.column("group", rows, [&](const ContextRow& r) { out.value(r.group); });
  out.column("size", rows, [&](const ContextRow& r) { out.value(r.context.size); });
  out.column("before", rows, [&](const ContextRow& r) { out.value(r.context.before); });
  out.column("earlier", rows, [&](const ContextRow& r) { out.value(r.context.earlier); });
}

// Gives each row to its group: calls add(group, row).
void distribute(const auto& rows, std::vector<DynamicGroup>& groups, std::string_view table,
                auto add) {
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const std::int32_t group = rows[i].group;
    if (group < 0 || static_cast<std::size_t>(group) >= groups.size()) {
      throw PlanError(std::string(table) + ", row " + std::to_string(i) + ": belongs to group " +
                      std::to_string(group) + ", but there are " + std::to_string(groups.size()) +
                      " groups");
    }
    add(groups[group], rows[i]);
  }
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
  out.entry("resident", plan.resident);
  out.entry("bound", plan.bound);
  out.entry("load", plan.load);
  out.entry("alignment", plan.alignment);
  out.entry("period", plan.period);
  // Left out where it would say nothing: older readers know no such key.
  if (plan.streams == solve::Streams::kOrdered) out.entry("streams", kOrdered);
  out.entry("headroom", plan.headroom);
  out.entry("headroom_cost", plan.headroom_cost);
  out.entry("headroom_saves", plan.headroom_saves);
  out.column("dynamic", plan.dynamic, [&](const std::string& pattern) { out.value(pattern); });
  out.key("phases");
  out.begin_object();
  trace::write_phase_columns(out, plan.phases);
  out.end_object();
  out.key("decisions");
  out.begin_object();
  write_decisions(out, plan.decisions);
  out.end_object();
  out.key("groups");
  out.begin_object();
  write_groups(out, plan.groups);
  out.end_object();
  out.key("persistent");
  out.begin_object();
  write_persistent(out, plan.persistent);
  out.end_object();
  out.key("opening");
  out.begin_object();
  write_opening(out, plan.opening);
  out.end_object();
  out.column("absent", plan.absent, [&](std::int32_t decision) { out.value(decision); });
  out.key("contexts");
  out.begin_object();
  write_contexts(out, context_rows(plan));
  out.end_object();
  out.key("reusable");
  out.begin_object();
  write_reusable(out, reusable_rows(plan));
  out.end_object();
  out.end_object();
  return out.finish();
}

Plan plan_from_json(std::string_view text, std::string_view source) {
  Plan plan;
  std::vector<ContextRow> contexts;
  std::vector<ReusableRow> reusable;
  JsonReader in(text, source, raise);
  const auto number = [&](std::int64_t& target) {
    return [&](Value v) { target = in.integer<std::int64_t>(v); };
  };
  in.document(
      kFormat, kVersion,
      {
          {"info", [&](Value v) { plan.info = in.texts(v); }},
          {"fingerprint", [&](Value v) { plan.fingerprint = in.text(v); }},
          {"algorithm", [&](Value v) { plan.algorithm = in.text(v); }},
          {"optimal", [&](Value v) { plan.optimal = in.boolean(v); }},
          {"pool", number(plan.pool)},
          {"resident", number(plan.resident)},
          {"bound", number(plan.bound)},
          {"load", number(plan.load)},
          {"alignment", number(plan.alignment)},
          {"period", number(plan.period)},
          {"streams",
           [&](Value v) {
             if (in.text(v) != kOrdered) in.fail("expected \"ordered\", or no such key");
             plan.streams = solve::Streams::kOrdered;
           },
           /*optional=*/true},
          {"headroom", [&](Value v) { plan.headroom = in.integer<std::int32_t>(v); }},
          {"headroom_cost", number(plan.headroom_cost)},
          {"headroom_saves", number(plan.headroom_saves)},
          {"dynamic",
           [&](Value v) {
             in.array(v, [&](Value name) { plan.dynamic.push_back(in.text(name)); });
           }},
          {"phases",
           [&](Value v) {
             plan.phases = in.table<profile::ProfiledPhase>(
                 v, trace::phase_columns<profile::ProfiledPhase>(in));
           }},
          {"decisions",
           [&](Value v) { plan.decisions = in.table<Decision>(v, decision_columns(in)); }},
          {"groups", [&](Value v) { plan.groups = in.table<DynamicGroup>(v, group_columns(in)); }},
          {"persistent",
           [&](Value v) {
             plan.persistent = in.table<PersistentRequest>(v, persistent_columns(in));
           }},
          {"opening",
           [&](Value v) { plan.opening = in.table<OpeningRequest>(v, opening_columns(in)); }},
          {"absent",
           [&](Value v) {
             in.array(v, [&](Value d) { plan.absent.push_back(in.integer<std::int32_t>(d)); });
           }},
          {"contexts", [&](Value v) { contexts = in.table<ContextRow>(v, context_columns(in)); }},
          {"reusable", [&](Value v) { reusable = in.table<ReusableRow>(v, reusable_columns(in)); }},
      });
  try {
    distribute(contexts, plan.groups, "contexts",
               [](DynamicGroup& g, const ContextRow& r) { g.contexts.push_back(r.context); });
    distribute(reusable, plan.groups, "reusable",
               [](DynamicGroup& g, const ReusableRow& r) { g.reusable.push_back(r.range); });
    plan.check();
  } catch (const PlanError& error) {
    throw PlanError(std::string(source) + ": " + error.what());
  }
  return plan;
}

}  // namespace stalloc::plan
