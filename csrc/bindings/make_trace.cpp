// The core's part of the importers, which are written in Python: a check of pickles, a trace from
// tables, and the test whether sizes follow laws of assumed extents.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/pickle.h"
#include "bindings/parts.h"
#include "profile/derived_extent.h"
#include "profile/law_fit.h"
#include "trace/trace.h"
#include "trace/trace_columns.h"

namespace py = pybind11;

namespace stalloc::bindings {
namespace {

using Array = py::array_t<std::int64_t, py::array::c_style>;
using Arrays = std::map<std::string, Array>;

// Stores a number that the column `column` has in `row`.
template <typename Number>
void set(Number& cell, std::int64_t value, const std::string& column, std::size_t) {
  if (!std::in_range<Number>(value)) {
    throw TraceError(column + ": " + std::to_string(value) + " does not fit in " +
                     std::to_string(8 * sizeof(Number)) + " bits");
  }
  cell = static_cast<Number>(value);
}

template <typename Row>
void set(Index<Row>& cell, std::int64_t value, const std::string& column, std::size_t row) {
  std::int32_t number = 0;
  set(number, value, column, row);
  cell = Index<Row>(number);
}

void set(bool& cell, std::int64_t value, const std::string&, std::size_t) { cell = value != 0; }

void set(trace::PhaseKind& cell, std::int64_t value, const std::string&, std::size_t row) {
  if (value < 0 || value > static_cast<int>(trace::PhaseKind::kUnplanned)) {
    throw TraceError("phases, row " + std::to_string(row) + ": there is no phase kind " +
                     std::to_string(value));
  }
  cell = static_cast<trace::PhaseKind>(value);
}

// Reads the rows of the table `name`, whose columns are `columns`, from an array for each.
template <typename Row, typename... Columns>
std::vector<Row> rows_of(const Arrays& arrays, const std::string& name,
                         const std::tuple<Columns...>& columns) {
  if (arrays.size() != sizeof...(Columns)) {
    throw TraceError(name + ": " + std::to_string(arrays.size()) + " columns instead of " +
                     std::to_string(sizeof...(Columns)));
  }
  const py::ssize_t length = arrays.begin()->second.size();
  for (const auto& [key, array] : arrays) {
    if (array.ndim() != 1 || array.size() != length) {
      throw TraceError(name + "." + key + ": not as long as the other columns");
    }
  }
  std::vector<Row> rows(static_cast<std::size_t>(length));
  for_each_column(columns, [&](const auto& column) {
    const std::string key(column.name);
    const auto array = arrays.find(key);
    if (array == arrays.end()) throw TraceError(name + ": there is no column '" + key + "'");
    const std::string path = name + "." + key;
    const std::int64_t* values = array->second.data();
    for (std::size_t i = 0; i < rows.size(); ++i) {
      set(column.cell(rows[i]), values[i], path, i);
    }
  });
  return rows;
}

// Reads the extents of the forwards `phases`: a row of `values` for each.
std::vector<trace::MicrobatchExtents> extents_of(
    const std::vector<std::int32_t>& phases, const std::vector<std::vector<std::int64_t>>& values) {
  if (phases.size() != values.size()) throw TraceError("extents: not as many rows as phases");
  std::vector<trace::MicrobatchExtents> rows;
  rows.reserve(phases.size());
  for (std::size_t i = 0; i < phases.size(); ++i)
    rows.push_back({PhaseIndex(phases[i]), values[i]});
  return rows;
}

// For each request the law that explains its sizes, by observation of extents: the proof, an index
// into LAW_PROOFS, and the size at the largest extents. The proof is -1 if there is no law.
std::vector<std::pair<int, Bytes>> fit_laws(
    const std::vector<std::vector<profile::Extent>>& extents,
    const std::vector<std::vector<Bytes>>& sizes) {
  std::vector<profile::Extent> envelope;
  for (const std::vector<profile::Extent>& row : extents) {
    if (envelope.empty()) envelope = row;
    if (row.size() != envelope.size()) throw TraceError("extents: rows of different lengths");
    for (std::size_t i = 0; i < row.size(); ++i) envelope[i] = std::max(envelope[i], row[i]);
  }
  const profile::LawFitter fitter(extents, envelope);
  std::vector<std::pair<int, Bytes>> laws;
  for (const std::vector<Bytes>& observed : sizes) {
    if (observed.size() != extents.size()) {
      throw TraceError("sizes: not as many as rows of extents");
    }
    const std::optional<profile::SizeLaw> law = fitter.fit(observed);
    if (law) {
      laws.emplace_back(static_cast<int>(law->proof), evaluate_at_least(*law, envelope));
    } else {
      laws.emplace_back(-1, 0);
    }
  }
  return laws;
}

}  // namespace

void bind_make_trace(py::module_& m) {
  m.def(
      "check_plain_pickle",
      [](const py::bytes& content, const std::string& source) {
        const std::string_view view = content;
        const py::gil_scoped_release no_gil;
        check_plain_pickle(view, source);
      },
      py::arg("content"), py::arg("source"));
  m.def(
      "derive_extent",
      [](const std::string& name, profile::Extent value) {
        const profile::DerivedExtent extent = profile::parse_extent(name);
        return std::pair(std::string(extent.base), extent.form.of(value));
      },
      py::arg("name"), py::arg("value"));
  m.def("fit_laws", &fit_laws, py::arg("extents"), py::arg("sizes"),
        py::call_guard<py::gil_scoped_release>());
  m.def(
      "make_trace",
      [](std::map<std::string, std::string> info, Tick end, std::vector<Tick> iterations,
         std::vector<std::string> layers, const Arrays& phases, const Arrays& requests,
         std::vector<std::string> extent_names, const std::vector<std::int32_t>& extent_phases,
         const std::vector<std::vector<std::int64_t>>& extents) {
        auto trace = std::make_shared<trace::Trace>();
        trace->info = std::move(info);
        trace->end = end;
        trace->iterations = std::move(iterations);
        trace->layers = std::move(layers);
        trace->phases = rows_of<trace::PhaseSpan>(phases, "phases", trace::kPhaseSpanColumns);
        trace->requests = rows_of<trace::Request>(requests, "requests", trace::kRequestColumns);
        trace->extent_names = std::move(extent_names);
        trace->extents = extents_of(extent_phases, extents);
        trace->check();
        return trace;
      },
      py::arg("info"), py::arg("end"), py::arg("iterations"), py::arg("layers"), py::arg("phases"),
      py::arg("requests"), py::arg("extent_names") = std::vector<std::string>(),
      py::arg("extent_phases") = std::vector<std::int32_t>(),
      py::arg("extents") = std::vector<std::vector<std::int64_t>>());
}

}  // namespace stalloc::bindings
