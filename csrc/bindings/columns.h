// Tables as NumPy sees them: a read-only array a column, straight onto the rows, so that a trace of
// a million requests is not copied to be looked at. Each array keeps its owner alive; the owner
// must not change the table after that.
#pragma once

#include <pybind11/numpy.h>

#include <type_traits>
#include <vector>

namespace stalloc::bindings {

// `field` maps a row to a reference to one of its numbers. Enumerations come as their numbers.
template <typename Row, typename Field>
pybind11::array column(const pybind11::object& owner, const std::vector<Row>& rows, Field field) {
  using Value = std::remove_cvref_t<decltype(field(rows.front()))>;
  using Number = typename std::conditional_t<std::is_enum_v<Value>, std::underlying_type<Value>,
                                             std::type_identity<Value>>::type;
  static const Row kEmpty{};
  const Row& first = rows.empty() ? kEmpty : rows.front();
  pybind11::array_t<Number> result({rows.size()}, {sizeof(Row)},
                                   reinterpret_cast<const Number*>(&field(first)), owner);
  result.attr("setflags")(pybind11::arg("write") = false);
  return result;
}

}  // namespace stalloc::bindings
