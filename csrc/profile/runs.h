// The runs of a trace's phases, and the extents that their requests follow.
//
// A run is what one iteration requests in one phase on one thread. A family has the runs of all
// iterations and microbatches that are the same part of the program.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "base/types.h"
#include "profile/derived_extent.h"
#include "profile/size_law.h"
#include "trace/trace.h"

namespace stalloc::profile {

// A stage of the model that sees some inputs in another form: the layers behind a convolution with
// a stride.
struct DerivedStage {
  ExtentForm form;
  std::vector<std::size_t> inputs;  // index into Trace::extent_names, ascending
};

// The extents of the microbatches, reduced to those that vary.
class ExtentTable {
 public:
  // With a `padding` above 1 the table has each extent padded to it, too.
  explicit ExtentTable(const trace::Trace& trace, Extent padding = 1);

  // Keeps these of the extents that vary, by their index among them.
  void choose(const std::vector<std::size_t>& chosen);

  // Adds the extents of these stages. No stage was added before.
  void add_stages(const std::vector<DerivedStage>& stages);

  // The extents that one stage of the model sees, ascending. The first view has those of the
  // inputs, padded ones included. Each stage has a view in which its extents replace the inputs'.
  // A law uses the extents of one view.
  const std::vector<std::vector<std::size_t>>& views() const { return views_; }

  std::size_t size() const { return columns_.size(); }
  const std::vector<Extent>& row(std::int32_t i) const { return rows_[i]; }
  const std::vector<Extent>& envelope() const { return envelope_; }

  // By extent: the input that it comes from. See LawFitter.
  const std::vector<std::size_t>& inputs() const { return inputs_; }
  bool is_plain(std::size_t e) const { return columns_[e].form.is_plain(); }
  std::size_t rows() const { return rows_.size(); }

  std::vector<std::string> names() const;
  // All extents of the inputs that have no part in these, each with its largest value.
  std::vector<std::pair<std::string, Extent>> others() const;
  // The distinct rows without unknown extents, ascending.
  std::vector<std::vector<Extent>> seen() const;

 private:
  struct Column {
    std::size_t extent = 0;  // index into Trace::extent_names
    ExtentForm form;

    auto operator<=>(const Column&) const = default;
  };
  Extent value(const trace::MicrobatchExtents& row, const Column& column) const;
  void keep(std::vector<Column> columns);

  const trace::Trace& trace_;
  std::vector<Column> columns_;
  std::vector<std::size_t> inputs_;
  std::vector<std::vector<Extent>> rows_;
  std::vector<Extent> envelope_;
  std::vector<std::vector<std::size_t>> views_;
};

// Finds the row of Trace::extents that a phase's requests follow.
class MicrobatchRows {
 public:
  explicit MicrobatchRows(const trace::Trace& trace);

  // The row of the phase's own microbatch, else of the last forward; kNone before the first.
  std::int32_t own(PhaseIndex phase) const { return own_[phase.position()]; }
  // The row of the next forward after the phase, and of the next backward; kNone if there is none.
  std::int32_t upcoming(PhaseIndex phase) const { return upcoming_[phase.position()]; }
  std::int32_t returning(PhaseIndex phase) const { return returning_[phase.position()]; }

 private:
  std::int32_t row_of(const trace::PhaseSpan& span) const;

  const trace::Trace& trace_;
  std::map<std::pair<std::int32_t, std::int32_t>, std::int32_t> rows_;
  std::vector<std::int32_t> own_;
  std::vector<std::int32_t> upcoming_;
  std::vector<std::int32_t> returning_;
};

// The requests of one iteration in one phase on one thread.
struct Run {
  std::int32_t iteration = 0;
  std::int32_t microbatch = kNone;
  std::int32_t own = kNone;             // row of Trace::extents, as LawSource has it
  std::int32_t upcoming = kNone;        // the same
  std::int32_t returning = kNone;       // the same
  std::vector<std::int32_t> requests;   // index into Trace::requests
  std::vector<std::int32_t> positions;  // by request: index into the reference's, or kNone
  std::uint64_t structure = 0;
};

using FamilyKey = std::tuple<trace::PhaseKind, std::int32_t, std::int32_t, ThreadOrdinal>;

// The runs of a trace's complete iterations, by family.
std::map<FamilyKey, std::vector<Run>> families_of(const trace::Trace& trace);

// The layer, stream and tag of a request as a number: those of runs of one structure are the same.
std::uint64_t structure_of(const trace::Request& r);
// `hash` with another value.
std::uint64_t mixed(std::uint64_t hash, std::uint64_t value);

}  // namespace stalloc::profile
