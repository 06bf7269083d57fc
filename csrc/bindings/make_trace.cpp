// What importers, which are written in Python, need of the core: a check of pickles, and a trace
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

namespace py = pybind11;

namespace stalloc::bindings {
namespace {

using Column = py::array_t<std::int64_t, py::array::c_style>;
using Columns = std::map<std::string, Column>;

class Table {
 public:
  Table(const Columns& columns, std::string_view name, std::size_t width)
      : columns_(columns), name_(name) {
    if (columns.size() != width) {
      throw TraceError(name_ + ": " + std::to_string(columns.size()) + " columns instead of " +
                       std::to_string(width));
    }
    rows_ = columns.begin()->second.size();
    for (const auto& [key, column] : columns) {
      if (column.ndim() != 1 || column.size() != rows_) {
        throw TraceError(name_ + "." + key + ": not as long as the other columns");
      }
    }
  }

  std::size_t rows() const { return static_cast<std::size_t>(rows_); }

  template <typename Row, typename Number>
  void fill(std::vector<Row>& rows, const std::string& key, Number Row::* member) const {
    const std::int64_t* values = values_of(key);
    for (std::size_t i = 0; i < rows.size(); ++i) rows[i].*member = narrow<Number>(values[i], key);
  }

  const std::int64_t* values_of(const std::string& key) const {
    const auto it = columns_.find(key);
    if (it == columns_.end()) throw TraceError(name_ + ": there is no column '" + key + "'");
    return it->second.data();
  }

  template <typename Number>
  Number narrow(std::int64_t value, const std::string& key) const {
    if (!std::in_range<Number>(value)) {
      throw TraceError(name_ + "." + key + ": " + std::to_string(value) + " does not fit in " +
                       std::to_string(8 * sizeof(Number)) + " bits");
    }
    return static_cast<Number>(value);
  }

 private:
  const Columns& columns_;
  const std::string name_;
  py::ssize_t rows_ = 0;
};

std::vector<trace::PhaseSpan> make_phases(const Columns& columns) {
  const Table table(columns, "phases", 7);
  std::vector<trace::PhaseSpan> rows(table.rows());
  const auto key = [&](const std::string& name, std::int32_t trace::PhaseKey::* member) {
    const std::int64_t* values = table.values_of(name);
    for (std::size_t i = 0; i < rows.size(); ++i) {
      rows[i].key.*member = table.narrow<std::int32_t>(values[i], name);
    }
  };
  const std::int64_t* kinds = table.values_of("kind");
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (kinds[i] < 0 || kinds[i] > static_cast<int>(trace::PhaseKind::kUnplanned)) {
      throw TraceError("phases, row " + std::to_string(i) + ": there is no phase kind " +
                       std::to_string(kinds[i]));
    }
    rows[i].key.kind = static_cast<trace::PhaseKind>(kinds[i]);
  }
  key("microbatch", &trace::PhaseKey::microbatch);
  key("chunk", &trace::PhaseKey::chunk);
  key("occurrence", &trace::PhaseKey::occurrence);
  table.fill(rows, "begin", &trace::PhaseSpan::begin);
  table.fill(rows, "end", &trace::PhaseSpan::end);
  table.fill(rows, "iteration", &trace::PhaseSpan::iteration);
  return rows;
}

std::vector<trace::Request> make_requests(const Columns& columns) {
  const Table table(columns, "requests", 10);
  std::vector<trace::Request> rows(table.rows());
  table.fill(rows, "size", &trace::Request::size);
  table.fill(rows, "lower", &trace::Request::lower);
  table.fill(rows, "upper", &trace::Request::upper);
  table.fill(rows, "phase_begin", &trace::Request::phase_begin);
  table.fill(rows, "phase_end", &trace::Request::phase_end);
  table.fill(rows, "layer_begin", &trace::Request::layer_begin);
  table.fill(rows, "layer_end", &trace::Request::layer_end);
  table.fill(rows, "stream", &trace::Request::stream);
  table.fill(rows, "thread", &trace::Request::thread);
  const std::int64_t* dynamic = table.values_of("dynamic");
  for (std::size_t i = 0; i < rows.size(); ++i) rows[i].dynamic = dynamic[i] != 0;
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
         std::vector<std::string> layers, const Columns& phases, const Columns& requests) {
        auto trace = std::make_shared<trace::Trace>();
        trace->info = std::move(info);
        trace->end = end;
        trace->iterations = std::move(iterations);
        trace->layers = std::move(layers);
        trace->phases = make_phases(phases);
        trace->requests = make_requests(requests);
        trace->check();
        return trace;
      },
      py::arg("info"), py::arg("end"), py::arg("iterations"), py::arg("layers"), py::arg("phases"),
      py::arg("requests"));
}

}  // namespace stalloc::bindings
