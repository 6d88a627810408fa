#pragma once

#include <cstdint>

#include "base/host_device.h"

namespace lockstep::pixels {

/// What a step does to an image. Mirror, shift and erase say from where a pixel comes; the others change the
/// values of a pixel; share and box mix an image with another one.
enum class StepKind : int32_t {
  none,
  mirror,      ///< place[0]: left and right; place[1]: top and bottom
  shift,       ///< takes pixels from place[0] rows below and place[1] columns to the right; value[0] outside
  erase,       ///< rows from place[0], columns from place[1], height place[2], width place[3]: value[0]
  brightness,  ///< by the factor value[0]
  contrast,    ///< likewise, towards the mean of the image's gray, value[1]
  saturation,  ///< likewise
  hue,         ///< turned by value[0] turns
  gray,
  normalize,  ///< (value - value[channel]) / value[3 + channel]
  share,      ///< averaged with another image, which has the share value[0]
  box,        ///< pixels of the rectangle, as that of erase, are another image's
};

/// One step with the numbers drawn for it: all that a processor or a GPU needs to know.
struct Step {
  StepKind kind = StepKind::none;
  int32_t place[4] = {};
  float value[6] = {};
  bool operator==(const Step&) const = default;
};
static_assert(sizeof(Step) == 44);

/// Of an image whose channels lie side by side.
struct Extent {
  int32_t height = 0, width = 0, channels = 0;
  LOCKSTEP_HOST_DEVICE int64_t pixels() const { return int64_t{height} * width; }
  LOCKSTEP_HOST_DEVICE int64_t count() const { return pixels() * channels; }
  bool operator==(const Extent&) const = default;
};

}  // namespace lockstep::pixels
