#include "observe/metrics_reader.h"

#include <fmt/format.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "base/text.h"
#include "lockstep/error.h"
#include "observe/json_text.h"
#include "observe/machine/subject.h"

namespace lockstep::observe {
namespace {

MetricValue value_of(const nlohmann::json& value, const std::string& name, const std::string& where) {
  if (value.is_number()) return value.get<double>();
  if (!value.is_string()) {
    throw DataError(
        fmt::format("{}: expected a number or a text as \"{}\", found {}", where, name, value.dump()));
  }
  const auto& text = value.get_ref<const std::string&>();
  if (text == "nan") return std::numeric_limits<double>::quiet_NaN();
  if (text == "inf") return std::numeric_limits<double>::infinity();
  if (text == "-inf") return -std::numeric_limits<double>::infinity();
  return text;
}

}  // namespace

double MetricsRow::number(std::string_view name) const {
  const auto found = values_.find(name);
  if (found == values_.end()) {
    std::vector<std::string> names;
    for (const auto& [known, value] : values_) names.push_back(known);
    throw DataError(fmt::format("{}: expected \"{}\"{}, found {}", where_, name, did_you_mean(name, names),
                                join(names, ", ")));
  }
  if (const double* number = std::get_if<double>(&found->second)) return *number;
  throw DataError(fmt::format("{}: expected a number as \"{}\", found \"{}\"", where_, name,
                              std::get<std::string>(found->second)));
}

MetricsRow parse_metrics_line(std::string_view line, const std::string& where) {
  const auto json = nlohmann::json::parse(line.begin(), line.end(), nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) {
    throw DataError(
        fmt::format("{}: expected one JSON object, found {}", where, json_string(line.substr(0, 60))));
  }
  std::map<std::string, MetricValue, std::less<>> values;
  for (const auto& [name, value] : json.items()) values.emplace(name, value_of(value, name, where));
  MetricsRow row(std::move(values), where);
  const double step = row.number("step");
  if (!(step >= 0 && step <= 0x1p53 && step == std::floor(step))) {
    throw DataError(fmt::format("{}: expected a whole number as \"step\", found {}", where, exact(step)));
  }
  return row;
}

std::vector<MetricsRow> read_metrics(const std::string& path, MetricsLines lines) {
  const std::string text = read_text_file(path);
  std::vector<MetricsRow> rows;
  size_t begin = 0, number = 1;
  for (size_t end; (end = text.find('\n', begin)) != std::string::npos; begin = end + 1, ++number) {
    const auto line = std::string_view(text).substr(begin, end - begin);
    MetricsRow row = parse_metrics_line(line, fmt::format("{}:{}", path, number));
    if (lines == MetricsLines::all || !row.has(kKindField)) rows.push_back(std::move(row));
  }
  return rows;
}

}  // namespace lockstep::observe
