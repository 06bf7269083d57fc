#include "profile/runs.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>

namespace stalloc::profile {
namespace {

// The fewest values of a padded extent. One of two values would explain any single exception.
constexpr std::size_t kFewestPadded = 3;

}  // namespace

ExtentTable::ExtentTable(const trace::Trace& trace, Extent padding) : trace_(trace) {
  std::vector<Column> kept;
  const auto add = [&](const Column& column) {
    const auto equals = [&](const Column& other) {
      return std::ranges::all_of(
          trace.extents, [&](const auto& row) { return value(row, column) == value(row, other); });
    };
    std::set<Extent> values;
    for (const auto& row : trace.extents) values.insert(value(row, column));
    const std::size_t least = column.form.is_plain() ? 2 : kFewestPadded;
    if (values.size() >= least && std::ranges::none_of(kept, equals)) kept.push_back(column);
  };
  for (const ExtentForm& form : {ExtentForm{}, padded_to(padding)}) {
    for (std::size_t e = 0; e < trace.extent_names.size(); ++e) add({e, form});
  }
  keep(std::move(kept));
}

Extent ExtentTable::value(const trace::MicrobatchExtents& row, const Column& column) const {
  return column.form.of(row.values[column.extent]);
}

void ExtentTable::choose(const std::vector<std::size_t>& chosen) {
  std::vector<Column> kept;
  for (const std::size_t e : chosen) kept.push_back(columns_[e]);
  std::ranges::sort(kept);
  keep(std::move(kept));
}

void ExtentTable::add_stages(const std::vector<DerivedStage>& stages) {
  std::vector<Column> columns = columns_;
  std::vector<std::vector<std::size_t>> views = views_;
  for (const DerivedStage& stage : stages) {
    std::vector<std::size_t> view;
    for (const std::size_t e : views_.front()) {
      const Column& column = columns_[e];
      const bool replaced = std::ranges::binary_search(stage.inputs, column.extent);
      if (!replaced) view.push_back(e);
    }
    for (const std::size_t input : stage.inputs) {
      view.push_back(columns.size());
      columns.push_back({input, stage.form});
    }
    views.push_back(std::move(view));
  }
  keep(std::move(columns));
  views_ = std::move(views);
}

std::vector<std::string> ExtentTable::names() const {
  std::vector<std::string> names;
  for (const Column& c : columns_) {
    names.push_back(derived_name(trace_.extent_names[c.extent], c.form));
  }
  return names;
}

std::vector<std::pair<std::string, Extent>> ExtentTable::others() const {
  std::vector<std::pair<std::string, Extent>> others;
  for (std::size_t e = 0; e < trace_.extent_names.size(); ++e) {
    if (std::ranges::find(columns_, e, &Column::extent) != columns_.end()) continue;
    Extent largest = 0;
    for (const auto& row : trace_.extents) largest = std::max(largest, row.values[e]);
    others.emplace_back(trace_.extent_names[e], largest);
  }
  return others;
}

std::vector<std::vector<Extent>> ExtentTable::seen() const {
  std::set<std::vector<Extent>> seen;
  for (const std::vector<Extent>& row : rows_) {
    if (std::ranges::none_of(row, [](Extent e) { return e < 0; })) seen.insert(row);
  }
  return {seen.begin(), seen.end()};
}

void ExtentTable::keep(std::vector<Column> columns) {
  columns_ = std::move(columns);
  views_.assign(1, std::vector<std::size_t>(columns_.size()));
  std::iota(views_.front().begin(), views_.front().end(), std::size_t{0});
  inputs_.clear();
  for (const Column& c : columns_) inputs_.push_back(c.extent);
  envelope_.assign(columns_.size(), 0);
  rows_.clear();
  for (const trace::MicrobatchExtents& all : trace_.extents) {
    std::vector<Extent> row;
    for (std::size_t c = 0; c < columns_.size(); ++c) {
      row.push_back(value(all, columns_[c]));
      envelope_[c] = std::max(envelope_[c], row.back());
    }
    rows_.push_back(std::move(row));
  }
}

MicrobatchRows::MicrobatchRows(const trace::Trace& trace) : trace_(trace) {
  for (std::size_t i = 0; i < trace.extents.size(); ++i) {
    const trace::PhaseSpan& span = trace[trace.extents[i].phase];
    // The first forward of a microbatch counts.
    rows_.try_emplace({span.iteration, span.key.microbatch}, static_cast<std::int32_t>(i));
  }
  const auto is_a = [&](std::size_t p, trace::PhaseKind kind) {
    return trace.phases[p].key.kind == kind;
  };
  std::int32_t latest = kNone;
  for (std::size_t p = 0; p < trace.phases.size(); ++p) {
    const std::int32_t row = row_of(trace.phases[p]);
    if (row != kNone && is_a(p, trace::PhaseKind::kForward)) latest = row;
    own_.push_back(row != kNone ? row : latest);
  }
  upcoming_.assign(trace.phases.size(), kNone);
  returning_ = upcoming_;
  std::int32_t forward = kNone;
  std::int32_t backward = kNone;
  for (std::size_t p = trace.phases.size(); p-- > 0;) {
    upcoming_[p] = forward;
    returning_[p] = backward;
    const std::int32_t row = row_of(trace.phases[p]);
    if (row != kNone && is_a(p, trace::PhaseKind::kForward)) forward = row;
    if (row != kNone && is_a(p, trace::PhaseKind::kBackward)) backward = row;
  }
}

std::int32_t MicrobatchRows::row_of(const trace::PhaseSpan& span) const {
  const auto row = rows_.find({span.iteration, span.key.microbatch});
  return row == rows_.end() ? kNone : row->second;
}

std::uint64_t mixed(std::uint64_t hash, std::uint64_t value) {
  return (hash ^ value) * 0x100000001b3;  // as FNV-1a
}

std::uint64_t structure_of(const trace::Request& r) {
  return mixed(mixed(static_cast<std::uint64_t>(r.layer_begin.number()) + 2,
                     static_cast<std::uint64_t>(r.stream)),
               r.dynamic ? 1 : 0);
}

std::map<FamilyKey, std::vector<Run>> families_of(const trace::Trace& trace) {
  const MicrobatchRows microbatches(trace);
  std::map<FamilyKey, std::vector<Run>> families;
  std::map<std::pair<trace::PhaseKey, ThreadOrdinal>, Run> open;
  const auto close = [&] {
    for (auto& [where, run] : open) {
      const trace::PhaseKey& key = where.first;
      for (const std::int32_t i : run.requests) {
        run.structure = mixed(run.structure, structure_of(trace.requests[i]));
      }
      run.positions.assign(run.requests.size(), kNone);
      families[{key.kind, key.chunk, key.occurrence, where.second}].push_back(std::move(run));
    }
    open.clear();
  };
  std::size_t boundary = 0;
  for (std::size_t i = 0; i < trace.requests.size(); ++i) {
    const trace::Request& r = trace.requests[i];
    while (boundary < trace.iterations.size() && r.lower >= trace.iterations[boundary]) {
      ++boundary;
      close();
    }
    if (boundary == 0) continue;
    if (boundary == trace.iterations.size()) break;
    const trace::PhaseKey& key = trace[r.phase_begin].key;
    if (key.kind == trace::PhaseKind::kUnplanned) continue;
    const auto [it, is_new] = open.try_emplace({key, r.thread});
    Run& run = it->second;
    if (is_new) {
      run.iteration = static_cast<std::int32_t>(boundary) - 1;
      run.microbatch = key.microbatch;
      run.own = microbatches.own(r.phase_begin);
      run.upcoming = microbatches.upcoming(r.phase_begin);
      run.returning = microbatches.returning(r.phase_begin);
    }
    run.requests.push_back(static_cast<std::int32_t>(i));
  }
  close();
  return families;
}

}  // namespace stalloc::profile
