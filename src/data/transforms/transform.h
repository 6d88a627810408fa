#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "data/transforms/image.h"
#include "data/transforms/options.h"
#include "data/transforms/resample.h"
#include "data/transforms/sample_draws.h"

namespace lockstep::data {

/// One step of a chain: a pure function of an image and of the numbers drawn for it. Immutable. A step either
/// cuts and resizes (window), or changes values and keeps the shape (apply).
class Transform {
 public:
  virtual ~Transform() = default;
  virtual const char* name() const = 0;  ///< as in configs
  virtual bool is_random() const = 0;
  /// Throws ConfigError for images that it cannot take.
  virtual ImageShape output(const ImageShape& input) const { return input; }
  virtual std::optional<Window> window(const SampleDraws& /*draws*/, const ImageShape& /*input*/) const {
    return {};
  }
  /// `scratch`: any values.
  virtual void apply(const SampleDraws& /*draws*/, const ImageShape& /*shape*/, float* /*pixels*/,
                     std::vector<float>& /*scratch*/) const {}
};

// One function for each kind of options, in the file of that name.
std::unique_ptr<const Transform> make_transform(const RandomResizedCropOptions& options);
std::unique_ptr<const Transform> make_transform(const ResizeOptions& options);
std::unique_ptr<const Transform> make_transform(const CenterCropOptions& options);
std::unique_ptr<const Transform> make_transform(const PadCropOptions& options);
std::unique_ptr<const Transform> make_transform(const FlipOptions& options);
std::unique_ptr<const Transform> make_transform(const AffineOptions& options);
std::unique_ptr<const Transform> make_transform(const ColorJitterOptions& options);
std::unique_ptr<const Transform> make_transform(const GrayscaleOptions& options);
std::unique_ptr<const Transform> make_transform(const EraseOptions& options);
std::unique_ptr<const Transform> make_transform(const NormalizeOptions& options);

}  // namespace lockstep::data
