#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "data/damage_log.h"
#include "data/tables/table_options.h"

namespace lockstep::data {

/// A row of a file, valid while it is looked at.
class TableRow {
 public:
  virtual ~TableRow() = default;
  virtual bool is_empty(size_t column) const = 0;
  virtual std::string text(size_t column) const = 0;
  /// Whether the cell is meant to be a number, if perhaps not a finite one.
  virtual bool is_number(size_t column) const = 0;
  /// Nothing if the cell is no finite number.
  virtual std::optional<double> number(size_t column) const = 0;
  virtual RowPlace place() const = 0;
  virtual std::string problem() const = 0;  ///< what is damaged; "": nothing
};

/// Reads a file's rows from the first to the last. `begin` gets the names of its columns; an array's are
/// "0", "1", ... Throws DataError for a file that is damaged as a whole: without a head, of another format,
/// or a name that is there twice; and for gzip data that becomes more than `most_inflated` (see ByteSource).
void read_table(const std::string& path, TableFormat format,
                const std::function<void(const std::vector<std::string>& names)>& begin,
                const std::function<void(const TableRow& row)>& take, int64_t most_inflated = 0);

}  // namespace lockstep::data
