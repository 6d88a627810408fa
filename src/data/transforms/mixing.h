#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "data/transforms/image.h"
#include "data/transforms/sample_draws.h"
#include "data/transforms/transform_options.h"

namespace lockstep::data {

/// What mixes samples, and its place in the list of transforms.
struct MixingOptions {
  std::optional<MixupOptions> mixup;
  std::optional<CutmixOptions> cutmix;
  uint32_t place = 0;  ///< from which draws are made
};

/// A list of transforms, cut where samples are mixed.
struct TransformList {
  std::vector<TransformOptions> before;
  std::optional<MixingOptions> mixing;
  std::vector<TransformOptions> after;
  uint32_t place_after = 0;  ///< of the first of `after`
};

/// Throws ConfigError unless mixup and cutmix are there at most once each, one behind the other, with
/// probabilities that add up to at most 1.
TransformList cut_at_mixing(std::span<const TransformOptions> transforms);

/// How one sample is mixed. Exactly one of `share` and `box` says what is done to the image.
struct Mixing {
  int64_t partner = 0;  ///< the other sample
  bool is_box = false;
  Region box;           ///< of the image that is the partner's; may be empty
  int32_t mixture = 0;  ///< the partner's share of the label, in units of 2^-24
  bool operator==(const Mixing&) const = default;
};

/// Nothing: the sample stays as it is. A pure function of its arguments. REQUIRES: samples > 0.
std::optional<Mixing> draw_mixing(const MixingOptions& options, const SampleKey& key, int64_t samples,
                                  const ImageShape& image);

/// The same for GPUs.
pixels::Step step_of(const Mixing& mixing);

/// Makes `image`, of `shape`, what `mixing` makes of it and of its partner's.
void mix_images(const Mixing& mixing, const ImageShape& shape, const float* partner, float* image);

/// A number from Beta(alpha, alpha), from draws `first` to `first` + 6000. REQUIRES: alpha > 0.
double draw_beta(const SampleDraws& draws, uint32_t first, double alpha);

}  // namespace lockstep::data
