#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "data/transforms/random_box.h"
#include "data/transforms/transform.h"
#include "lockstep/error.h"

namespace lockstep::data {
namespace {

/// The largest part of a permitted aspect ratio, in the middle.
Region largest_permitted(const ImageShape& image, double aspect_min, double aspect_max) {
  const double aspect = static_cast<double>(image.width) / static_cast<double>(image.height);
  Region box{0, 0, image.height, image.width};
  if (aspect < aspect_min)
    box.height = std::llround(static_cast<double>(image.width) / aspect_min);
  else if (aspect > aspect_max)
    box.width = std::llround(static_cast<double>(image.height) * aspect_max);
  box.height = std::clamp<int64_t>(box.height, 1, image.height);
  box.width = std::clamp<int64_t>(box.width, 1, image.width);
  box.y = (image.height - box.height) / 2;
  box.x = (image.width - box.width) / 2;
  return box;
}

class RandomResizedCrop : public Transform {
 public:
  explicit RandomResizedCrop(const RandomResizedCropOptions& options) : options_(options) {
    require(
        options.height >= 1 && options.width >= 1,
        fmt::format("random_resized_crop.size: expected a height and a width of at least 1, found [{}, {}]",
                    options.height, options.width));
    require_box_limits(name(), options.area_min, options.area_max, options.aspect_min, options.aspect_max);
  }
  const char* name() const override { return "random_resized_crop"; }
  bool is_random() const override { return true; }
  ImageShape output(const ImageShape& input) const override {
    return {options_.height, options_.width, input.channels};
  }
  bool is_window() const override { return true; }
  std::optional<Window> window(const SampleDraws& draws, const ImageShape& input) const override {
    const auto drawn = draw_box(draws, input, options_.area_min, options_.area_max, options_.aspect_min,
                                options_.aspect_max);
    return Window::of(drawn ? *drawn : largest_permitted(input, options_.aspect_min, options_.aspect_max),
                      options_.height, options_.width, options_.filter);
  }

 private:
  RandomResizedCropOptions options_;
};

}  // namespace

std::unique_ptr<const Transform> make_transform(const RandomResizedCropOptions& options) {
  return std::make_unique<RandomResizedCrop>(options);
}

}  // namespace lockstep::data
