#include "data/class_names.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "data/tables/columns.h"
#include "lockstep/error.h"

namespace lockstep::data {
namespace {

constexpr std::string_view kClassesFile = "classes.json";

}  // namespace

Encodings class_encoding(const std::vector<std::string>& names) {
  return {{std::string(kClassesFile),
           nlohmann::json(names).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n"}};
}

std::optional<std::vector<std::string>> classes_of_model(const DataOptions& options) {
  const auto found = options.encodings.find(std::string(kClassesFile));
  if (found == options.encodings.end()) return {};
  try {
    return nlohmann::json::parse(found->second).get<std::vector<std::string>>();
  } catch (const nlohmann::json::exception& error) {
    throw DataError(fmt::format("the checkpoint's {}: expected names of classes, found something else ({})",
                                kClassesFile, error.what()));
  }
}

std::vector<std::string> class_names_among(const Encodings& encodings) {
  if (auto names = classes_of_model({.encodings = encodings})) return std::move(*names);
  const auto target = target_among(encodings);
  return target && target->is_category ? target->values : std::vector<std::string>{};
}

}  // namespace lockstep::data
