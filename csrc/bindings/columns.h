// Tables as NumPy sees them: a read-only array a column, straight onto the rows, so that a trace of
// a million requests is not copied. Each array keeps its owner alive; the owner must not change the
// table after that.
#pragma once

#include <pybind11/numpy.h>

#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/columns.h"
#include "base/index.h"

namespace stalloc::bindings {

// The type of the number that a cell is in memory.
template <typename Cell>
struct NumberOf {
  using type = typename std::conditional_t<std::is_enum_v<Cell>, std::underlying_type<Cell>,
                                           std::type_identity<Cell>>::type;
};
template <typename Row>
struct NumberOf<Index<Row>> {
  static_assert(sizeof(Index<Row>) == sizeof(std::int32_t));
  static_assert(std::is_standard_layout_v<Index<Row>>);
  using type = std::int32_t;
};

// The type of a column's numbers.
template <typename Row, typename Column>
using ColumnNumber = typename NumberOf<
    std::remove_cvref_t<decltype(Column::cell(std::declval<const Row&>()))>>::type;

template <typename Row, typename... Columns>
pybind11::dict table(const pybind11::object& owner, const std::vector<Row>& rows,
                     const std::tuple<Columns...>& columns) {
  static const Row kEmpty{};
  const Row& first = rows.empty() ? kEmpty : rows.front();
  pybind11::dict arrays;
  for_each_column(columns, [&]<typename Column>(const Column& column) {
    using Number = ColumnNumber<Row, Column>;
    pybind11::array_t<Number> array({rows.size()}, {sizeof(Row)},
                                    reinterpret_cast<const Number*>(&column.cell(first)), owner);
    array.attr("setflags")(pybind11::arg("write") = false);
    arrays[pybind11::str(column.name)] = array;
  });
  return arrays;
}

// The same for rows that nothing else keeps: the arrays own them.
template <typename Row, typename... Columns>
pybind11::dict owning_table(std::vector<Row> rows, const std::tuple<Columns...>& columns) {
  auto kept = std::make_unique<std::vector<Row>>(std::move(rows));
  const std::vector<Row>& view = *kept;
  const pybind11::capsule owner(kept.release(),
                                [](void* p) { delete static_cast<std::vector<Row>*>(p); });
  return table(owner, view, columns);
}

// Describes the columns: the name, the NumPy type, true if a file may have null, and true if it may
// leave the column out.
template <typename Row, typename... Columns>
pybind11::tuple describe(const std::tuple<Columns...>& columns) {
  pybind11::list described;
  for_each_column(columns, [&]<typename Column>(const Column& column) {
    described.append(pybind11::make_tuple(column.name,
                                          pybind11::dtype::of<ColumnNumber<Row, Column>>(),
                                          column.never_is_null, column.optional));
  });
  return described;
}

}  // namespace stalloc::bindings
