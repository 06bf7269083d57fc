// The columns of a table, declared once: JSON in and out, the Python bindings and the tests of the
// schemas all follow this declaration.
//
//   inline constexpr std::tuple kSpanColumns{
//       Column<&Span::key, &Key::kind>{"kind"},            // reads span.key.kind
//       Column<&Span::end>{.name = "end", .never_is_null = true}};
#pragma once

#include <string_view>
#include <tuple>

namespace stalloc {

// `Members` lead from a row to the cell: one pointer to a member, or several for nested ones.
template <auto... Members>
struct Column {
  std::string_view name;
  bool never_is_null = false;  // a file has null for kNever
  bool optional = false;       // a file leaves it out where all cells are those of a new row

  static auto& cell(auto& row) { return (row.*....*Members); }
};

// Calls visit(column) for each column, in order.
template <typename... Columns>
constexpr void for_each_column(const std::tuple<Columns...>& columns, auto visit) {
  std::apply([&](const auto&... column) { (visit(column), ...); }, columns);
}

}  // namespace stalloc
