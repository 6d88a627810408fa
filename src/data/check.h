#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "data/dataset.h"

namespace lockstep::data {

/// What was found in the samples that train, or in those that evaluate.
struct CheckedPart {
  std::string name;                   ///< "train" or "eval"
  std::string description;            ///< of the data set
  int64_t samples = 0;                ///< that were looked at
  std::vector<SampleDamage> damaged;  ///< by sample
};

struct CheckedData {
  std::vector<SampleDamage> on_opening;  ///< found before there were samples: headers, rows, whole files
  std::vector<CheckedPart> parts;
  int64_t damaged() const;
};

/// Opens the data and looks at every sample once, on `threads` threads (0: as many as the host has cores).
/// Damage ends nothing: it is listed. Of files that are read as a whole all are looked at; of one of them the
/// first damage is told, of CIFAR's every record, of tokens how many there are besides. Throws
/// ConfigError, and IoError if there are no files.
CheckedData check_data(DataOptions options, int threads);

}  // namespace lockstep::data
