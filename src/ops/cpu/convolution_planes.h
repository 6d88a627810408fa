#pragma once

#include <algorithm>
#include <cstring>

#include "ops/cpu/convolution_images.h"

namespace lockstep::ops {

/// An image with its padding, as planes: one for each channel, and of those one for each place that rows and
/// columns have between windows. (With a stride of 2 even and odd rows are in planes of their own, and so are
/// columns.) Places that no window reads have none. What a place of the kernel reads for the pixels of y, row
/// after row, then lies side by side in one plane, but for what stands between the end of a row of y and that
/// of the plane.
struct Planes {
  int64_t stride, kept, rows, row, plane;

  explicit Planes(const ConvolutionSizes& sizes)
      : stride(sizes.stride),
        kept(std::min(sizes.stride, sizes.extent())),
        rows(divided_up(sizes.padded_height(), stride)),
        row(divided_up(sizes.padded_width(), stride)),
        plane(rows * row) {}

  /// Panels read up to their width behind the last plane's end.
  int64_t floats(const ConvolutionSizes& sizes) const {
    return whole_line(channel_floats() * sizes.channels + kPanelColumns);
  }
  int64_t channel_floats() const { return plane * kept * kept; }
  /// Of a number of the padded image. REQUIRES: y % stride and x % stride are below `kept`.
  int64_t offset(int64_t channel, int64_t y, int64_t x) const {
    return ((channel * kept + y % stride) * kept + x % stride) * plane + y / stride * row + x / stride;
  }

  void fill(const ConvolutionSizes& sizes, const float* x, float* to) const {
    std::fill_n(to, floats(sizes), 0.0f);
    for (int64_t y = 0; y < sizes.height; ++y, x += sizes.width * sizes.channels) {
      const int64_t padded_y = y + sizes.padding;
      if (padded_y % stride >= kept) continue;
      if (stride == 1 && sizes.channels == 1) {
        std::memcpy(to + offset(0, padded_y, sizes.padding), x,
                    static_cast<size_t>(sizes.width * kNumberBytes));
        continue;
      }
      for (int64_t place = 0; place < kept; ++place) {
        // The first column that has this place between windows.
        const int64_t first = ((place - sizes.padding) % stride + stride) % stride;
        if (first >= sizes.width) continue;
        loops().transpose(to + offset(0, padded_y, first + sizes.padding), channel_floats(),
                          x + first * sizes.channels, stride * sizes.channels,
                          divided_up(sizes.width - first, stride), sizes.channels, nullptr);
      }
    }
  }
};

}  // namespace lockstep::ops
