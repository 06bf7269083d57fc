// The core's part of the importers, which are written in Python: a check of pickles, and a trace
// from tables.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <limits>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/pickle.h"
#include "bindings/parts.h"
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
      "make_trace",
      [](std::map<std::string, std::string> info, Tick end, std::vector<Tick> iterations,
         std::vector<std::string> layers, const Arrays& phases, const Arrays& requests) {
        auto trace = std::make_shared<trace::Trace>();
        trace->info = std::move(info);
        trace->end = end;
        trace->iterations = std::move(iterations);
        trace->layers = std::move(layers);
        trace->phases = rows_of<trace::PhaseSpan>(phases, "phases", trace::kPhaseSpanColumns);
        trace->requests = rows_of<trace::Request>(requests, "requests", trace::kRequestColumns);
        trace->check();
        return trace;
      },
      py::arg("info"), py::arg("end"), py::arg("iterations"), py::arg("layers"), py::arg("phases"),
      py::arg("requests"));
}

}  // namespace stalloc::bindings
