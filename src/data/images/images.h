#pragma once

#include "data/dataset.h"

namespace lockstep::data {

/// Fields "image" float32 [height, width, channels] and "label" int32 []: images in files, decoded whenever
/// they are read, upright and transformed. Files are listed, and their headers read, when the data are
/// opened; identity() is that of their labels, sizes and first 4 KiB. Throws as open_datasets does.
DatasetPair open_image_datasets(const DataOptions& options);

}  // namespace lockstep::data
