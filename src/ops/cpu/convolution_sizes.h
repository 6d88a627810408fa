#pragma once

#include <cstdint>

namespace lockstep::ops {

/// Of row-major tensors: x is [batch, height, width, channels], y [batch, out_height, out_width, units], the
/// weight [units, kernel, kernel, channels / groups]. Group g makes units g units / groups and following of
/// channels g channels / groups and following.
struct ConvolutionSizes {
  int64_t batch, height, width, channels;
  int64_t kernel, stride, padding;
  int64_t out_height, out_width, units;
  int64_t groups = 1, dilation = 1;  ///< groups: divides channels and units

  int64_t pixels() const { return out_height * out_width; }    ///< of an output image
  int64_t image() const { return height * width * channels; }  ///< numbers of an image of x
  int64_t group_channels() const { return channels / groups; }
  int64_t group_units() const { return units / groups; }
  /// Numbers that make one of y.
  int64_t window() const { return kernel * kernel * group_channels(); }
  /// Pixels from the first row of a window to the last, both included.
  int64_t extent() const { return (kernel - 1) * dilation + 1; }
  int64_t padded_height() const { return height + 2 * padding; }
  int64_t padded_width() const { return width + 2 * padding; }
  /// Of an image with its padding, to where its numbers end.
  int64_t padded_row() const { return padded_width() * channels; }
};

}  // namespace lockstep::ops
