#pragma once

#include <cstdint>
#include <string>

#include "data/data_options.h"

namespace lockstep::data {

/// What becomes of damaged rows that are found while files are read: by `on_damage`, the first one ends the
/// run, or all are left out and counted, and the first few are named.
class DamageLog {
 public:
  explicit DamageLog(DamagePolicy policy) : policy_(policy) {}
  /// `message`: "FILE: line 7 (byte 120): expected ...". Throws DataError with FAIL.
  void note(const std::string& message);
  int64_t count() const { return count_; }
  /// After the last row: says how many were left out beside those that were named.
  void finish(const std::string& what) const;

 private:
  DamagePolicy policy_;
  int64_t count_ = 0;
};

}  // namespace lockstep::data
