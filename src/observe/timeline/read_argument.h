#pragma once

#include <string>

#include "observe/timeline/timeline.h"

namespace lockstep::observe {

/// Appends an argument as a file of either form holds it. Throws the library's exception if it is neither
/// text nor number.
template <class Json>
void read_argument(const std::string& name, const Json& value, TimelineSlice& slice) {
  if (value.is_string())
    slice.arguments.emplace_back(name, value.template get<std::string>());
  else if (value.is_number_integer())
    slice.arguments.emplace_back(name, value.template get<int64_t>());
  else
    slice.arguments.emplace_back(name, value.template get<double>());
}

}  // namespace lockstep::observe
