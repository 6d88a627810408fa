#pragma once

#include <memory>
#include <span>
#include <vector>

#include "data/transforms/transform.h"

namespace lockstep::data {

/// What one thread needs to compute images. Grows to the largest, then stays.
struct TransformScratch {
  ResampleScratch resampling;
  std::vector<float> image, other, step;
};

/// Transforms in their order, compiled once. What cuts and resizes at the beginning becomes one window, so
/// that only this part of an image is decoded. Immutable.
class TransformChain {
 public:
  /// `first_place`: of the first transform in the whole list, from which its random numbers are drawn. Throws
  /// ConfigError, which names the transform, for options that make no sense, and for those that mix samples:
  /// they are not about one image (mixed_dataset.h).
  explicit TransformChain(std::span<const TransformOptions> options, uint32_t first_place = 0);

  bool empty() const { return transforms_.empty(); }
  /// The first transform that draws random numbers; null if there is none.
  const Transform* random() const;
  /// The shape of what comes out. Throws ConfigError for images that a transform cannot take.
  ImageShape output(ImageShape input) const;
  /// Computes the image of a key into `out`, which takes output(source.shape()). REQUIRES: that does not
  /// throw.
  void apply(const SampleKey& key, PixelSource& source, float* out, TransformScratch& scratch) const;

 private:
  std::vector<std::unique_ptr<const Transform>> transforms_;
  uint32_t first_place_;
};

/// The calling thread's own.
TransformScratch& scratch_of_thread();

}  // namespace lockstep::data
