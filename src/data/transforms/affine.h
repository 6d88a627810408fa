#pragma once

#include <vector>

#include "data/transforms/image.h"

namespace lockstep::data {

/// Degrees clockwise, then a shift in pixels, a scale, and a shear along the rows in degrees, about the
/// image's middle.
struct AffineMotion {
  double angle = 0, shift_x = 0, shift_y = 0, scale = 1, shear = 0;
};

/// Moves an image, bilinear; what comes from outside it is `value`. As torchvision's affine on tensors.
void move_image(const AffineMotion& motion, float value, const ImageShape& shape, float* pixels,
                std::vector<float>& scratch);

}  // namespace lockstep::data
