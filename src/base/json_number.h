#pragma once

#include <cmath>
#include <concepts>
#include <cstdint>
#include <optional>
#include <utility>

#include "lockstep/error.h"

namespace lockstep {

/// The whole number that a value of nlohmann's JSON is; nothing for another value, and for one that Integer
/// cannot hold. (`get<Integer>()` of a number such as 1e300 is undefined behaviour.)
template <std::integral Integer, class Json>
std::optional<Integer> whole_number(const Json& json) {
  constexpr double kExact = 9007199254740992;  // 2^53: the whole numbers that a double has are these
  if (json.is_number_unsigned()) {
    const auto value = json.template get<uint64_t>();
    return std::in_range<Integer>(value) ? std::optional(static_cast<Integer>(value)) : std::nullopt;
  }
  int64_t value = 0;
  if (json.is_number_integer()) {
    value = json.template get<int64_t>();
  } else {
    const double number = json.is_number_float() ? json.template get<double>() : 0.5;
    if (!(std::fabs(number) <= kExact) || std::trunc(number) != number) return {};
    value = static_cast<int64_t>(number);
  }
  return std::in_range<Integer>(value) ? std::optional(static_cast<Integer>(value)) : std::nullopt;
}

/// Likewise; throws DataError for what is none.
template <std::integral Integer, class Json>
Integer demand_whole_number(const Json& json) {
  if (const auto number = whole_number<Integer>(json)) return *number;
  throw DataError("expected a whole number, found " + json.dump(-1, ' ', true).substr(0, 100));
}

}  // namespace lockstep
