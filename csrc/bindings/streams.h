// Streams as its name in Python: stalloc.Streams is a string there.
#pragma once

#include <pybind11/pybind11.h>

#include <string_view>

#include "base/error.h"
#include "solve/core/problem.h"

namespace pybind11::detail {

template <>
struct type_caster<stalloc::solve::Streams> {
  PYBIND11_TYPE_CASTER(stalloc::solve::Streams, const_name("str"));

  bool load(handle source, bool) {
    if (!isinstance<str>(source)) return false;
    const auto text = source.cast<std::string_view>();
    for (const auto streams :
         {stalloc::solve::Streams::kSeparate, stalloc::solve::Streams::kOrdered}) {
      if (text != stalloc::solve::name(streams)) continue;
      value = streams;
      return true;
    }
    return false;
  }

  static handle cast(stalloc::solve::Streams streams, return_value_policy, handle) {
    const std::string_view text = stalloc::solve::name(streams);
    return str(text.data(), text.size()).release();
  }
};

}  // namespace pybind11::detail
