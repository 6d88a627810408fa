#include "data/transforms/color.h"

#include <algorithm>

#include "pixels/formulas.h"
#include "pixels/mean_gray.h"

namespace lockstep::data {

void adjust_brightness(const ImageShape& shape, float factor, float* values) {
  for (int64_t i = 0; i < shape.count(); ++i) values[i] = pixels::unit(factor * values[i]);
}

void adjust_contrast(const ImageShape& shape, float factor, float* values) {
  const float mean = pixels::mean_gray(extent_of(shape), values);
  for (int64_t i = 0; i < shape.count(); ++i) values[i] = pixels::blend(values[i], mean, factor);
}

void adjust_saturation(const ImageShape& shape, float factor, float* values) {
  if (shape.channels != 3) return;
  for (int64_t i = 0; i < shape.pixels(); ++i, values += 3) {
    const float gray = pixels::gray_of(values);
    for (int c = 0; c < 3; ++c) values[c] = pixels::blend(values[c], gray, factor);
  }
}

void adjust_hue(const ImageShape& shape, float turns, float* values) {
  if (shape.channels != 3) return;
  for (int64_t i = 0; i < shape.pixels(); ++i) pixels::turn_hue(turns, values + 3 * i);
}

void make_gray(const ImageShape& shape, float* values) {
  if (shape.channels != 3) return;
  for (int64_t i = 0; i < shape.pixels(); ++i, values += 3) std::fill_n(values, 3, pixels::gray_of(values));
}

void round_to_bytes(int64_t count, float* values) {
  for (int64_t i = 0; i < count; ++i) values[i] = pixels::value_of(pixels::byte_of(values[i]));
}

void to_bytes(int64_t count, const float* values, uint8_t* bytes) {
  for (int64_t i = 0; i < count; ++i) bytes[i] = pixels::byte_of(values[i]);
}

}  // namespace lockstep::data
