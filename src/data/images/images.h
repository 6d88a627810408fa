#pragma once

#include <optional>
#include <string>

#include "data/dataset.h"
#include "data/images/image_list.h"
#include "data/images/inspection.h"

namespace lockstep::data {

/// Fields "image" float32 [height, width, channels] and "label" int32 []: images in files, decoded whenever
/// they are read, upright and transformed. Files are listed, and their headers read, when the data are
/// opened; identity() is that of their labels, sizes and first 4 KiB. Throws as open_datasets does.
DatasetPair open_image_datasets(const DataOptions& options);

/// Images whose headers are good, of training or of evaluation.
struct ImagePart {
  std::string source;  ///< the folder or the list
  Inspection inspection;
};
struct ImageParts {
  ImageClasses classes;
  std::optional<ImagePart> train, eval;
};
/// What open_image_datasets() opens, before anything is decoded. Throws likewise.
ImageParts inspect_image_data(const DataOptions& options);

}  // namespace lockstep::data
