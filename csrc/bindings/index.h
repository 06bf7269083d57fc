// An index of a table as the number that it is in Python.
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>

#include "base/index.h"

namespace pybind11::detail {

template <typename Row>
struct type_caster<stalloc::Index<Row>> {
  PYBIND11_TYPE_CASTER(stalloc::Index<Row>, const_name("int"));

  bool load(handle source, bool convert) {
    make_caster<std::int32_t> number;
    if (!number.load(source, convert)) return false;
    value = cast_op<std::int32_t>(number);
    return true;
  }

  static handle cast(stalloc::Index<Row> index, return_value_policy, handle) {
    return PyLong_FromLong(index.number());
  }
};

}  // namespace pybind11::detail
