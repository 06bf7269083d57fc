#include "plan/plan_json.h"

#include <algorithm>

#include "base/error.h"
#include "base/json_reader.h"
#include "base/json_writer.h"
#include "base/table_json.h"
#include "plan/plan_columns.h"
#include "profile/derived_extent.h"
#include "trace/trace_columns.h"

namespace stalloc::plan {
namespace {

using Value = JsonReader::Value;

constexpr std::string_view kFormat = "stalloc-plan";
constexpr std::int64_t kFirstVersion = 1;
constexpr std::int64_t kVersion = 2;  // of plans whose extents have floors
constexpr std::string_view kOrdered = solve::name(solve::Streams::kOrdered);
constexpr const auto& kPhaseColumns = trace::kPhaseColumns<profile::ProfiledPhase>;

void raise(const std::string& message) { throw PlanError(message); }

// Gives each law its terms.
void add_terms(const std::vector<LawTermRow>& rows, std::vector<profile::SizeLaw>& laws) {
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const LawTermRow& r = rows[i];
    if (!r.law.points_into(laws)) {
      throw PlanError("law_terms, row " + std::to_string(i) + ": belongs to law " +
                      to_string(r.law) + ", but there are " + std::to_string(laws.size()));
    }
    laws[r.law.position()].terms.push_back({r.coefficient, {r.first, r.second, r.third}});
  }
}

// Cuts the numbers of `seen` into rows, one extent for each name.
void split_seen(const std::vector<profile::Extent>& numbers, Plan& plan) {
  const std::size_t names = plan.extent_names.size();
  if (numbers.empty()) return;
  if (names == 0 || numbers.size() % names != 0) {
    throw PlanError("seen: " + std::to_string(numbers.size()) + " numbers, no multiple of the " +
                    std::to_string(names) + " names of extents");
  }
  for (auto at = numbers.begin(); at != numbers.end();) {
    const auto end = at + static_cast<std::ptrdiff_t>(names);
    plan.seen.emplace_back(at, end);
    at = end;
  }
}

// Gives each row to its group: calls add(group, row).
void distribute(const auto& rows, std::vector<DynamicGroup>& groups, std::string_view table,
                auto add) {
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const GroupIndex group = rows[i].group;
    if (!group.points_into(groups)) {
      throw PlanError(std::string(table) + ", row " + std::to_string(i) + ": belongs to group " +
                      to_string(group) + ", but there are " + std::to_string(groups.size()) +
                      " groups");
    }
    add(groups[group.position()], rows[i]);
  }
}

// Gives each decision or request of start-up its slot: calls set(target, row).
void distribute_slots(const auto& rows, auto& targets, std::string_view name, auto set) {
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const auto row = rows[i].row;
    if (!row.points_into(targets)) {
      throw PlanError(std::string(name) + ", row " + std::to_string(i) + ": there is no row " +
                      to_string(row) + " to take a slot");
    }
    set(targets[row.position()], rows[i]);
  }
}

// Gives each decision that takes turns its second place.
void add_turns(const std::vector<TurnRow>& rows, Plan& plan) {
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const TurnRow& r = rows[i];
    if (!r.row.points_into(plan.decisions)) {
      throw PlanError("turns, row " + std::to_string(i) + ": there is no decision " +
                      to_string(r.row));
    }
    plan[r.row].over = r.over;
    plan.turns.push_back({r.row, r.offset, r.size, {r.first, r.second}});
  }
}

// True if an extent's name is one that readers of the first version do not understand: they would
// take it for an input's.
bool has_floors(const Plan& plan) {
  return std::ranges::any_of(plan.extent_names, [](const std::string& name) {
    const profile::ExtentForm form = profile::parse_extent(name).form;
    return form != profile::padded_to(form.divisor);
  });
}

}  // namespace

std::string to_json(const Plan& plan) {
  JsonWriter out;
  out.begin_object();
  out.entry("format", kFormat);
  out.entry("version", has_floors(plan) ? kVersion : kFirstVersion);
  out.entry("info", plan.info);
  out.entry("fingerprint", plan.fingerprint);
  out.entry("algorithm", plan.algorithm);
  out.entry("optimal", plan.optimal);
  out.entry("pool", plan.pool);
  out.entry("resident", plan.resident);
  out.entry("bound", plan.bound);
  out.entry("load", plan.load);
  if (plan.recorded_load != plan.load) out.entry("recorded_load", plan.recorded_load);
  out.entry("alignment", plan.alignment);
  out.entry("period", plan.period);
  // The default is left out: older readers do not know the key.
  if (plan.streams == solve::Streams::kOrdered) out.entry("streams", kOrdered);
  if (!plan.orders.empty()) write_table(out, "orders", plan.orders, trace::kOrderColumns);
  out.entry("headroom", plan.headroom);
  out.entry("headroom_cost", plan.headroom_cost);
  out.entry("headroom_saves", plan.headroom_saves);
  out.column("dynamic", plan.dynamic, [&](const std::string& pattern) { out.value(pattern); });
  write_table(out, "phases", plan.phases, kPhaseColumns);
  write_table(out, "decisions", plan.decisions, kDecisionColumns);
  write_table(out, "groups", plan.groups, kGroupColumns);
  write_table(out, "persistent", plan.persistent, kPersistentColumns);
  write_table(out, "startup", plan.startup, kStartupColumns);
  out.column("absent", plan.absent, [&](DecisionIndex d) { out.value(d.number()); });
  if (!plan.slots.empty()) {  // older readers do not know the keys
    write_table(out, "slots", plan.slots, kSlotColumns);
    write_table(out, "slot_decisions", slot_decision_rows(plan), kSlotDecisionColumns);
    write_table(out, "slot_startup", slot_startup_rows(plan), kSlotStartupColumns);
  }
  if (!plan.turns.empty()) write_table(out, "turns", turn_rows(plan), kTurnColumns);
  write_table(out, "contexts", context_rows(plan), kContextColumns);
  write_table(out, "reusable", reusable_rows(plan), kReusableColumns);
  if (!plan.fixed_extents.empty()) {
    out.column("fixed_names", plan.fixed_extents, [&](const auto& e) { out.value(e.first); });
    out.column("fixed_extents", plan.fixed_extents, [&](const auto& e) { out.value(e.second); });
  }
  if (!plan.extent_names.empty() || !plan.laws.empty()) {
    out.column("extent_names", plan.extent_names,
               [&](const std::string& name) { out.value(name); });
    out.column("extents", plan.extents, [&](profile::Extent extent) { out.value(extent); });
    std::vector<profile::Extent> seen;
    for (const auto& row : plan.seen) seen.insert(seen.end(), row.begin(), row.end());
    out.column("seen", seen, [&](profile::Extent extent) { out.value(extent); });
    write_table(out, "laws", plan.laws, kLawColumns);
    write_table(out, "law_terms", law_term_rows(plan), kLawTermColumns);
  }
  out.end_object();
  return out.finish();
}

Plan plan_from_json(std::string_view text, std::string_view source) {
  Plan plan;
  std::vector<ContextRow> contexts;
  std::vector<SlotDecisionRow> slot_decisions;
  std::vector<SlotStartupRow> slot_startup;
  std::vector<TurnRow> turns;
  std::vector<ReusableRow> reusable;
  std::vector<LawTermRow> terms;
  std::vector<profile::Extent> seen;
  std::vector<std::string> fixed_names;
  std::vector<profile::Extent> fixed;
  Bytes recorded_load = kNone;
  JsonReader in(text, source, raise);
  const auto number = [&](std::int64_t& target) {
    return [&](Value v) { target = in.integer<std::int64_t>(v); };
  };
  const auto table = [&]<typename Row>(std::vector<Row>& rows, const auto& columns) {
    return [&](Value v) { rows = read_table<Row>(in, v, columns); };
  };
  const auto extents = [&](std::vector<profile::Extent>& rows) {
    return [&](Value v) {
      in.array(v, [&](Value extent) { rows.push_back(in.integer<profile::Extent>(extent)); });
    };
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
          {"recorded_load", number(recorded_load), /*optional=*/true},
          {"alignment", number(plan.alignment)},
          {"period", number(plan.period)},
          {"streams",
           [&](Value v) {
             if (in.text(v) != kOrdered) in.fail("expected \"ordered\", or no such key");
             plan.streams = solve::Streams::kOrdered;
           },
           /*optional=*/true},
          {"orders", table(plan.orders, trace::kOrderColumns), /*optional=*/true},
          {"headroom", [&](Value v) { plan.headroom = in.integer<std::int32_t>(v); }},
          {"headroom_cost", number(plan.headroom_cost)},
          {"headroom_saves", number(plan.headroom_saves)},
          {"dynamic",
           [&](Value v) {
             in.array(v, [&](Value name) { plan.dynamic.push_back(in.text(name)); });
           }},
          {"phases", table(plan.phases, kPhaseColumns)},
          {"decisions", table(plan.decisions, kDecisionColumns)},
          {"groups", table(plan.groups, kGroupColumns)},
          {"persistent", table(plan.persistent, kPersistentColumns)},
          {"startup", table(plan.startup, kStartupColumns)},
          {"absent",
           [&](Value v) {
             in.array(v, [&](Value d) {
               plan.absent.push_back(DecisionIndex(in.integer<std::int32_t>(d)));
             });
           }},
          {"slots", table(plan.slots, kSlotColumns), /*optional=*/true},
          {"slot_decisions", table(slot_decisions, kSlotDecisionColumns), /*optional=*/true},
          {"slot_startup", table(slot_startup, kSlotStartupColumns), /*optional=*/true},
          {"turns", table(turns, kTurnColumns), /*optional=*/true},
          {"contexts", table(contexts, kContextColumns)},
          {"reusable", table(reusable, kReusableColumns)},
          // Files of versions without changing batches lack these.
          {"extent_names",
           [&](Value v) { in.array(v, [&](Value n) { plan.extent_names.push_back(in.text(n)); }); },
           /*optional=*/true},
          {"extents", extents(plan.extents), /*optional=*/true},
          {"seen", extents(seen), /*optional=*/true},
          {"fixed_names",
           [&](Value v) { in.array(v, [&](Value n) { fixed_names.push_back(in.text(n)); }); },
           /*optional=*/true},
          {"fixed_extents", extents(fixed), /*optional=*/true},
          {"laws", table(plan.laws, kLawColumns), /*optional=*/true},
          {"law_terms", table(terms, kLawTermColumns), /*optional=*/true},
      });
  plan.recorded_load = recorded_load == kNone ? plan.load : recorded_load;
  try {
    profile::tell_microbatches(plan.phases, plan.period);
    add_terms(terms, plan.laws);
    split_seen(seen, plan);
    if (fixed_names.size() != fixed.size()) {
      throw PlanError("fixed_extents: " + std::to_string(fixed.size()) + " values for " +
                      std::to_string(fixed_names.size()) + " names");
    }
    for (std::size_t i = 0; i < fixed.size(); ++i) plan.fixed_extents[fixed_names[i]] = fixed[i];
    distribute(contexts, plan.groups, "contexts",
               [](DynamicGroup& g, const ContextRow& r) { g.contexts.push_back(r.context); });
    distribute(reusable, plan.groups, "reusable",
               [](DynamicGroup& g, const ReusableRow& r) { g.reusable.push_back(r.range); });
    distribute_slots(slot_decisions, plan.decisions, "slot_decisions",
                     [](Decision& d, const SlotDecisionRow& r) {
                       d.slots = r.slots;
                       d.over = r.over;
                       d.box = r.box;
                     });
    distribute_slots(slot_startup, plan.startup, "slot_startup",
                     [](StartupRequest& s, const SlotStartupRow& r) {
                       s.slots = r.slots;
                       s.decision = r.decision;
                     });
    add_turns(turns, plan);
    plan.check();
  } catch (const PlanError& error) {
    throw PlanError(std::string(source) + ": " + error.what());
  }
  return plan;
}

}  // namespace stalloc::plan
