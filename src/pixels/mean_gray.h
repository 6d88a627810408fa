#pragma once

#include "pixels/step.h"

namespace lockstep::pixels {

/// The mean of an image's gray, in the order of GPUs (kGrayParts).
float mean_gray(const Extent& extent, const float* pixels);

}  // namespace lockstep::pixels
