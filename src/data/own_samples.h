#pragma once

#include "data/dataset.h"
#include "lockstep/data.h"

namespace lockstep {

/// What lockstep itself sees of a program's samples.
struct SamplesAccess {
  /// Null if there are none.
  static std::shared_ptr<const data::Dataset> dataset_of(const Samples& samples);
};

namespace data {

/// Those of options.own_train and own_eval. Throws ConfigError if there are none: a config was read
/// without the program whose samples it speaks of.
DatasetPair open_own_datasets(const DataOptions& options);

}  // namespace data
}  // namespace lockstep
