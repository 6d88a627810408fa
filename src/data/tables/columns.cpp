#include "data/tables/columns.h"

#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "lockstep/error.h"

namespace lockstep::data {
namespace {

using Json = nlohmann::ordered_json;
constexpr std::string_view kFormat = "lockstep columns";

Json json_of(const Column& column) {
  if (column.is_category) return {{"name", column.name}, {"values", column.values}};
  return {{"name", column.name}, {"mean", column.mean}, {"deviation", column.deviation}};
}

Column column_from(const Json& json) {
  Column column{.name = json.at("name").get<std::string>(), .is_category = json.contains("values")};
  if (column.is_category) {
    column.values = json.at("values").get<std::vector<std::string>>();
    if (column.values.empty()) throw DataError(fmt::format("column '{}' has no values", column.name));
    return column;
  }
  column.mean = json.at("mean").get<double>();
  column.deviation = json.at("deviation").get<double>();
  if (!std::isfinite(column.mean) || !std::isfinite(column.deviation) || column.deviation <= 0)
    throw DataError(fmt::format("column '{}': expected a mean and a deviation above 0", column.name));
  return column;
}

}  // namespace

int64_t feature_count(const Columns& columns) {
  int64_t count = 0;
  for (const auto& column : columns.inputs)
    count += column.is_category ? static_cast<int64_t>(column.values.size()) : 1;
  return count;
}

std::string to_json(const Columns& columns) {
  Json inputs = Json::array();
  for (const auto& column : columns.inputs) inputs.push_back(json_of(column));
  const Json json{
      {"format", kFormat}, {"format_version", 1}, {"inputs", inputs}, {"target", json_of(columns.target)}};
  return json.dump(1) + "\n";
}

Columns columns_from_json(std::string_view text, const std::string& name) {
  try {
    const Json json = Json::parse(text);
    if (json.at("format") != kFormat || json.at("format_version") != 1)
      throw DataError(fmt::format("expected '{}' of version 1", kFormat));
    Columns columns;
    for (const auto& input : json.at("inputs")) columns.inputs.push_back(column_from(input));
    columns.target = column_from(json.at("target"));
    return columns;
  } catch (const nlohmann::json::exception& error) {
    throw DataError(
        fmt::format("{}: expected columns of a table, found something else ({})", name, error.what()));
  } catch (const DataError& error) {
    throw DataError(fmt::format("{}: {}", name, error.what()));
  }
}

std::optional<Column> target_among(const std::map<std::string, std::string>& encodings) {
  const auto found = encodings.find(std::string(kColumnsFile));
  if (found == encodings.end()) return std::nullopt;
  return columns_from_json(found->second, found->first).target;
}

}  // namespace lockstep::data
