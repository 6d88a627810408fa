#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "data/transforms/image.h"
#include "data/transforms/resample.h"
#include "data/transforms/sample_draws.h"
#include "data/transforms/transform_options.h"

namespace lockstep::data {

/// The most steps that a transform has.
inline constexpr int32_t kMostSteps = 4;

/// One member of a chain: a pure function of an image and of the numbers drawn for it. Immutable. It either
/// cuts and resizes (window), or changes values and keeps the shape (apply). Of the latter most do so by
/// steps, which GPUs can do, too (pixels/step.h).
class Transform {
 public:
  virtual ~Transform() = default;
  virtual const char* name() const = 0;  ///< as in configs
  virtual bool is_random() const = 0;
  /// Throws ConfigError for images that it cannot take.
  virtual ImageShape output(const ImageShape& input) const { return input; }
  virtual bool is_window() const { return false; }  ///< whether it always has a window
  virtual std::optional<Window> window(const SampleDraws& /*draws*/, const ImageShape& /*input*/) const {
    return {};
  }
  /// How many steps it has for images of this shape; nothing if it does not work by steps.
  virtual std::optional<int32_t> step_count(const ImageShape& /*shape*/) const { return {}; }
  /// Whether a step may be a contrast.
  virtual bool sums() const { return false; }
  /// Writes step_count() steps. REQUIRES: it works by steps.
  virtual void write_steps(const SampleDraws& /*draws*/, const ImageShape& /*shape*/,
                           pixels::Step* /*steps*/) const {}
  /// `scratch`: any values.
  virtual void apply(const SampleDraws& draws, const ImageShape& shape, float* pixels,
                     std::vector<float>& scratch) const;
};

/// Does one step. `scratch`: any values.
void do_step(const pixels::Step& step, const ImageShape& shape, float* values, std::vector<float>& scratch);

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
