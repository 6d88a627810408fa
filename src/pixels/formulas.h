#pragma once

#include <cmath>

#include "pixels/packed_sample.h"

// Formulas of torchvision's functions on tensors, for values in [0, 1]: on processors and GPUs the same, bit
// by bit. Images have 1 or 3 channels if a formula is about colors; those of one channel have no
// saturation and no hue.

namespace lockstep::pixels {

inline constexpr float kByteStep = 1.0f / 255;

LOCKSTEP_HOST_DEVICE inline float value_of(uint8_t byte) { return static_cast<float>(byte) * kByteStep; }

LOCKSTEP_HOST_DEVICE inline float unit(float value) {
  return value < 0.0f ? 0.0f : value > 1.0f ? 1.0f : value;
}

/// The nearest byte. Bytes become values and bytes again without a change.
LOCKSTEP_HOST_DEVICE inline uint8_t byte_of(float value) {
  return static_cast<uint8_t>(static_cast<int32_t>(unit(value) * 255.0f + 0.5f));
}

LOCKSTEP_HOST_DEVICE inline float blend(float value, float other, float factor) {
  return unit(factor * value + (1 - factor) * other);
}

LOCKSTEP_HOST_DEVICE inline float gray_of(const float* pixel) {
  return 0.2989f * pixel[0] + 0.587f * pixel[1] + 0.114f * pixel[2];
}

/// Hue, saturation and value of a pixel, its hue turned, and back.
LOCKSTEP_HOST_DEVICE inline void turn_hue(float turns, float* pixel) {
  const float red = pixel[0], green = pixel[1], blue = pixel[2];
  const float more = red < green ? green : red, less = green < red ? green : red;
  const float most = more < blue ? blue : more, least = blue < less ? blue : less;
  const float spread = most - least;
  if (spread == 0) return;
  const float r = (most - red) / spread, g = (most - green) / spread, b = (most - blue) / spread;
  float hue = most == red ? b - g : most == green ? 2 + r - b : 4 + g - r;
  hue = std::fmod(hue / 6 + 1, 1.0f) + turns;
  hue -= std::floor(hue);
  const float saturation = spread / most, sector = std::floor(hue * 6), part = hue * 6 - sector;
  const float p = unit(most * (1 - saturation)), q = unit(most * (1 - saturation * part)),
              t = unit(most * (1 - saturation * (1 - part)));
  const int which = static_cast<int>(sector) % 6;
  pixel[0] = which == 0 || which == 5 ? most : which == 1 ? q : which == 4 ? t : p;
  pixel[1] = which == 1 || which == 2 ? most : which == 3 ? q : which == 0 ? t : p;
  pixel[2] = which == 3 || which == 4 ? most : which == 5 ? q : which == 2 ? t : p;
}

LOCKSTEP_HOST_DEVICE inline float normalized(float value, float mean, float deviation) {
  return (value - mean) / deviation;
}

LOCKSTEP_HOST_DEVICE inline float averaged(float own, float other, float share) {
  return (1 - share) * own + share * other;
}

/// The mean of an image's gray is summed in so many parts, pixel i in part i modulo that, each in ascending
/// order. Then the upper half of the parts is added to the lower one, again and again.
inline constexpr int kGrayParts = 256;

/// The term of a pixel.
LOCKSTEP_HOST_DEVICE inline double gray_term(const float* pixel, int32_t channels) {
  return static_cast<double>(channels == 3 ? gray_of(pixel) : pixel[0]);
}

/// A step that changes the values of a pixel; other kinds change nothing.
LOCKSTEP_HOST_DEVICE inline void change_pixel(const Step& step, int32_t channels, float* pixel) {
  const float factor = step.value[0];
  switch (step.kind) {
    case StepKind::brightness:
      for (int32_t c = 0; c < channels; ++c) pixel[c] = unit(factor * pixel[c]);
      break;
    case StepKind::contrast:
      for (int32_t c = 0; c < channels; ++c) pixel[c] = blend(pixel[c], step.value[1], factor);
      break;
    case StepKind::saturation:
      if (channels == 3) {
        const float gray = gray_of(pixel);
        for (int32_t c = 0; c < 3; ++c) pixel[c] = blend(pixel[c], gray, factor);
      }
      break;
    case StepKind::hue:
      if (channels == 3) turn_hue(factor, pixel);
      break;
    case StepKind::gray:
      if (channels == 3) pixel[0] = pixel[1] = pixel[2] = gray_of(pixel);
      break;
    case StepKind::normalize:
      for (int32_t c = 0; c < channels; ++c)
        pixel[c] = normalized(pixel[c], step.value[c], step.value[3 + c]);
      break;
    default:
      break;
  }
}

LOCKSTEP_HOST_DEVICE inline bool is_in_rectangle(const Step& step, int32_t y, int32_t x) {
  return y >= step.place[0] && y < step.place[0] + step.place[2] && x >= step.place[1] &&
         x < step.place[1] + step.place[3];
}

/// From where a pixel comes before some steps: from place (y, x) of what they begin with, or from step
/// `first` - 1, which made all its channels `fill`. Steps from `first` on change its values.
struct Origin {
  int32_t y, x;
  int32_t first = 0;
  bool is_filled = false;
  float fill = 0;
};

LOCKSTEP_HOST_DEVICE inline Origin origin_of(const Extent& extent, const Step* steps, int32_t count,
                                             int32_t y, int32_t x) {
  Origin origin{y, x};
  for (int32_t k = count - 1; k >= 0; --k) {
    const Step& step = steps[k];
    bool outside = false;
    if (step.kind == StepKind::mirror) {
      if (step.place[0] != 0) origin.x = extent.width - 1 - origin.x;
      if (step.place[1] != 0) origin.y = extent.height - 1 - origin.y;
    } else if (step.kind == StepKind::shift) {
      origin.y += step.place[0];
      origin.x += step.place[1];
      outside = origin.y < 0 || origin.y >= extent.height || origin.x < 0 || origin.x >= extent.width;
    } else if (step.kind == StepKind::erase) {
      outside = is_in_rectangle(step, origin.y, origin.x);
    }
    if (!outside) continue;
    origin.first = k + 1;
    origin.is_filled = true;
    origin.fill = step.value[0];
    return origin;
  }
  return origin;
}

LOCKSTEP_HOST_DEVICE inline void change_from(const Origin& origin, const Step* steps, int32_t count,
                                             int32_t channels, float* pixel) {
  for (int32_t k = origin.first; k < count; ++k) change_pixel(steps[k], channels, pixel);
}

LOCKSTEP_HOST_DEVICE inline void fill_pixel(float value, int32_t channels, float* pixel) {
  for (int32_t c = 0; c < channels; ++c) pixel[c] = value;
}

/// Pixel (y, x) of an image of bytes after its steps. REQUIRES: at most 3 channels.
LOCKSTEP_HOST_DEVICE inline void pixel_after(const uint8_t* image, const Extent& extent, const Step* steps,
                                             int32_t count, int32_t y, int32_t x, float* pixel) {
  const Origin origin = origin_of(extent, steps, count, y, x);
  if (origin.is_filled) {
    fill_pixel(origin.fill, extent.channels, pixel);
  } else {
    const uint8_t* from = image + (int64_t{origin.y} * extent.width + origin.x) * extent.channels;
    for (int32_t c = 0; c < extent.channels; ++c) pixel[c] = value_of(from[c]);
  }
  change_from(origin, steps, count, extent.channels, pixel);
}

/// Pixel (y, x) of a packed sample after `count` of the steps that follow mixing.
LOCKSTEP_HOST_DEVICE inline void packed_pixel(const PackedLayout& layout, const PackedSample& sample,
                                              int32_t count, int32_t y, int32_t x, float* pixel) {
  const Extent& extent = layout.image;
  const Origin origin = origin_of(extent, sample.after, count, y, x);
  if (origin.is_filled) {
    fill_pixel(origin.fill, extent.channels, pixel);
    return change_from(origin, sample.after, count, extent.channels, pixel);
  }
  const StepKind mixing = layout.mixes ? sample.mixing->kind : StepKind::none;
  const bool is_partner = mixing == StepKind::box && is_in_rectangle(*sample.mixing, origin.y, origin.x);
  pixel_after(is_partner ? sample.partner : sample.image, extent,
              is_partner ? sample.partner_steps : sample.steps, layout.steps, origin.y, origin.x, pixel);
  if (mixing == StepKind::share) {
    float other[3];
    pixel_after(sample.partner, extent, sample.partner_steps, layout.steps, origin.y, origin.x, other);
    for (int32_t c = 0; c < extent.channels; ++c)
      pixel[c] = averaged(pixel[c], other[c], sample.mixing->value[0]);
  }
  change_from(origin, sample.after, count, extent.channels, pixel);
}

}  // namespace lockstep::pixels
