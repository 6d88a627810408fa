#include "data/transforms/affine.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "data/transforms/transform.h"
#include "lockstep/error.h"

namespace lockstep::data {
namespace {

/// From the middle of an output pixel to a place in the input.
struct InverseMotion {
  double xx, xy, x, yx, yy, y;
};

InverseMotion inverse_of(const AffineMotion& motion, const ImageShape& shape) {
  const double turn = motion.angle * std::numbers::pi / 180, shear = motion.shear * std::numbers::pi / 180;
  // Rounded, so that sines whose last bits differ between libraries give the same numbers.
  const auto rounded = [](double value) { return static_cast<double>(static_cast<float>(value)); };
  const double cosine = rounded(std::cos(turn)), sine = rounded(std::sin(turn));
  const double tangent = rounded(std::tan(shear));
  const double a = cosine, b = -cosine * tangent - sine, c = sine, d = -sine * tangent + cosine;
  InverseMotion inverse{d / motion.scale, -b / motion.scale, 0, -c / motion.scale, a / motion.scale, 0};
  const double middle_x = 0.5 * static_cast<double>(shape.width);
  const double middle_y = 0.5 * static_cast<double>(shape.height);
  const double x = -middle_x - motion.shift_x, y = -middle_y - motion.shift_y;
  inverse.x = inverse.xx * x + inverse.xy * y + middle_x;
  inverse.y = inverse.yx * x + inverse.yy * y + middle_y;
  return inverse;
}

class Affine : public Transform {
 public:
  explicit Affine(const AffineOptions& options) : options_(options) {
    require(
        options.degrees >= 0 && options.degrees <= 180 && options.shear >= 0 && options.shear < 90 &&
            options.translate >= 0 && options.translate <= 1,
        fmt::format("affine: expected degrees from 0 to 180, shear from 0 to below 90 and translate from 0 "
                    "to 1, found {}, {} and {}",
                    options.degrees, options.shear, options.translate));
    require(
        options.scale_min > 0 && options.scale_min <= options.scale_max && std::isfinite(options.scale_max),
        fmt::format("affine: expected 0 < scale_min <= scale_max, found {} and {}", options.scale_min,
                    options.scale_max));
  }
  const char* name() const override { return "affine"; }
  bool is_random() const override { return true; }
  void apply(const SampleDraws& draws, const ImageShape& shape, float* pixels,
             std::vector<float>& scratch) const override {
    const double most_x = options_.translate * static_cast<double>(shape.width);
    const double most_y = options_.translate * static_cast<double>(shape.height);
    move_image({.angle = draws.uniform(0, -options_.degrees, options_.degrees),
                .shift_x = std::round(draws.uniform(1, -most_x, most_x)),
                .shift_y = std::round(draws.uniform(2, -most_y, most_y)),
                .scale = draws.uniform(3, options_.scale_min, options_.scale_max),
                .shear = draws.uniform(4, -options_.shear, options_.shear)},
               static_cast<float>(options_.value), shape, pixels, scratch);
  }

 private:
  AffineOptions options_;
};

}  // namespace

void move_image(const AffineMotion& motion, float value, const ImageShape& shape, float* pixels,
                std::vector<float>& scratch) {
  scratch.assign(pixels, pixels + shape.count());
  const InverseMotion inverse = inverse_of(motion, shape);
  const int64_t channels = shape.channels, row = shape.width * channels;
  const auto at = [&](int64_t y, int64_t x) -> const float* {
    const bool inside = y >= 0 && y < shape.height && x >= 0 && x < shape.width;
    return inside ? scratch.data() + y * row + x * channels : nullptr;
  };
  for (int64_t y = 0; y < shape.height; ++y)
    for (int64_t x = 0; x < shape.width; ++x, pixels += channels) {
      const double px = static_cast<double>(x) + 0.5, py = static_cast<double>(y) + 0.5;
      const double from_x = inverse.xx * px + inverse.xy * py + inverse.x - 0.5;
      const double from_y = inverse.yx * px + inverse.yy * py + inverse.y - 0.5;
      // Beyond a pixel outside the image all is `value`; this keeps whole numbers small, too.
      const double low_x = std::clamp(std::floor(from_x), -2.0, static_cast<double>(shape.width));
      const double low_y = std::clamp(std::floor(from_y), -2.0, static_cast<double>(shape.height));
      const auto right = static_cast<float>(std::clamp(from_x - low_x, 0.0, 1.0));
      const auto down = static_cast<float>(std::clamp(from_y - low_y, 0.0, 1.0));
      const auto x0 = static_cast<int64_t>(low_x), y0 = static_cast<int64_t>(low_y);
      const float* corners[4] = {at(y0, x0), at(y0, x0 + 1), at(y0 + 1, x0), at(y0 + 1, x0 + 1)};
      const float weights[4] = {(1 - down) * (1 - right), (1 - down) * right, down * (1 - right),
                                down * right};
      for (int64_t c = 0; c < channels; ++c) {
        float sum = 0;
        for (int k = 0; k < 4; ++k) sum += weights[k] * (corners[k] != nullptr ? corners[k][c] : value);
        pixels[c] = sum;
      }
    }
}

std::unique_ptr<const Transform> make_transform(const AffineOptions& options) {
  return std::make_unique<Affine>(options);
}

}  // namespace lockstep::data
