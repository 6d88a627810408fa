#pragma once

#include <cstdint>

#include "ops/cpu/convolution_images.h"

namespace lockstep::ops {

/// The weight's gradient of a convolution of many channels (convolution.h, which states its order of sums):
/// dy of some pixels is packed for all units, then panels of windows are copied out of the images, one after
/// the other, for some of these pixels, and multiplied by all of that while they are in the first cache.
/// Images are not padded: what a window has beyond their borders is written as zeros. Pixels of several small
/// images make up for a large one, so that the gradient is read and written rarely.
class ConvolutionWeightPanels {
 public:
  ConvolutionWeightPanels(const ConvolutionSizes& sizes, int threads);

  /// Whether it is better than windows that are copied whole: a panel that is copied meets many units.
  static bool suits(const ConvolutionSizes& sizes) {
    constexpr int64_t kManyUnits = 96;
    return sizes.group_channels() % kPart == 0 && sizes.group_units() >= kManyUnits;
  }

  int64_t bytes() const;  ///< of workspace
  /// Chains of `count` images from `first` on; accumulating, they go on with what is there.
  void add_images(int64_t first, int64_t count, const float* dy, const float* x, float* dweight,
                  bool accumulate, float* workspace) const;

 private:
  static constexpr int64_t kPart = 16;  ///< numbers of a panel's row that are copied at once

  int64_t group_strips() const;
  int64_t strip_floats() const;
  int64_t parts() const;
  void pack(const float* dy, int64_t first, int64_t count, float* strips) const;
  void add_part(int64_t part, const float* x, int64_t first, int64_t count, bool goes_on, const float* strips,
                float* panel, float* dweight) const;
  void copy_panel(int64_t group, int64_t column, int64_t width, const float* x, int64_t first, int64_t count,
                  float* panel) const;

  ConvolutionSizes sizes_;
  int threads_;
  Sharing sharing_;  ///< of a group's gradient
  int64_t at_once_;  ///< pixels that are packed
};

}  // namespace lockstep::ops
