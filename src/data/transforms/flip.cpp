#include <fmt/format.h>

#include <algorithm>

#include "data/transforms/transform.h"
#include "lockstep/error.h"

namespace lockstep::data {
namespace {

class Flip : public Transform {
 public:
  explicit Flip(const FlipOptions& options) : options_(options) {
    require(
        options.horizontal >= 0 && options.horizontal <= 1 && options.vertical >= 0 && options.vertical <= 1,
        fmt::format("flip: expected probabilities from 0 to 1, found {} and {}", options.horizontal,
                    options.vertical));
  }
  const char* name() const override { return "flip"; }
  bool is_random() const override { return true; }
  void apply(const SampleDraws& draws, const ImageShape& shape, float* pixels,
             std::vector<float>& /*scratch*/) const override {
    const int64_t row = shape.width * shape.channels;
    if (draws.chance(0, options_.horizontal))
      for (int64_t y = 0; y < shape.height; ++y)
        for (int64_t left = 0, right = shape.width - 1; left < right; ++left, --right)
          std::swap_ranges(pixels + y * row + left * shape.channels,
                           pixels + y * row + (left + 1) * shape.channels,
                           pixels + y * row + right * shape.channels);
    if (draws.chance(1, options_.vertical))
      for (int64_t top = 0, bottom = shape.height - 1; top < bottom; ++top, --bottom)
        std::swap_ranges(pixels + top * row, pixels + (top + 1) * row, pixels + bottom * row);
  }

 private:
  FlipOptions options_;
};

}  // namespace

std::unique_ptr<const Transform> make_transform(const FlipOptions& options) {
  return std::make_unique<Flip>(options);
}

}  // namespace lockstep::data
