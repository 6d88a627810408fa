#pragma once

#include <cstdint>
#include <vector>

#include "ops/cpu/convolution_gathering.h"
#include "ops/cpu/replica_fold.h"

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
  /// What a thread computes of the weight's gradient.
  struct Share {
    Part channels, places;
  };
  struct Shares {
    int64_t channel_parts, place_parts;

    Shares(int threads, int64_t channels, int64_t places);
    int64_t count() const { return channel_parts * place_parts; }
    Share share(int64_t index, int64_t channels, int64_t places) const;
  };

  int64_t places() const { return sizes_.kernel * sizes_.kernel; }
  int64_t lanes() const;  ///< numbers of a row of packed weights
  int64_t packed_floats() const { return places() * lanes(); }
  int64_t padded_image_floats() const;
  int64_t padded_gradient_floats() const;
  int64_t share_channels() const;  ///< of the largest share
  int64_t share_image_floats() const;
  int64_t share_sums_floats() const;
  int64_t share_floats() const;  ///< of workspace
  void pack(const float* weight, const PixelClass* one, float* packed) const;
  void gather(const PixelClass& one, const float* padded, const float* packed, float* dx) const;
  void add_images(int64_t first, int64_t count, const float* dy, const float* x, float* dweight,
                  bool accumulate, float* workspace) const;
  void pad_channels(const Part& channels, const float* x, float* padded) const;
  /// `offsets`: of places, in the padded image of the share's channels.
  void fold_image(const Share& share, const float* dy, const float* padded, const int64_t* offsets,
                  float* sums) const;

  ConvolutionSizes sizes_;
  int replicas_, threads_;
  Shares sharing_;
  ReplicaFold fold_;
  Gathering gathering_;
  std::vector<int64_t> offsets_;  ///< of places, in a padded image
};

}  // namespace lockstep::ops
