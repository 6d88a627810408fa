#pragma once

#include <cstdint>
#include <vector>

#include "ops/cpu/convolution_gathering.h"

namespace lockstep::ops {

/// A convolution whose groups have one channel and one unit, with the order of sums of Convolution
/// (convolution.h). Products of matrices would have a single column; here channels lie along registers, and
/// places of the kernel are gone through one after the other. Workspace is uninitialised memory, aligned to
/// 64 bytes.
class DepthwiseConvolution {
 public:
  /// REQUIRES: sizes.groups is the number of channels and of units, and above 1.
  DepthwiseConvolution(const ConvolutionSizes& sizes, int replicas, int threads);

  int64_t forward_bytes() const;  ///< of workspace
  int64_t input_gradient_bytes() const;
  int64_t weight_gradient_bytes() const;

  void forward(const float* x, const float* weight, const float* bias, float* y, float* workspace) const;
  void input_gradient(const float* dy, const float* weight, float* dx, float* workspace) const;
  void weight_gradient(const float* dy, const float* x, float* dweight, bool accumulate,
                       float* workspace) const;

 private:
  int64_t places() const { return sizes_.kernel * sizes_.kernel; }
  int64_t lanes() const;  ///< numbers of a row of packed weights
  int64_t packed_floats() const { return places() * lanes(); }
  int64_t padded_image_floats() const;
  int64_t padded_gradient_floats() const;
  int64_t sums_floats() const;
  void pack(const float* weight, const PixelClass* one, float* packed) const;
  void gather(const PixelClass& one, const float* padded, const float* packed, float* dx) const;
  void add_images(int64_t first, int64_t count, const float* dy, const float* x, float* dweight,
                  bool accumulate, float* workspace) const;
  void fold_image(int64_t first, int64_t count, const float* dy, const float* padded, float* sums) const;

  ConvolutionSizes sizes_;
  int replicas_, threads_;
  Gathering gathering_;
  std::vector<int64_t> offsets_;  ///< of places, in a padded image
};

}  // namespace lockstep::ops
