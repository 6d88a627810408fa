#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "data/data_options.h"

namespace lockstep::data {

/// Where a row or a text is.
struct RowPlace {
  std::string file;
  const char* unit = nullptr;      ///< "line", or "row" of an array; null: it is the whole file
  int64_t number = -1, byte = -1;  ///< of the line or row, and where it begins
  std::string to_string() const;   ///< "FILE: line 7 (byte 120)"; on one line
};

/// What becomes of damaged rows that are found while files are read: by `on_damage`, the first one ends the
/// run, or all are left out and counted, and the first few are named.
class DamageLog {
 public:
  /// Uses `on_damage` and `found`.
  explicit DamageLog(const DataOptions& options) : policy_(options.on_damage), found_(options.found) {}
  /// `problem`: "expected ..., found ...". Throws DataError with FAIL.
  void note(const RowPlace& place, const std::string& problem);
  int64_t count() const { return count_; }
  /// After the last row: says how many were left out beside those that were named.
  void finish(const std::string& what) const;

 private:
  DamagePolicy policy_;
  std::shared_ptr<FoundDamage> found_;
  int64_t count_ = 0;
};

}  // namespace lockstep::data
