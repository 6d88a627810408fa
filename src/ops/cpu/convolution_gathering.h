#pragma once

#include <cstdint>
#include <vector>

#include "ops/cpu/convolution_images.h"

namespace lockstep::ops {

/// Pixels of x, every stride-th of each direction, that take part in pixels of y at the same places of the
/// kernel.
struct PixelClass {
  int64_t first_y, first_x;    ///< pixel
  int64_t kernel_y, kernel_x;  ///< the last place, which belongs to the first pixel of y
  int64_t rows, columns;       ///< places
  int64_t height, width;       ///< pixels
  /// The first pixel of y that the first pixel takes part in, among those of dy with its zeros.
  int64_t begin_y, begin_x;
};

/// What each pixel of x takes part in: places of the kernel and pixels of y. Pixels of y are those of dy with
/// zeros around it, as many as pixels of x would read beyond its borders.
class Gathering {
 public:
  explicit Gathering(const ConvolutionSizes& sizes);

  const std::vector<PixelClass>& classes() const { return classes_; }
  bool covers_all_pixels() const { return covers_all_pixels_; }
  /// From one place of the kernel that a pixel takes part in to the one before, and between their pixels of
  /// y.
  int64_t place_step() const { return place_step_; }
  int64_t pixel_step() const { return pixel_step_; }

  int64_t padded_row() const;     ///< numbers of dy's row with its zeros
  int64_t padded_floats() const;  ///< of an image of dy with its zeros
  void pad(int64_t images, const float* dy, float* padded) const;
  /// Where there are zeros around dy already.
  void fill(int64_t images, const float* dy, float* padded) const;

 private:
  int64_t lead() const;
  int64_t padded_size(int64_t out, int64_t pixels) const;
  int64_t first_place(int64_t pixel) const;
  int64_t places(int64_t pixel) const;
  int64_t last_place(int64_t pixel) const;
  int64_t begin(int64_t pixel) const;

  ConvolutionSizes sizes_;
  int64_t place_step_, pixel_step_;
  std::vector<PixelClass> classes_;
  bool covers_all_pixels_ = false;
};

}  // namespace lockstep::ops
