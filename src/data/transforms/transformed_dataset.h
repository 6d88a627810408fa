#pragma once

#include <memory>
#include <span>

#include "data/dataset.h"
#include "data/transforms/transform_options.h"

namespace lockstep::data {

/// `base` with every field of shape [height, width, channels] transformed. `first_place`: of the first
/// transform in the whole list, of which these may be the end. Throws ConfigError if it has no
/// such field of float32, or if a transform cannot take its images.
std::shared_ptr<const Dataset> transform_images(std::shared_ptr<const Dataset> base,
                                                std::span<const TransformOptions> transforms,
                                                uint32_t first_place = 0);

}  // namespace lockstep::data
