#pragma once

#include <cstdint>
#include <variant>
#include <vector>

namespace lockstep::data {

/// How images are resized. Both widen their support if an image shrinks, as Pillow does, and torchvision
/// with antialias=True.
enum class ResizeFilter { bilinear, bicubic };

/// A random part of the image, resized (Szegedy et al., "Going deeper with convolutions", 2014). As
/// torchvision: up to ten tries at an area and an aspect ratio (width / height, drawn on a logarithmic
/// scale), then the largest centred part of a permitted ratio.
struct RandomResizedCropOptions {
  int64_t height = 0, width = 0;
  double area_min = 0.08, area_max = 1;  ///< shares of the image's area
  double aspect_min = 3.0 / 4, aspect_max = 4.0 / 3;
  ResizeFilter filter = ResizeFilter::bilinear;
  bool operator==(const RandomResizedCropOptions&) const = default;
};

/// To height x width, or so that the shorter side becomes `shorter`; the longer one is rounded down.
struct ResizeOptions {
  int64_t height = 0, width = 0, shorter = 0;  ///< shorter 0: height and width are stated
  ResizeFilter filter = ResizeFilter::bilinear;
  bool operator==(const ResizeOptions&) const = default;
};

/// The middle of the image, which must be at least as large.
struct CenterCropOptions {
  int64_t height = 0, width = 0;
  bool operator==(const CenterCropOptions&) const = default;
};

/// `padding` pixels of `value` on each side, then a random part of the original size.
struct PadCropOptions {
  int64_t padding = 4;
  double value = 0;
  bool operator==(const PadCropOptions&) const = default;
};

/// Probabilities of mirroring left and right, and top and bottom.
struct FlipOptions {
  double horizontal = 0.5, vertical = 0;
  bool operator==(const FlipOptions&) const = default;
};

/// A random rotation, shift, scale and shear about the middle, bilinear; `value` outside the image.
struct AffineOptions {
  double degrees = 0;    ///< of rotation, at most, in both directions
  double translate = 0;  ///< shift, at most, as a share of the size, in each direction
  double scale_min = 1, scale_max = 1;
  double shear = 0;  ///< degrees, at most, along the rows, in both directions
  double value = 0;
  bool operator==(const AffineOptions&) const = default;
};

/// Random factors within 1 +- each, in random order; hue turns by at most +- `hue` turns. Values are then
/// within [0, 1].
struct ColorJitterOptions {
  double brightness = 0, contrast = 0, saturation = 0, hue = 0;
  bool operator==(const ColorJitterOptions&) const = default;
};

/// Makes all channels 0.2989 R + 0.587 G + 0.114 B.
struct GrayscaleOptions {
  double probability = 0.1;
  bool operator==(const GrayscaleOptions&) const = default;
};

/// Sets a random rectangle to `value` (Zhong et al., "Random erasing data augmentation", 2017).
struct EraseOptions {
  double probability = 0.5;
  double area_min = 0.02, area_max = 1.0 / 3;  ///< shares of the image's area
  double aspect_min = 0.3, aspect_max = 1 / 0.3;
  double value = 0;
  bool operator==(const EraseOptions&) const = default;
};

/// (value - mean) / deviation, of each channel, or the same for all.
struct NormalizeOptions {
  std::vector<double> mean, deviation;
  bool operator==(const NormalizeOptions&) const = default;
};

/// Averages the image and label with another sample's; its own share is drawn from Beta(alpha, alpha).
struct MixupOptions {
  double alpha = 1, probability = 1;
  bool operator==(const MixupOptions&) const = default;
};

/// Takes a random rectangle from another sample's image, and mixes labels by area. Sizes as torchvision: the
/// area that is left is drawn from Beta(alpha, alpha), the middle is uniform.
struct CutmixOptions {
  double alpha = 1, probability = 1;
  bool operator==(const CutmixOptions&) const = default;
};

using TransformOptions =
    std::variant<RandomResizedCropOptions, ResizeOptions, CenterCropOptions, PadCropOptions, FlipOptions,
                 AffineOptions, ColorJitterOptions, GrayscaleOptions, EraseOptions, NormalizeOptions,
                 MixupOptions, CutmixOptions>;

}  // namespace lockstep::data
