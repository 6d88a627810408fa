#include "data/tables/table_rows.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <limits>

#include "base/hash.h"
#include "base/text.h"
#include "data/file_list.h"
#include "lockstep/error.h"

namespace lockstep::data {
namespace {

// A column of more names is one of texts or of numbers of rows, from which nothing can be learned this way.
constexpr size_t kMostValues = 10'000;

/// Whole numbers in their order, before all other names.
bool comes_before(const std::string& a, const std::string& b) {
  const auto whole = [](const std::string& text) {
    int64_t value = 0;
    const auto [end, status] = std::from_chars(text.data(), text.data() + text.size(), value);
    return status == std::errc{} && end == text.data() + text.size() ? std::optional(value) : std::nullopt;
  };
  const auto x = whole(a), y = whole(b);
  if (x && y && *x != *y) return *x < *y;
  if (x.has_value() != y.has_value()) return x.has_value();
  return a < b;
}

}  // namespace

TableRows::TableRows(const TableOptions& options, const std::optional<Columns>& known,
                     const DataOptions& data)
    : options_(options),
      knows_columns_(known.has_value()),
      knows_kinds_(known.has_value()),
      values_are_fixed_(known.has_value()),
      may_lack_truth_(data.may_lack_truth && known.has_value()),
      most_inflated_(data.most_inflated_bytes),
      damage_(data) {
  if (!known) return;
  columns_ = known->inputs;
  columns_.push_back(known->target);
  places_.resize(columns_.size());
  for (size_t c = 0; c < columns_.size(); ++c)
    for (const auto& value : columns_[c].values)
      places_[c].emplace(value, static_cast<int64_t>(places_[c].size()));
}

void TableRows::read(const std::string& path) {
  read_table(
      path, options_.format, [&](const auto& names) { begin_file(path, names); },
      [&](const TableRow& row) { take(row); }, most_inflated_);
}

void TableRows::choose_columns(const std::vector<std::string>& names) {
  if (options_.columns.empty()) {
    for (const auto& name : names)
      if (name != options_.target) columns_.push_back({.name = name});
  } else {
    for (const auto& name : options_.columns) columns_.push_back({.name = name});
  }
  if (columns_.empty())
    throw DataError(
        fmt::format("data.table: there is no column beside '{}' to predict it from", options_.target));
  columns_.push_back({.name = options_.target});
  places_.resize(columns_.size());
  for (const auto& name : options_.categories) {
    const auto found = std::ranges::find(columns_, name, &Column::name);
    if (found == columns_.end())
      throw ConfigError(fmt::format("data.table.categories: '{}' is no column that is read", name));
    found->is_category = true;
  }
  knows_columns_ = true;
}

void TableRows::begin_file(const std::string& path, const std::vector<std::string>& names) {
  if (!knows_columns_) choose_columns(names);
  in_file_.clear();
  for (const auto& column : columns_) {
    const auto found = std::ranges::find(names, column.name);
    if (found == names.end() && may_lack_truth_ && &column == &columns_.back()) {
      in_file_.push_back(kAbsent);
      continue;
    }
    if (found == names.end())
      throw DataError(fmt::format("{}: expected a column '{}', found none{}", one_line(path),
                                  one_line(column.name), did_you_mean(column.name, names)));
    in_file_.push_back(static_cast<size_t>(found - names.begin()));
  }
}

void TableRows::decide_kinds(const TableRow& row) {
  for (size_t c = 0; c < columns_.size(); ++c)
    columns_[c].is_category = columns_[c].is_category || !row.is_number(in_file_[c]);
  knows_kinds_ = true;
}

void TableRows::take(const TableRow& row) {
  const int64_t number = rows_read_++;
  std::string problem = row.problem();
  // A row with an empty cell is damaged, and decides nothing.
  for (size_t c = 0; problem.empty() && c < columns_.size(); ++c)
    if (!lacks_truth(row, c) && row.is_empty(in_file_[c]))
      problem = fmt::format("column '{}': expected a value, found an empty cell", one_line(columns_[c].name));
  if (problem.empty() && !knows_kinds_) decide_kinds(row);
  // Numbers first, so that a damaged row adds no value to a category.
  row_.resize(columns_.size());
  for (const bool categories : {false, true})
    for (size_t c = 0; problem.empty() && c < columns_.size(); ++c)
      if (columns_[c].is_category == categories) row_[c] = value_of(row, c, problem).value_or(kUnknown);
  if (!problem.empty()) return damage_.note(row.place(), problem);
  values_.insert(values_.end(), row_.begin(), row_.end());
  numbers_.push_back(number);
}

std::optional<double> TableRows::value_of(const TableRow& row, size_t column, std::string& problem) {
  Column& known = columns_[column];
  if (lacks_truth(row, column))
    return known.is_category ? kUnknown : std::numeric_limits<double>::quiet_NaN();
  if (!known.is_category) {
    const auto number = row.number(in_file_[column]);
    if (!number)
      problem = fmt::format("column '{}': expected a number, found '{}'", one_line(known.name),
                            one_line(row.text(in_file_[column]).substr(0, 60)));
    return number;
  }
  const std::string text = row.text(in_file_[column]), name = one_line(known.name);
  if (const auto found = places_[column].find(text); found != places_[column].end())
    return static_cast<double>(found->second);
  if (values_are_fixed_) {
    if (column != target()) return kUnknown;
    problem = fmt::format("column '{}': '{}' is none of the {} classes", name, one_line(text.substr(0, 60)),
                          known.values.size());
    return std::nullopt;
  }
  if (places_[column].size() == kMostValues)
    throw DataError(
        fmt::format("{}: column '{}' has more than {} different values; leave it out "
                    "(data.table.columns), or mend the first row if it should hold numbers",
                    row.place().to_string(), name, kMostValues));
  const auto place = static_cast<int64_t>(places_[column].size());
  places_[column].emplace(text, place);
  return static_cast<double>(place);
}

void TableRows::finish() {
  damage_.finish("rows");
  if (values_are_fixed_) return;
  for (size_t c = 0; c < columns_.size(); ++c) {
    auto& values = columns_[c].values;
    for (const auto& [value, place] : places_[c]) values.push_back(value);
    std::ranges::sort(values, comes_before);
    std::vector<double> place_of(values.size());
    for (size_t k = 0; k < values.size(); ++k)
      place_of[static_cast<size_t>(places_[c].at(values[k]))] = static_cast<double>(k);
    for (size_t i = c; columns_[c].is_category && i < values_.size(); i += columns_.size())
      values_[i] = place_of[static_cast<size_t>(values_[i])];
  }
}

uint64_t TableRows::identity(int64_t row) const {
  uint64_t hash = 0;
  for (size_t c = 0; c < columns_.size(); ++c) {
    const double cell = value(row, c);
    hash = hash_combine(hash, columns_[c].is_category && cell >= 0
                                  ? hash64(columns_[c].values[static_cast<size_t>(cell)])
                                  : hash64(&cell, sizeof cell));
  }
  return hash;
}

}  // namespace lockstep::data
