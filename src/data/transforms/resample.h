#pragma once

#include <cstdint>
#include <vector>

#include "data/transforms/image.h"
#include "data/transforms/transform_options.h"

namespace lockstep::data {

/// Cuts a box out of an image, resizes it to height x width, and keeps a part of that.
struct Window {
  double y = 0, x = 0, box_height = 0, box_width = 0;  ///< in pixels of the input; ends may lie within pixels
  int64_t height = 0, width = 0;
  Region part;
  ResizeFilter filter = ResizeFilter::bilinear;

  /// A box of whole pixels, all of which is kept.
  static Window of(const Region& box, int64_t height, int64_t width, ResizeFilter filter);
  /// The same, of which only `inner` is kept.
  Window keep(const Region& inner) const;
  /// Whether pixels are only cut out.
  bool is_crop() const;
};

/// For each place along an axis: the first input pixel, and the weights of those that follow.
struct Taps {
  std::vector<int64_t> first;   // per output, and the number of weights before it:
  std::vector<int64_t> offset;  // one more than there are outputs
  std::vector<float> weights;
  int64_t begin = 0, end = 0;  ///< of all input pixels that are read
};

/// Outputs [first, first + count) of `outputs`, to which inputs [box, box + length) are resized. Pixels
/// outside the box do not count. Weights are Pillow's.
void make_taps(double box, double length, int64_t outputs, int64_t first, int64_t count, ResizeFilter filter,
               Taps& taps);

struct ResampleScratch {
  Taps rows, columns;
  std::vector<float> row;
};

/// Computes a window of an image of which it reads no more than necessary. If the source can reduce images
/// for free, by a factor that leaves the box at least as large as the result, it does. `out` takes
/// [part.height, part.width, channels].
void resample(PixelSource& source, const Window& window, float* out, ResampleScratch& scratch);

}  // namespace lockstep::data
