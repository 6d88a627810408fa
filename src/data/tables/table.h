#pragma once

#include "data/dataset.h"

namespace lockstep::data {

/// Rows of CSV, TSV and NPY files. Fields: "features" float32 [n], numbers and categories (a field for each
/// value, one of which is 1); and what is to be predicted: "label" int32 of a category, or "target" float32
/// [1] of a number.
DatasetPair open_table_datasets(const DataOptions& options);

}  // namespace lockstep::data
