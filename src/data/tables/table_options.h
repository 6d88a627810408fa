#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace lockstep::data {

/// How files of tables are written; by default their names say it.
enum class TableFormat { automatic, csv, tsv, npy };

/// Options of the kind `table`.
struct TableOptions {
  std::vector<std::string> files;       ///< names or patterns
  std::vector<std::string> eval_files;  ///< of these, or further ones: they evaluate
  std::string eval_list;                ///< a file with numbers of rows; "": none
  double eval_fraction = 0;             ///< share of each class, or of all rows, to evaluate on
  uint64_t split_seed = 1;              ///< decides which
  TableFormat format = TableFormat::automatic;
  std::string target;                   ///< name of the column to predict
  std::vector<std::string> columns;     ///< to predict it from; empty: all others
  std::vector<std::string> categories;  ///< columns of names, even if they look like numbers
  bool standardize = true;              ///< numbers get mean 0 and deviation 1 in the training rows
  bool operator==(const TableOptions&) const = default;
};

}  // namespace lockstep::data
