#pragma once

#include <memory>
#include <span>
#include <vector>

#include "data/transforms/transform.h"

namespace lockstep::data {

/// What one thread needs to compute images. Grows to the largest, then stays.
struct TransformScratch {
  ResampleScratch resampling;
  std::vector<float> image, other, step, packed;
};

/// What of a chain is left to do when an image has been cut out and resized.
struct ChainTail {
  int32_t steps = 0;
  bool sums = false;  ///< a step may be a contrast
};

/// Transforms in their order, compiled once. What cuts and resizes at the beginning becomes one window, so
/// that only this part of an image is decoded. As long as nothing else was done, values of bytes are rounded
/// to bytes, as Pillow does it. Immutable.
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
  void apply(const SampleKey& key, PixelSource& source, float* out, TransformScratch& scratch) const {
    apply_first(transforms_.size(), key, source, out, scratch);
  }

  /// For transforms behind the mixing of samples: throws ConfigError if the first one cuts or resizes.
  void require_tail() const;
  /// The transforms behind those that cut and resize at the beginning. Throws ConfigError, which names the
  /// first one that does not work by steps. `image`: output() of any image.
  ChainTail tail(const ImageShape& image) const;
  /// Computes the image as it is before the tail, in bytes, and the tail's steps. REQUIRES: tail() does not
  /// throw; the source has bytes.
  void pack(const SampleKey& key, PixelSource& source, uint8_t* out, pixels::Step* steps,
            TransformScratch& scratch) const;
  /// Writes the tail's steps alone.
  void write_tail(const SampleKey& key, const ImageShape& image, pixels::Step* steps) const;

 private:
  /// Does the first `end` transforms.
  void apply_first(size_t end, const SampleKey& key, PixelSource& source, float* out,
                   TransformScratch& scratch) const;
  /// How many transforms cut and resize at the beginning.
  size_t leading_windows() const;
  SampleDraws draws(const SampleKey& key, size_t place) const {
    return {key, first_place_ + static_cast<uint32_t>(place)};
  }

  std::vector<std::unique_ptr<const Transform>> transforms_;
  uint32_t first_place_;
};

/// The calling thread's own.
TransformScratch& scratch_of_thread();

}  // namespace lockstep::data
