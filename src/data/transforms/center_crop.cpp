#include <fmt/format.h>

#include <cmath>

#include "data/transforms/transform.h"
#include "lockstep/error.h"

namespace lockstep::data {
namespace {

/// Where the middle begins: half of what is left over, rounded to even, as torchvision does.
int64_t middle(int64_t outer, int64_t inner) {
  return static_cast<int64_t>(std::nearbyint(static_cast<double>(outer - inner) / 2));
}

class CenterCrop : public Transform {
 public:
  explicit CenterCrop(const CenterCropOptions& options) : options_(options) {
    require(options.height >= 1 && options.width >= 1,
            fmt::format("center_crop.size: expected a height and a width of at least 1, found [{}, {}]",
                        options.height, options.width));
  }
  const char* name() const override { return "center_crop"; }
  bool is_random() const override { return false; }
  ImageShape output(const ImageShape& input) const override {
    require(input.height >= options_.height && input.width >= options_.width,
            fmt::format("center_crop: cannot cut {}x{} pixels out of an image of {}x{}; resize it before",
                        options_.height, options_.width, input.height, input.width));
    return {options_.height, options_.width, input.channels};
  }
  bool is_window() const override { return true; }
  std::optional<Window> window(const SampleDraws& /*draws*/, const ImageShape& input) const override {
    return Window::of({middle(input.height, options_.height), middle(input.width, options_.width),
                       options_.height, options_.width},
                      options_.height, options_.width, ResizeFilter::bilinear);
  }

 private:
  CenterCropOptions options_;
};

}  // namespace

std::unique_ptr<const Transform> make_transform(const CenterCropOptions& options) {
  return std::make_unique<CenterCrop>(options);
}

}  // namespace lockstep::data
