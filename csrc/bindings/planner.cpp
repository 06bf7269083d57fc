// The planner for plain arrays: no torch, no trace.
#include "solve/core/planner.h"

#include <pybind11/functional.h>
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "bindings/interruptible.h"
#include "bindings/streams.h"
#include "solve/core/bound.h"
#include "solve/csv.h"
#include "solve/portfolio.h"
#include "solve/waits.h"
#include "verify/validator.h"
#include "verify/waits_validator.h"

namespace py = pybind11;

namespace stalloc::bindings {
namespace {

// forcecast is off: Python converts other arrays to 64-bit integers, with checks.
using Numbers = py::array_t<std::int64_t, py::array::c_style>;

void fill(solve::Problem& problem, const char* name, const std::optional<Numbers>& column,
          void (*set)(solve::Buffer&, std::int64_t)) {
  if (!column) return;
  if (column->ndim() != 1 || column->shape(0) != static_cast<py::ssize_t>(problem.buffers.size())) {
    throw PlanError(std::string(name) + " must be a one-dimensional array of " +
                    std::to_string(problem.buffers.size()) + " numbers, like lower");
  }
  const std::int64_t* values = column->data();
  for (std::size_t i = 0; i < problem.buffers.size(); ++i) set(problem.buffers[i], values[i]);
}

std::int32_t narrow(std::int64_t value) {
  if (value < std::numeric_limits<std::int32_t>::min() ||
      value > std::numeric_limits<std::int32_t>::max()) {
    throw PlanError("a stream, phase or buffer number does not fit in 32 bits: " +
                    std::to_string(value));
  }
  return static_cast<std::int32_t>(value);
}

// The rows may come in any order.
std::vector<solve::IdleInterval> to_gaps(const Numbers& rows) {
  if (rows.ndim() != 2 || rows.shape(1) != 3) {
    throw PlanError("gaps must be an array of three columns: a buffer, and from when to when");
  }
  std::vector<solve::IdleInterval> gaps;
  for (py::ssize_t i = 0; i < rows.shape(0); ++i) {
    gaps.push_back({narrow(rows.at(i, 0)), rows.at(i, 1), rows.at(i, 2)});
  }
  std::ranges::sort(gaps, {}, [](const solve::IdleInterval& interval) {
    return std::pair{interval.buffer, interval.lower};
  });
  return gaps;
}

Numbers to_array(const std::vector<solve::IdleInterval>& gaps) {
  Numbers rows({static_cast<py::ssize_t>(gaps.size()), py::ssize_t{3}});
  std::int64_t* next = rows.mutable_data();
  for (const auto& [buffer, lower, upper] : gaps) {
    *next++ = buffer;
    *next++ = lower;
    *next++ = upper;
  }
  return rows;
}

solve::Problem make_problem(const Numbers& lower, const Numbers& upper, const Numbers& size,
                            Bytes alignment, Tick period, Bytes capacity,
                            const std::optional<Numbers>& stream,
                            const std::optional<Numbers>& fixed,
                            const std::optional<Numbers>& phase_begin,
                            const std::optional<Numbers>& phase_end, solve::Streams streams,
                            const std::optional<Numbers>& gaps) {
  solve::Problem problem;
  problem.streams = streams;
  problem.alignment = alignment;
  problem.period = period;
  problem.capacity = capacity;
  problem.buffers.resize(static_cast<std::size_t>(lower.size()));
  fill(problem, "lower", lower, [](solve::Buffer& b, std::int64_t v) { b.lower = v; });
  fill(problem, "upper", upper, [](solve::Buffer& b, std::int64_t v) { b.upper = v; });
  fill(problem, "size", size, [](solve::Buffer& b, std::int64_t v) { b.size = v; });
  fill(problem, "stream", stream, [](solve::Buffer& b, std::int64_t v) { b.stream = narrow(v); });
  fill(problem, "fixed", fixed, [](solve::Buffer& b, std::int64_t v) { b.fixed = v; });
  fill(problem, "phase_begin", phase_begin,
       [](solve::Buffer& b, std::int64_t v) { b.phase_begin = narrow(v); });
  fill(problem, "phase_end", phase_end,
       [](solve::Buffer& b, std::int64_t v) { b.phase_end = narrow(v); });
  if (gaps) problem.idle = to_gaps(*gaps);
  return problem;
}

solve::Layout make_layout(const Numbers& offsets, const solve::Problem& problem) {
  if (offsets.ndim() != 1 || offsets.shape(0) != static_cast<py::ssize_t>(problem.buffers.size())) {
    throw PlanError("offsets must be a one-dimensional array of " +
                    std::to_string(problem.buffers.size()) + " numbers, like lower");
  }
  return {{offsets.data(), offsets.data() + offsets.size()}, 0};
}

Numbers to_array(const std::vector<Offset>& offsets) {
  return Numbers(static_cast<py::ssize_t>(offsets.size()), offsets.data());
}

// Each row is a wait: buffer, after.
Numbers to_array(const std::vector<solve::Wait>& waits) {
  Numbers rows({static_cast<py::ssize_t>(waits.size()), py::ssize_t{2}});
  std::int64_t* next = rows.mutable_data();
  for (const auto& [buffer, after] : waits) {
    *next++ = buffer;
    *next++ = after;
  }
  return rows;
}

std::vector<solve::Wait> to_waits(const Numbers& rows) {
  if (rows.ndim() != 2 || rows.shape(1) != 2) {
    throw PlanError("waits must be an array of two columns: a buffer, and the one it waits for");
  }
  std::vector<solve::Wait> waits;
  for (py::ssize_t i = 0; i < rows.shape(0); ++i) {
    waits.push_back({narrow(rows.at(i, 0)), narrow(rows.at(i, 1))});
  }
  return waits;
}

py::dict solve_problem(const solve::Problem& problem, const std::string& algorithm,
                       double time_limit, int threads, const std::optional<Numbers>& warm_start,
                       const py::object& progress) {
  solve::Layout warm;
  solve::PortfolioOptions options{.algorithm = algorithm, .threads = threads};
  if (warm_start) {
    warm = make_layout(*warm_start, problem);
    options.warm_start = &warm;
  }
  const solve::PortfolioResult result =
      run_interruptibly(progress, [&](const std::atomic<bool>* cancel, const auto& tell) {
        solve::Budget budget;
        budget.cancel = cancel;
        budget.progress = tell;
        return solve::solve(problem, options, budget.within(time_limit));
      });
  py::dict d;
  d["offsets"] = to_array(result.layout.offsets);
  d["height"] = result.layout.height;
  d["bound"] = result.bound;
  d["optimal"] = result.optimal;
  d["algorithm"] = result.algorithm;
  d["seconds"] = result.seconds;
  std::vector<solve::Wait> waits;
  if (problem.streams == solve::Streams::kOrdered)
    waits = solve::find_waits(problem, result.layout);
  d["waits"] = to_array(waits);
  return d;
}

}  // namespace

void bind_planner(py::module_& m) {
  py::class_<solve::Problem>(m, "Problem")
      .def(py::init(&make_problem), py::arg("lower").noconvert(), py::arg("upper").noconvert(),
           py::arg("size").noconvert(), py::arg("alignment"), py::arg("period"),
           py::arg("capacity"), py::arg("stream").noconvert(), py::arg("fixed").noconvert(),
           py::arg("phase_begin").noconvert(), py::arg("phase_end").noconvert(),
           py::arg("streams") = solve::Streams::kSeparate, py::arg("gaps").noconvert() = py::none())
      .def("check", &solve::Problem::check)
      .def("bound",
           [](const solve::Problem& problem) {
             const py::gil_scoped_release no_gil;
             problem.check();
             return solve::load_bound(problem);
           })
      .def(
          "validate",
          [](const solve::Problem& problem, const Numbers& offsets, Bytes height) {
            solve::Layout layout = make_layout(offsets, problem);
            layout.height = height;
            const py::gil_scoped_release no_gil;
            problem.check();
            verify::validate(problem, layout);
          },
          py::arg("offsets").noconvert(), py::arg("height"))
      .def(
          "validate_waits",
          [](const solve::Problem& problem, const Numbers& offsets, const Numbers& rows) {
            const solve::Layout layout = make_layout(offsets, problem);
            const std::vector<solve::Wait> waits = to_waits(rows);
            const py::gil_scoped_release no_gil;
            verify::validate_waits(problem, layout, waits);
          },
          py::arg("offsets").noconvert(), py::arg("waits").noconvert())
      .def("solve", &solve_problem, py::arg("algorithm"), py::arg("time_limit"), py::arg("threads"),
           py::arg("warm_start").noconvert(), py::arg("progress"));

  m.def("algorithms", [] {
    std::vector<std::string> names;
    for (const solve::Planner* p : solve::planners()) names.emplace_back(p->name());
    return names;
  });

  m.def(
      "read_csv",
      [](const std::string& text) {
        solve::CsvProblem csv;
        {
          const py::gil_scoped_release no_gil;
          csv = solve::read_csv(text);
        }
        std::vector<std::int64_t> lower;
        std::vector<std::int64_t> upper;
        std::vector<std::int64_t> size;
        for (const solve::Buffer& b : csv.problem.buffers) {
          lower.push_back(b.lower);
          upper.push_back(b.upper);
          size.push_back(b.size);
        }
        py::dict d;
        d["ids"] = csv.ids;
        d["lower"] = to_array(lower);
        d["upper"] = to_array(upper);
        d["size"] = to_array(size);
        d["gaps"] = csv.problem.idle.empty() ? py::object(py::none())
                                             : py::object(to_array(csv.problem.idle));
        d["offsets"] = csv.has_offsets ? py::object(to_array(csv.offsets)) : py::none();
        return d;
      },
      py::arg("text"));

  m.def(
      "write_csv",
      [](const std::vector<std::string>& ids, const solve::Problem& problem,
         const Numbers& offsets) {
        if (ids.size() != problem.buffers.size()) {
          throw PlanError(std::to_string(ids.size()) + " ids for " +
                          std::to_string(problem.buffers.size()) + " buffers");
        }
        return solve::write_csv(ids, problem, make_layout(offsets, problem));
      },
      py::arg("ids"), py::arg("problem"), py::arg("offsets").noconvert());
}

}  // namespace stalloc::bindings
