// Tables in JSON: an object with an array a column, as their columns declare it (columns.h).
//
// An index is written as its number. An enumeration is written by its name: to_string(value), and
// from_string(text, value), which throws a std::exception for a text that names none, are found
// beside it.
#pragma once

#include <algorithm>
#include <exception>
#include <type_traits>
#include <vector>

#include "base/columns.h"
#include "base/index.h"
#include "base/json_reader.h"
#include "base/json_writer.h"
#include "base/types.h"

namespace stalloc {

template <typename Cell>
void read_cell(JsonReader& in, JsonReader::Value value, Cell& cell, bool never_is_null = false) {
  if constexpr (std::is_same_v<Cell, bool>) {
    cell = in.boolean(value);
  } else if constexpr (std::is_enum_v<Cell>) {
    const std::string name = in.text(value);
    try {
      from_string(name, cell);
    } catch (const std::exception& error) {
      in.fail(error.what());
    }
  } else if constexpr (kIsIndex<Cell>) {
    cell = Cell(in.integer<std::int32_t>(value));
  } else {
    const bool never = never_is_null && in.is_null(value);
    cell = never ? static_cast<Cell>(kNever) : in.integer<Cell>(value);
  }
}

template <typename Cell>
void write_cell(JsonWriter& out, const Cell& cell, bool never_is_null = false) {
  if constexpr (std::is_enum_v<Cell>) {
    out.value(to_string(cell));
  } else if constexpr (kIsIndex<Cell>) {
    out.value(cell.number());
  } else {
    if (never_is_null && cell == static_cast<Cell>(kNever)) {
      out.null();
    } else {
      out.value(cell);
    }
  }
}

template <typename Row, typename... Columns>
std::vector<Row> read_table(JsonReader& in, JsonReader::Value value,
                            const std::tuple<Columns...>& columns) {
  std::vector<JsonReader::Column<Row>> readers;
  for_each_column(columns, [&](const auto& column) {
    readers.push_back({column.name,
                       [&in, column](Row& row, JsonReader::Value cell) {
                         read_cell(in, cell, column.cell(row), column.never_is_null);
                       },
                       column.optional});
  });
  return in.table<Row>(value, readers);
}

template <typename Row, typename... Columns>
void write_table(JsonWriter& out, std::string_view name, const std::vector<Row>& rows,
                 const std::tuple<Columns...>& columns) {
  [[maybe_unused]] static const Row kNew{};
  out.key(name);
  out.begin_object();
  for_each_column(columns, [&](const auto& column) {
    const auto is_new = [&](const Row& row) { return column.cell(row) == column.cell(kNew); };
    if (column.optional && std::ranges::all_of(rows, is_new)) return;
    out.column(column.name, rows,
               [&](const Row& row) { write_cell(out, column.cell(row), column.never_is_null); });
  });
  out.end_object();
}

}  // namespace stalloc
