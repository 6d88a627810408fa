#pragma once

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "base/json_number.h"
#include "lockstep/error.h"

namespace lockstep::exchange {

/// A field of config.json, or what transformers takes if it is missing or null. Throws ConfigError for
/// another type.
template <class T>
T field_of(const nlohmann::json& config, const char* name, T otherwise) {
  if (!config.is_object() || !config.contains(name) || config[name].is_null()) return otherwise;
  try {
    if constexpr (std::is_integral_v<T> && !std::is_same_v<T, bool>) {
      if (const auto number = whole_number<T>(config[name])) return *number;
      throw ConfigError(fmt::format("config.json: {} is {}, no whole number in range", name,
                                    config[name].dump(-1, ' ', true)));
    } else {
      return config[name].get<T>();
    }
  } catch (const nlohmann::json::exception&) {
    throw ConfigError(fmt::format("config.json: {} is {}, of another type than expected", name,
                                  config[name].dump(-1, ' ', true)));
  }
}

/// Likewise one without which there is no model. Throws ConfigError if it is missing.
template <class T>
T required_field_of(const nlohmann::json& config, const char* name) {
  if (!config.is_object() || !config.contains(name) || config[name].is_null())
    throw ConfigError(fmt::format("config.json: {} is missing", name));
  return field_of<T>(config, name, T{});
}

/// Throws ConfigError if a field asks for what lockstep does not compute.
template <class T>
void demand(const nlohmann::json& config, const char* name, const T& only, const T& otherwise) {
  if (const T value = field_of<T>(config, name, otherwise); value != only)
    throw ConfigError(fmt::format("config.json: {} is {}; lockstep computes only {}", name, value, only));
}

/// The shortest decimal number that is rounded to this float32, as people write it.
inline double number_of(float value) { return std::stod(fmt::format("{}", value)); }

/// Adds "heads: 12 in config.json, 8 in the model" if the values differ.
template <class T>
void note_difference(std::vector<std::string>& differences, std::string_view name, const T& theirs,
                     const T& ours) {
  if (theirs != ours)
    differences.push_back(fmt::format("{}: {} in config.json, {} in the model", name, theirs, ours));
}

}  // namespace lockstep::exchange
