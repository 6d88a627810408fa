#pragma once

#include "data/dataset.h"

namespace lockstep::data {

/// What pack_records() has written, as the data set that was packed: the same samples, classes and identity.
/// Images are decoded and transformed as they are from files; other samples lie in the records as they are.
/// Throws as open_datasets does: DataError names a shard that is damaged, not complete, or of another
/// packing.
DatasetPair open_record_datasets(const DataOptions& options);

}  // namespace lockstep::data
