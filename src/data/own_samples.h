#pragma once

#include "data/dataset.h"
#include "lockstep/data.h"

namespace lockstep {

/// Lockstep's own access to a program's samples.
struct SamplesAccess {
  /// Null if there are none.
  static std::shared_ptr<const data::Dataset> dataset_of(const Samples& samples);
};

namespace data {

/// The data of options.own_train and own_eval. Throws ConfigError if there is none: the config was read
/// without the program that provides the samples.
DatasetPair open_own_datasets(const DataOptions& options);

}  // namespace data
}  // namespace lockstep
