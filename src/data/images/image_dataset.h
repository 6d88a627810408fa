#pragma once

#include <memory>
#include <string>
#include <vector>

#include "data/dataset.h"
#include "data/images/file_pixels.h"
#include "data/images/image_list.h"
#include "data/images/image_store.h"

namespace lockstep::data {

struct ImageDatasetOptions {
  ImageClasses classes;
  std::string source;  ///< for people: where the images are
  int64_t left_out = 0;
  PixelOptions pixels;
  std::vector<TransformOptions> transforms;
  DamagePolicy on_damage = DamagePolicy::fail;
};

/// Fields "image" float32 [height, width, channels] and "label" int32 [], decoded whenever they are read,
/// upright and transformed. identity() is that of labels, sizes and the first 4 KiB. Throws DataError if the
/// store is empty, and ConfigError if images come out of the transforms with several shapes.
std::shared_ptr<const Dataset> make_image_dataset(std::unique_ptr<const ImageStore> store,
                                                  ImageDatasetOptions options);

/// identity() of such a data set.
uint64_t identity_of(const ImageStore& store);

/// Throws ConfigError unless training and evaluation images have one shape.
void require_same_shape(const Dataset& train, const Dataset& eval);

}  // namespace lockstep::data
