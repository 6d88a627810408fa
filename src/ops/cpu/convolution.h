#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "ops/cpu/chained_products.h"

namespace lockstep::ops {

/// Of row-major tensors: x is [batch, height, width, channels], y [batch, out_height, out_width, units], the
/// weight [units, kernel, kernel, channels].
struct ConvolutionSizes {
  int64_t batch, height, width, channels;
  int64_t kernel, stride, padding;
  int64_t out_height, out_width, units;

  int64_t pixels() const { return out_height * out_width; }      ///< of an output image
  int64_t window() const { return kernel * kernel * channels; }  ///< numbers that make one of y
  int64_t image() const { return height * width * channels; }    ///< numbers of an image of x
  int64_t padded_height() const { return height + 2 * padding; }
  int64_t padded_width() const { return width + 2 * padding; }
};

/// A convolution as products of matrices of which one is never whole in memory: a row for each pixel of y,
/// which is the window of x that makes it.
///
/// Every element of y is one chain of fused multiply-adds over its window, padding included, row by row of
/// the kernel; the bias is added last. An element of dx is the sum over the pixels of y that it takes part
/// in, in ascending order, of chains over units. One of the weight's gradient is a chain over the pixels of
/// all images of a replica; the chains' sum is along the canonical tree (layout/canonical_tree.h). So bits
/// depend neither on how many images are computed at once, nor on threads or the instruction set.
///
/// How it is tiled: docs/cpu-products.md. Workspace is uninitialised memory, aligned to 64 bytes.
class Convolution {
 public:
  Convolution(const ConvolutionSizes& sizes, int replicas, int threads);

  int64_t forward_bytes() const;  ///< of workspace
  int64_t input_gradient_bytes() const;
  int64_t weight_gradient_bytes() const;

  /// bias: null if there is none.
  void forward(const float* x, const float* weight, const float* bias, float* y, float* workspace) const;
  void input_gradient(const float* dy, const float* weight, float* dx, float* workspace) const;
  /// Accumulating goes on with the chains. REQUIRES then: one replica.
  void weight_gradient(const float* dy, const float* x, float* dweight, bool accumulate,
                       float* workspace) const;

 private:
  /// Pixels of x, every stride-th of each direction, that take part in pixels of y at the same places of the
  /// kernel.
  struct PixelClass {
    int64_t first_y, first_x;    // pixel
    int64_t kernel_y, kernel_x;  // the last place, which belongs to the first pixel of y
    int64_t rows, columns;       // places
    int64_t height, width;       // pixels
  };

  bool reads_planes() const;
  int64_t packed_units_floats() const;
  int64_t packed_weight_floats() const;
  int64_t forward_thread_floats() const;
  void pack_units(const float* weight, const float* bias, float* panels) const;
  void pack_weight(const float* weight, float* packed) const;
  void forward_windows(const float* x, const float* panels, float* y, float* padded) const;
  void forward_planes(const float* x, const float* packed_weight, const float* bias, float* y,
                      float* workspace) const;
  bool gathers() const;
  void find_pixel_classes();
  int64_t gathered_lead() const;
  int64_t gathered_size(int64_t out, int64_t pixels) const;
  int64_t gathered_floats() const;
  int64_t gathered_panel_floats() const;
  void pack_for_gathering(const float* weight, float* panels) const;
  void gather_image(const float* dy, const float* panels, float* dx, float* padded) const;
  int64_t input_thread_floats() const;
  int64_t weight_thread_floats() const;
  int64_t pixels_at_once() const;  ///< of windows in rows
  void scatter_image(const float* dy, const float* weight, float* dx, float* workspace) const;
  void add_weight_gradient(int64_t first, int64_t count, const float* dy, const float* x, float* dweight,
                           bool accumulate, float* workspace) const;

  ConvolutionSizes sizes_;
  int replicas_, threads_;
  std::optional<ChainedProducts> plain_;  // of windows of one pixel, which are products of whole matrices
  std::vector<int64_t> offsets_;          // of a window's numbers, in planes
  std::vector<PixelClass> classes_;
  bool gathers_ = false;  // the gradient of x
};

}  // namespace lockstep::ops
