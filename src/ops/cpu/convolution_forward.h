#pragma once

#include <cstdint>
#include <vector>

#include "ops/cpu/convolution_images.h"

namespace lockstep::ops {

/// y of a convolution (convolution.h, which states its order of sums). Usually y = windows weight^T: a row
/// for each pixel, whose window is read where it lies in the image; units are columns. Few units would leave
/// most of a register empty: then y^T = weight windows^T, where pixels are columns, and are read in planes.
class ConvolutionForward {
 public:
  ConvolutionForward(const ConvolutionSizes& sizes, int threads);

  int64_t bytes() const;  ///< of workspace
  /// bias: null if there is none.
  void run(const float* x, const float* weight, const float* bias, float* y, float* workspace) const;

 private:
  int64_t group_panel_floats() const;
  int64_t packed_weight_floats() const;
  int64_t thread_floats() const;
  int64_t images_at_once() const;
  void pack_units(const float* weight, const float* bias, float* panels) const;
  void pack_weight(const float* weight, float* packed) const;
  void by_windows(int64_t images, const float* x, const float* panels, float* y, float* padded) const;
  void by_planes(const float* x, const float* packed_weight, const float* bias, float* y,
                 float* workspace) const;

  ConvolutionSizes sizes_;
  int threads_;
  WindowPieces pieces_;
  bool reads_planes_;
  std::vector<int64_t> offsets_;  ///< of the numbers of a window of the first group, in planes
};

}  // namespace lockstep::ops
