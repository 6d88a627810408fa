#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "data/damage_log.h"
#include "data/tables/columns.h"
#include "data/tables/table_file.h"

namespace lockstep::data {

/// The rows of files, as numbers: a number itself, of a category the place of its value in the column's list.
class TableRows {
 public:
  /// Without `known` columns, those that `options` names are taken, or all of the first file, and the first
  /// row decides whether a column has numbers. With them, values that a category lacks are kUnknown.
  TableRows(const TableOptions& options, const std::optional<Columns>& known, const DataOptions& data);

  /// Throws DataError for a file without a column, and for damaged rows if these are not left out: of another
  /// width, a number that is none, an empty cell, a class that the target lacks. If the truth may be missing
  /// (DataOptions), a file may lack the target, or have empty cells there.
  void read(const std::string& path);
  /// After the last file: sorts the values of categories, so that no order of rows matters.
  void finish();

  static constexpr double kUnknown = -1;  ///< of categories; of a number that is to be predicted: NaN
  int64_t count() const { return static_cast<int64_t>(numbers_.size()); }
  double value(int64_t row, size_t column) const {
    return values_[static_cast<size_t>(row) * columns_.size() + column];
  }
  /// The inputs, then the target. Means and deviations are not set yet.
  const std::vector<Column>& columns() const { return columns_; }
  size_t target() const { return columns_.size() - 1; }
  int64_t number(int64_t row) const {
    return numbers_[static_cast<size_t>(row)];
  }                                                ///< from 0, damaged ones count
  int64_t numbered() const { return rows_read_; }  ///< rows that have numbers: damaged ones, too
  uint64_t identity(int64_t row) const;            ///< of its cells
  int64_t damaged() const { return damage_.count(); }

 private:
  void begin_file(const std::string& path, const std::vector<std::string>& names);
  void choose_columns(const std::vector<std::string>& names);
  void decide_kinds(const TableRow& row);
  void take(const TableRow& row);
  /// The value of a cell, or what is wrong with it.
  std::optional<double> value_of(const TableRow& row, size_t column, std::string& problem);

  TableOptions options_;
  static constexpr size_t kAbsent = SIZE_MAX;
  /// Whether a cell of the row may be missing, and is.
  bool lacks_truth(const TableRow& row, size_t column) const {
    return may_lack_truth_ && column == target() &&
           (in_file_[column] == kAbsent || row.is_empty(in_file_[column]));
  }

  bool knows_columns_, knows_kinds_, values_are_fixed_, may_lack_truth_;
  int64_t most_inflated_;
  DamageLog damage_;
  std::vector<Column> columns_;
  std::vector<std::unordered_map<std::string, int64_t>> places_;  // of categories' values
  std::vector<size_t> in_file_;       // where columns are in the file that is read
  std::vector<double> values_, row_;  // of all rows; of the one that is read
  std::vector<int64_t> numbers_;
  int64_t rows_read_ = 0;
};

}  // namespace lockstep::data
