#pragma once

#include "data/data_options.h"
#include "data/transforms/image.h"
#include "pixels/packed_sample.h"

namespace lockstep::data {

/// How samples of these options are packed that become images of this shape: what their data sets will say
/// (Dataset::packed), without opening them. Throws ConfigError, which names the transform that GPUs cannot
/// do.
pixels::PackedLayout packed_layout(const DataOptions& options, const ImageShape& image, bool training);

}  // namespace lockstep::data
