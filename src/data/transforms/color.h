#pragma once

#include "data/transforms/image.h"

namespace lockstep::data {

// Formulas of torchvision's functions on tensors, for values in [0, 1], in place. Images of one channel have
// no saturation and no hue.

void adjust_brightness(const ImageShape& shape, float factor, float* pixels);  ///< towards black
void adjust_contrast(const ImageShape& shape, float factor, float* pixels);  ///< towards the mean of its gray
void adjust_saturation(const ImageShape& shape, float factor, float* pixels);  ///< towards gray
void adjust_hue(const ImageShape& shape, float turns, float* pixels);  ///< around the circle of colors
void make_gray(const ImageShape& shape, float* pixels);

}  // namespace lockstep::data
