#include "data/transforms/color.h"

#include <algorithm>
#include <cmath>

namespace lockstep::data {
namespace {

float gray_of(const float* pixel) { return 0.2989f * pixel[0] + 0.587f * pixel[1] + 0.114f * pixel[2]; }

float unit(float value) { return std::clamp(value, 0.0f, 1.0f); }

float blend(float value, float other, float factor) { return unit(factor * value + (1 - factor) * other); }

/// Hue, saturation and value of a pixel, its hue turned, and back.
void turn_hue(float turns, float* pixel) {
  const float red = pixel[0], green = pixel[1], blue = pixel[2];
  const float most = std::max({red, green, blue}), least = std::min({red, green, blue});
  const float spread = most - least;
  if (spread == 0) return;
  const float r = (most - red) / spread, g = (most - green) / spread, b = (most - blue) / spread;
  float hue = most == red ? b - g : most == green ? 2 + r - b : 4 + g - r;
  hue = std::fmod(hue / 6 + 1, 1.0f) + turns;
  hue -= std::floor(hue);
  const float saturation = spread / most, sector = std::floor(hue * 6), part = hue * 6 - sector;
  const float p = unit(most * (1 - saturation)), q = unit(most * (1 - saturation * part)),
              t = unit(most * (1 - saturation * (1 - part)));
  const float table[6][3] = {{most, t, p}, {q, most, p}, {p, most, t},
                             {p, q, most}, {t, p, most}, {most, p, q}};
  std::copy_n(table[static_cast<int>(sector) % 6], 3, pixel);
}

}  // namespace

void adjust_brightness(const ImageShape& shape, float factor, float* pixels) {
  for (int64_t i = 0; i < shape.count(); ++i) pixels[i] = unit(factor * pixels[i]);
}

void adjust_contrast(const ImageShape& shape, float factor, float* pixels) {
  double sum = 0;
  for (int64_t i = 0; i < shape.pixels(); ++i)
    sum += static_cast<double>(shape.channels == 3 ? gray_of(pixels + 3 * i) : pixels[i]);
  const auto mean = static_cast<float>(sum / static_cast<double>(shape.pixels()));
  for (int64_t i = 0; i < shape.count(); ++i) pixels[i] = blend(pixels[i], mean, factor);
}

void adjust_saturation(const ImageShape& shape, float factor, float* pixels) {
  if (shape.channels != 3) return;
  for (int64_t i = 0; i < shape.pixels(); ++i, pixels += 3) {
    const float gray = gray_of(pixels);
    for (int c = 0; c < 3; ++c) pixels[c] = blend(pixels[c], gray, factor);
  }
}

void adjust_hue(const ImageShape& shape, float turns, float* pixels) {
  if (shape.channels != 3) return;
  for (int64_t i = 0; i < shape.pixels(); ++i) turn_hue(turns, pixels + 3 * i);
}

void make_gray(const ImageShape& shape, float* pixels) {
  if (shape.channels != 3) return;
  for (int64_t i = 0; i < shape.pixels(); ++i, pixels += 3) std::fill_n(pixels, 3, gray_of(pixels));
}

}  // namespace lockstep::data
