#pragma once

#include <cstdint>

#include "ops/cpu/convolution_gathering.h"

namespace lockstep::ops {

/// dx of a convolution (convolution.h, which states its order of sums), in one of two ways, chosen by sizes,
/// with the same bits (if weights are finite: gathering multiplies them by zeros beyond dy's borders).
/// Gathered: a row of products for each pixel of x, whose window is what dy has of the pixels of y that it
/// takes part in. Scattered, if a pixel of x takes part in few: windows' gradients = dy weight, some
/// pixels at a time, are added where they belong.
class ConvolutionInputGradient {
 public:
  ConvolutionInputGradient(const ConvolutionSizes& sizes, int threads);

  int64_t bytes() const;  ///< of workspace
  void run(const float* dy, const float* weight, float* dx, float* workspace) const;

 private:
  bool is_better_gathered() const;
  int64_t panel_floats() const;
  int64_t images_at_once() const;
  int64_t thread_floats() const;
  void pack(const float* weight, float* panels) const;
  void gather(int64_t images, const float* dy, const float* panels, float* dx, float* padded) const;
  void gather_class(const PixelClass& one, int64_t images, const float* padded, const float* panels,
                    float* dx) const;
  void scatter(const float* dy, const float* weight, float* dx, float* workspace) const;
  void add_windows(const float* windows, int64_t first, int64_t count, float* padded) const;

  ConvolutionSizes sizes_;
  int threads_;
  WindowPieces pieces_;
  Gathering gathering_;
  bool gathers_;
};

}  // namespace lockstep::ops
