#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::data {

/// The name of the file that columns are kept in, in checkpoints.
inline constexpr std::string_view kColumnsFile = "columns.json";

/// How a column becomes numbers for a model.
struct Column {
  std::string name;
  bool is_category = false;
  double mean = 0, deviation = 1;  ///< of a number: it becomes (value - mean) / deviation
  std::vector<std::string>
      values;  ///< of a category: value k becomes class k, or 1 in the k-th of as many fields
  bool operator==(const Column&) const = default;
};

/// The columns that a table is read by.
struct Columns {
  std::vector<Column> inputs;
  Column target;
  bool operator==(const Columns&) const = default;
};

int64_t feature_count(const Columns& columns);  ///< of all inputs

std::string to_json(const Columns& columns);
/// Reads what to_json() wrote. Throws DataError, which begins with `name`, for anything else.
Columns columns_from_json(std::string_view text, const std::string& name);
/// What a table's model predicts, if a checkpoint's or a data set's encodings (texts by file name) are of
/// one.
std::optional<Column> target_among(const std::map<std::string, std::string>& encodings);

}  // namespace lockstep::data
