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

/// Makes each value that of the nearest byte, or that byte.
void round_to_bytes(int64_t count, float* values);
void to_bytes(int64_t count, const float* values, uint8_t* bytes);

}  // namespace lockstep::data
