#include "observe/json_text.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "base/text.h"

namespace lockstep::observe {

std::string json_number(double value) {
  if (!std::isfinite(value)) return '"' + exact(value) + '"';
  // "-0" is an integer to JSON readers, and an integer zero has no sign.
  if (value == 0 && std::signbit(value)) return "-0.0";
  return exact(value);
}

std::string json_string(std::string_view text) {
  return nlohmann::json(std::string(text)).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace lockstep::observe
